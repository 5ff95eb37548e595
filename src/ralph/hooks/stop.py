"""May the agent stop? A host asks this after every turn of every session, and nearly always no loop goes on in it.

That is answered here with next to nothing imported; everything else goes through the engine (`ralph.hooks.judging`).
"""

import sys
import time

from ralph.hooks import loops

COMMANDS = (b"ralph-loop", b"ulw-loop", b"cancel-ralph")


def main(words: list[str]) -> int:
    """`stop`, `prompt` or `remind`, and the host's name: its JSON on stdin, the answer on stdout."""
    began, event, host = time.time(), words[0], words[1] if len(words) > 1 else ""
    if len(words) > 2 or host.startswith("-") or sys.stdin is None or sys.stdin.isatty():
        print(f"ralph: usage: ralph hook {event} [AGENT] < JSON\nhint: an agent's hook calls this", file=sys.stderr)
        return 2
    try:
        data = sys.stdin.buffer.read()
        concerns_us = any(name in data for name in COMMANDS) if event == "prompt" else loops.may_go_on(data)
        answer = _answer(event, host, data, began) if concerns_us else ""
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - a host takes a traceback for an answer
        answer = _trouble(event, error)
    if answer:
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
    return 0


def _answer(event: str, host: str, data: bytes, began: float) -> str:
    """What the host is told, as JSON; empty where there is nothing to say. The hook is started without `site`, which
    finds the installed packages, and without all that makes an engine slow to start."""
    import gc

    gc.set_threshold(100_000)
    if "site" not in sys.modules:
        import site

        site.main()
    from ralph.processes.spawning import import_leanly

    import_leanly("msgspec", "pathlib")
    if event == "prompt":
        from ralph.hooks.starting import prompted

        return prompted(data, host)
    from ralph.hooks.judging import judged, reminded

    return reminded(data) if event == "remind" else judged(data, began)


def _trouble(event: str, error: Exception) -> str:
    """Something broke. People are told, and the agent may stop: nobody could count any more how often it did not."""
    from json import dumps

    verdict = "cannot judge this stop, so it is allowed" if event == "stop" else f"cannot answer ({event})"
    message = f"{verdict}: {type(error).__name__}: {error}"
    print(f"ralph: {message}", file=sys.stderr)
    return dumps({"systemMessage": f"ralph: warning: {message}"})
