"""The hook that a host calls when its agent wants to stop. If the session has no loop, as is usual, the answer needs
few imports; otherwise `ralph.hooks.judging` decides."""

import sys
import time
from json import dumps

from ralph.hooks import loops

COMMANDS = (b"ralph-loop", b"ulw-loop", b"cancel-ralph")


def main(words: list[str]) -> int:
    """Answer an event of a host, whose JSON is on stdin. `words`: the event (`stop`, `prompt` or `remind`) and the name
    of the host."""
    began, event, host = time.time(), words[0], words[1] if len(words) > 1 else ""
    if len(words) > 2 or host.startswith("-") or sys.stdin is None or sys.stdin.isatty():
        print(f"ralph: usage: ralph hook {event} [AGENT] < JSON\nhint: an agent's hook calls this", file=sys.stderr)
        return 2
    try:
        answer = _answer(event, host, sys.stdin.buffer.read(), began)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - a host would take a traceback for an answer
        answer = _failure(event, error)
    if answer:
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
    return 0


def _answer(event: str, host: str, data: bytes, began: float) -> str:
    """Return the answer to the host as JSON; empty to let it continue."""
    if event == "prompt":
        if not any(name in data for name in COMMANDS):
            return ""
        from ralph.hooks.starting import answer_prompt

        return answer_prompt(loops.parse_object(data), host)
    try:
        event_data = loops.parse_object(data)
    except ValueError as error:
        print(f"ralph: cannot read what the host says: {error}", file=sys.stderr)
        event_data = {}
    session = loops.session_of(event_data)
    root = loops.find(session, loops.places_of(event_data))
    if root is None:
        return ""
    from ralph.hooks.judging import judge_stop, remind

    return remind(root, session, event_data) if event == "remind" else judge_stop(root, session, event_data, began)


def _failure(event: str, error: Exception) -> str:
    """Return the answer after an internal error: the agent may stop, or nothing would limit its turns."""
    verdict = "cannot judge this stop, so it is allowed" if event == "stop" else f"cannot answer ({event})"
    message = f"{verdict}: {type(error).__name__}: {error}"
    print(f"ralph: {message}", file=sys.stderr)
    return dumps({"systemMessage": f"ralph: warning: {message}"})
