"""What is there to see of a run? What it changed, or one iteration of it, file by file and line by line; how its checks
failed, what it called and what it was asked: as much as a page can hold, without control characters and keys."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from ralph.core import events as e
from ralph.core.secrets import Redactor, redact_text, secret_values
from ralph.core.text import both_ends, clean, nickname, short, tail
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints, patch, patches_between
from ralph.git.client import Git, require_git
from ralph.history.feed import remembered
from ralph.history.repositories import repository_with_checkpoints
from ralph.history.run_history import RunHistory
from ralph.store.archive import Logs
from ralph.store.folder import RunFolder
from ralph.store.journal import Entry, JournalReader, decode_entry
from ralph.store.register import Listed

MOST_LINES = 20_000
LONGEST_LINE = 500


class PatchedFile(Struct):
    """A file that differs, the lines of its patch, and how many of them are new or gone; what it `was` called before,
    if that was another name."""

    path: str
    added: int
    deleted: int
    lines: list[str] = []
    was: str = ""


class Patch(Struct, frozen=True):
    """`number` is the iteration, None for the whole run; `last` is the last there is; `is_cut`: there is more."""

    number: int | None
    last: int
    files: list[PatchedFile]
    is_cut: bool


def patch_of(run: Listed, number: int | None) -> Patch:

    return _patch(repository_with_checkpoints(run), run.id, number)


def patch_in(run: str, place: str, number: int | None) -> Patch:
    """The patch of a run that worked in `place`."""
    if not os.path.isdir(place):
        raise UserError(f"{place} is gone", "the run's work cannot be looked at")

    return _patch(require_git(Path(place)), run, number)


def _patch(repo: "Git", run: str, number: int | None) -> Patch:

    saved = Checkpoints(repo, run)
    last = max((int(one.name) for one in saved.all() if one.name.isdigit()), default=0)
    if not last:
        raise UserError(f"{nickname(run)} has not finished an iteration yet", "what it changes is kept after each")
    chosen = min(number, last) if number else None
    before, after = saved.around(chosen) if chosen else saved.ends()
    files, is_cut = files_in(patch(repo, before, after), Redactor(secret_values(os.environ)).text)
    return Patch(chosen, last, files, is_cut)


def files_in(chunks: Iterable[bytes], redact: Callable[[str], str] = redact_text) -> tuple[list[PatchedFile], bool]:
    """The files of a patch with their lines, and whether there are more than can be shown."""
    files: list[PatchedFile] = []
    in_head = True
    for count, raw in enumerate(lines_in(chunks)):
        if count >= MOST_LINES:
            return files, True
        line = redact(clean(raw.decode("utf-8", "replace"))).expandtabs(4)[:LONGEST_LINE]
        if line.startswith("diff --git "):
            in_head = True
            files.append(PatchedFile(line.rpartition(" b/")[2], 0, 0, []))
        elif not files:
            continue
        elif in_head and line.startswith(_NEW_NAMES):
            files[-1].path = line.partition(" ")[2].removeprefix("to ").removeprefix("b/").rstrip()
        elif in_head and line.startswith("rename from "):
            files[-1].was = line.removeprefix("rename from ")
        elif not in_head or line.startswith(_BODIES):
            in_head = False
            files[-1].lines.append(line)
            files[-1].added += line.startswith("+")
            files[-1].deleted += line.startswith("-")
    return files, False


_NEW_NAMES = ("rename to ", "+++ b/")
_BODIES = ("@@", "Binary files ")


def lines_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    parts: list[bytes] = []
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        if whole:
            yield b"".join((*parts, whole[0]))
            yield from whole[1:]
            parts = []
        parts.append(rest)
    if last := b"".join(parts):
        yield last


RedactText = Callable[[str], str]
MOST_IN_ALL = 300_000
MOST_EACH = 24_000
LEAST_OF_A_PROMPT = 60  # fewer characters say nothing
_NAMES = (e.IterationStarted, e.ToolStarted, e.ToolFinished, e.IterationFinished)
_TOLD = tuple(b'{"type":"%s"' % e.NAMES[kind].encode() for kind in _NAMES)
_RECORD, _FAILED = _TOLD[-1], b'"passed":false'


class ToolCall(Struct):
    """`lines` are those of its output; `ok` is None where it has no end."""

    name: str
    given: str
    ok: bool | None = None
    lines: int = 0


class Evidence(Struct, kw_only=True):
    """Of one iteration. `tails` are the last lines of each failed check, by name; `calls_left_out` were too many."""

    prompt: str = ""
    patch: Sequence[PatchedFile] = ()
    patch_is_cut: bool = False
    tails: dict[str, str] = {}
    calls: list[ToolCall] = []
    calls_left_out: int = 0


def evidence_of(folder: RunFolder, history: RunHistory, env: Mapping[str, str]) -> dict[int, Evidence]:
    """The evidence of each iteration, by its number. All iterations share the room. What is secret in `env` is struck
    out, whatever it looks like: a file that an agent wrote may hold it."""
    redact = Redactor(secret_values(env)).text
    room = min(MOST_IN_ALL // max(len(history.iterations), 1), MOST_EACH)
    found = {one.number: Evidence() for one in history.iterations}
    _hear(folder.journal, found, room, redact)
    logs, most = Logs(folder.path), room // 6

    @lru_cache(maxsize=1)  # most turns are asked the same
    def asked(prompt: bytes) -> str:
        return both_ends(_shown(prompt.decode("utf-8", "replace"), redact), most, "\n\n… [cut] …\n\n")

    for number, one in found.items() if most >= LEAST_OF_A_PROMPT else ():
        with suppress(OSError):  # an agent may have put something else in its place
            one.prompt = asked(logs.read(number, "prompt.md", 200_000).data)
    _look(history, found, room // 2, redact)
    return found


def _hear(journal: Path, found: dict[int, Evidence], room: int, redact: RedactText) -> None:
    """Add tool calls and failed checks from the journal."""
    at, opened = Evidence(), dict[str, ToolCall]()
    most_calls = max(room // 300, 10)
    for entry in _entries_with_evidence(journal):
        match entry.event():
            case e.IterationStarted() as event:
                at, opened = found.get(event.iteration, Evidence()), {}
            case e.ToolStarted() as event:
                if len(at.calls) >= most_calls:
                    at.calls_left_out += 1
                else:
                    opened[event.id] = ToolCall(short(event.name, 60), short(event.input, 160))
                    at.calls.append(opened[event.id])
            case e.ToolFinished() as event if event.id in opened:
                call = opened.pop(event.id)
                call.ok, call.lines = event.ok, event.lines
            case e.IterationFinished() as event:
                failed = [check for check in event.record.checks if not check.passed]
                each = min(room // 6 // max(len(failed), 1), 3000)
                one = found.get(event.iteration, Evidence())
                one.tails = {short(check.name, 200): tail(_shown(check.tail, redact), each, "…") for check in failed}


def _entries_with_evidence(journal: Path) -> Iterator[Entry]:
    """Skip most lines without decoding them."""
    with JournalReader.open(journal) as reader:
        for line in reader.lines():
            is_green = line.startswith(_RECORD) and _FAILED not in line
            if line.startswith(_TOLD) and not is_green and (entry := decode_entry(line)):
                yield entry


def _shown(text: str, redact: RedactText) -> str:
    return redact(clean(text)).expandtabs(4).strip("\n")


def _look(history: RunHistory, found: dict[int, Evidence], most: int, redact: RedactText) -> None:
    """What each iteration changed, as far as git remembers."""
    trees = history.trees()
    trees.pop(0, None)
    if not trees:
        return

    patches = remembered(history, trees, lambda repository, pairs: patches_between(repository, pairs, most))
    for number, (data, is_cut) in patches.items():
        found[number].patch, _ = files_in([data], redact)
        found[number].patch_is_cut = is_cut
