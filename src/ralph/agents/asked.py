"""Which options does the installed version of a CLI understand? It is asked once, and its answer is kept."""

import os
from collections.abc import Callable

from msgspec import DecodeError, Struct, json

from ralph.core.model import Failure

Words = tuple[str, ...]


class _Answer(Struct):
    """What a program answered, and which program that was, and what the question."""

    asked: str
    options: list[str]


def worth_asking(failure: Failure | None) -> bool:
    """Whether a turn failed in a way that knowing the options would mend."""
    refusals = ("unknown", "unexpected", "unrecognized", "no such")
    words = [f"{refusal} {thing}" for refusal in refusals for thing in ("option", "argument", "flag")]
    return failure is not None and any(word in failure.reason.lower() for word in words)


def understood(program: str, question: Words, printed: Callable[[Words], str]) -> frozenset[str] | None:
    """The options that the program at this path lists when it is asked `question`, or None where there is no telling.
    `printed` gives what a command prints."""
    known = remembered(program, question)
    if known is None:
        options = _options_in(printed((program, *question)))
        if not options:
            return None
        _remember(program, _Answer(_identity(program, question), options))
        known = frozenset(options)
    return known


def remembered(program: str, question: Words) -> frozenset[str] | None:
    """What this very version has answered before, here or in an earlier run."""
    try:
        with open(_memory(program), "rb") as stream:
            answer = json.decode(stream.read(), type=_Answer)
        return frozenset(answer.options) if answer.asked == _identity(program, question) else None
    except (OSError, DecodeError, UnicodeDecodeError):
        return None


def _options_in(page: str) -> list[str]:
    import re

    return sorted(set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", page)))


def _identity(program: str, question: Words) -> str:
    """Which file, put there when? Packages come with made-up times of change, and a new version with an old size."""
    facts = os.stat(program)
    numbers = (facts.st_ino, facts.st_ctime_ns, facts.st_size)
    return "\0".join((os.path.abspath(program), *map(str, numbers), *question))


def _memory(program: str) -> str:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(folder, "ralph", f"options-{os.path.basename(program)}.json")


def _remember(program: str, answer: _Answer) -> None:
    """To keep the answer is a comfort: where it cannot be kept, the next run asks again."""
    path = _memory(program)
    fresh = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(fresh, "wb") as stream:
            stream.write(json.encode(answer))
        os.replace(fresh, path)
    except OSError:
        pass
