"""Which options does the installed version of a CLI understand? It is asked once, and its answer is kept."""

import os
from contextlib import suppress

from msgspec import DecodeError, Struct, json

from ralph.core.model import Failure

PATIENCE = 15.0  # seconds that a CLI may take to print its help


class _Answer(Struct):
    """What a program answered, and which program that was: its path, time and size, and the question."""

    asked: str
    options: list[str]


def worth_asking(failure: Failure | None) -> bool:
    """Whether a turn failed in a way that knowing the options would mend."""
    words = ("unknown option", "unexpected argument", "unrecognized option", "unknown argument", "no such option")
    return failure is not None and any(word in failure.reason.lower() for word in words)


def understood(program: str, question: tuple[str, ...]) -> frozenset[str] | None:
    """The options that `program` lists when it is asked `question`, or None where there is no telling."""
    path = _found(program)
    if path is None:
        return None
    facts = os.stat(path)
    asked = "\0".join((path, str(facts.st_mtime_ns), str(facts.st_size), *question))
    cache = os.path.join(_cache_folder(), f"options-{os.path.basename(path)}.json")
    answer = _remembered(cache)
    if answer is None or answer.asked != asked:
        options = _ask(path, question)
        if not options:
            return None
        answer = _Answer(asked, options)
        _remember(cache, answer)
    return frozenset(answer.options)


def _ask(path: str, question: tuple[str, ...]) -> list[str]:
    import re

    return sorted(set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", _printed([path, *question]))))


def _printed(argv: list[str]) -> str:
    """What a command prints, or nothing where it takes too long; what it started is ended with it."""
    import signal
    import subprocess

    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError:
        return ""
    with process:
        try:
            return process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def _found(program: str) -> str | None:
    folders = [""] if os.sep in program else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, program))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _cache_folder() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "ralph")


def _remembered(path: str) -> _Answer | None:
    try:
        with open(path, "rb") as stream:
            return json.decode(stream.read(), type=_Answer)
    except (OSError, DecodeError, UnicodeDecodeError):
        return None


def _remember(path: str, answer: _Answer) -> None:
    """To keep the answer is a comfort: where it cannot be kept, the next run asks again."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "wb") as stream:
            stream.write(json.encode(answer))
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        pass
