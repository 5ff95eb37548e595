"""What did a run change, or one iteration of it, file by file and line by line? As text that can be shown: without
control characters, and without what looks like a key."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from ralph.core.secrets import redact_text
from ralph.core.text import clean
from ralph.errors import UserError
from ralph.records.register import Listed
from ralph.repository.git import Repository, repository

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
    """`number` is the iteration, None for the whole run; `last` is the last one that can be looked at; `is_cut`: there
    is more than can be shown."""

    number: int | None
    last: int
    files: list[PatchedFile]
    is_cut: bool


def patch_of(run: Listed, number: int | None) -> Patch:
    from ralph.steering.which_run import saved_in

    return _patch(saved_in(run), run.id, number)


def patch_in(run: str, place: str, number: int | None) -> Patch:
    """The patch of a run that worked in `place`."""
    if not Path(place).is_dir():
        raise UserError(f"{place} is gone", "the run's work cannot be looked at")
    return _patch(repository(Path(place)), run, number)


def _patch(repo: Repository, run: str, number: int | None) -> Patch:
    from ralph.repository.changes import patch
    from ralph.repository.checkpoints import Checkpoints

    saved = Checkpoints(repo, run)
    last = max((int(one.name) for one in saved.all() if one.name.isdigit()), default=0)
    if not last:
        name = run.rpartition("-")[2]
        raise UserError(f"{name} has not finished an iteration yet", "what it changes is kept after each")
    chosen = min(number, last) if number else None
    before, after = saved.around(chosen) if chosen else saved.ends()
    files, is_cut = files_in(patch(repo, before, after))
    return Patch(chosen, last, files, is_cut)


def files_in(chunks: Iterable[bytes], redact: Callable[[str], str] = redact_text) -> tuple[list[PatchedFile], bool]:
    """The files of a patch with their lines, and whether there are more than can be shown."""
    files: list[PatchedFile] = []
    in_head = True
    for count, raw in enumerate(_lines(chunks)):
        if count >= MOST_LINES:
            return files, True
        line = redact(clean(raw.decode("utf-8", "replace"))).expandtabs(4)[:LONGEST_LINE]
        if line.startswith("diff --git "):
            in_head = True
            files.append(PatchedFile(line.rpartition(" b/")[2], 0, 0, []))
        elif in_head and line.startswith(_NAMES):
            files[-1].path = line.partition(" ")[2].removeprefix("to ").removeprefix("b/").rstrip()
        elif in_head and line.startswith("rename from "):
            files[-1].was = line.removeprefix("rename from ")
        elif files and (not in_head or line.startswith(_BODIES)):
            in_head = False
            files[-1].lines.append(line)
            files[-1].added += line.startswith("+")
            files[-1].deleted += line.startswith("-")
    return files, False


_NAMES = ("rename to ", "+++ b/")
_BODIES = ("@@", "Binary files ")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
