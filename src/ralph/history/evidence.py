"""Evidence for a report or a diff page: patches, the output of failed checks, and prompts.

All of it is limited in size, without control characters, and with secrets redacted.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.core import events as e
from ralph.core.secrets import Redactor, redact_text, secret_values
from ralph.core.text import both_ends, clean, nickname, short, tail
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints, patch, patches_between
from ralph.history.backlog_history import BacklogHistory
from ralph.history.feed import compare_trees, history_of, repository_with_checkpoints
from ralph.history.run_history import RunHistory
from ralph.store.folder import RunFolder, read_log
from ralph.store.journal import read_entries
from ralph.store.register import Listed, run_at

RedactText = Callable[[str], str]
MAX_LINES = 20_000
MAX_LINE = 500
MAX_TOTAL = 300_000  # characters
MAX_PER_ITERATION = 24_000
MIN_PROMPT = 60  # fewer are useless
MAX_TASKS = 100
MAX_PATCH_LINES = 400  # per task


class PatchedFile(Struct):
    """A changed file with the lines of its patch. `was` is its earlier name, if it was renamed."""

    path: str
    added: int
    deleted: int
    lines: list[str] = []
    was: str = ""


class Patch(Struct, frozen=True):
    """A patch of one iteration (`number`) or of the whole run (None). `last` is the last iteration; `is_cut`: there is
    more."""

    number: int | None
    last: int
    files: list[PatchedFile]
    is_cut: bool


def patch_of(run: Listed, number: int | None) -> Patch:
    """Return the patch of an iteration, or of the whole run, even if its worktree was removed."""
    repo = repository_with_checkpoints(run)
    saved = Checkpoints(repo, run.id)
    last = max((int(checkpoint.name) for checkpoint in saved.all() if checkpoint.name.isdigit()), default=0)
    if not last:
        raise UserError(f"{nickname(run.id)} has not finished an iteration yet", "changes are saved after each one")
    chosen = min(number, last) if number else None
    before, after = saved.around(chosen) if chosen else saved.ends()
    files, is_cut = files_in(patch(repo, before, after), Redactor(secret_values(os.environ)).text)
    return Patch(chosen, last, files, is_cut)


def files_in(chunks: Iterable[bytes], redact: RedactText = redact_text) -> tuple[list[PatchedFile], bool]:
    """Return the files of a patch, and whether it was cut."""
    files: list[PatchedFile] = []
    in_head = True
    for count, raw in enumerate(lines_in(chunks)):
        if count >= MAX_LINES:
            return files, True
        line = redact(clean(raw.decode("utf-8", "replace"))).expandtabs(4)[:MAX_LINE]
        if line.startswith("diff --git "):
            in_head = True
            files.append(PatchedFile(line.rpartition(" b/")[2], 0, 0, []))
        elif not files:
            continue
        elif in_head and line.startswith(("rename to ", "+++ b/")):
            files[-1].path = line.partition(" ")[2].removeprefix("to ").removeprefix("b/").rstrip()
        elif in_head and line.startswith("rename from "):
            files[-1].was = line.removeprefix("rename from ")
        elif not in_head or line.startswith(("@@", "Binary files ")):
            in_head = False
            files[-1].lines.append(line)
            files[-1].added += line.startswith("+")
            files[-1].deleted += line.startswith("-")
    return files, False


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


class Evidence(Struct, kw_only=True):
    """The evidence of one iteration. `tails` are the last lines of each failed check, by name."""

    prompt: str = ""
    patch: Sequence[PatchedFile] = ()
    patch_is_cut: bool = False
    tails: dict[str, str] = {}


def evidence_of(folder: RunFolder, history: RunHistory, env: Mapping[str, str]) -> dict[int, Evidence]:
    """Return the evidence of each iteration by number. All iterations share one size limit.

    The secrets in `env` are redacted, also in files that the agent wrote.
    """
    redact = Redactor(secret_values(env)).text
    room = min(MAX_TOTAL // max(len(history.iterations), 1), MAX_PER_ITERATION)
    tails = _failed_checks(folder.journal, room, redact)
    evidence = {iteration.number: Evidence(tails=tails.get(iteration.number, {})) for iteration in history.iterations}
    most = room // 6
    for number, evidence_now in evidence.items() if most >= MIN_PROMPT else ():
        with suppress(OSError):  # an agent may have put something else in its place
            prompt = read_log(folder.path, number, "prompt.md", 200_000).data.decode("utf-8", "replace")
            evidence_now.prompt = both_ends(_printable(prompt, redact), most, "\n\n… [cut] …\n\n")
    trees = history.trees()
    trees.pop(0, None)
    patches = compare_trees(history, trees, lambda repository, pairs: patches_between(repository, pairs, room // 2))
    for number, (data, is_cut) in patches.items():
        evidence[number].patch, _ = files_in([data], redact)
        evidence[number].patch_is_cut = is_cut
    return evidence


def _failed_checks(journal: Path, room: int, redact: RedactText) -> dict[int, dict[str, str]]:
    """Return the last lines of each failed check, by the number of the iteration and the check's name."""
    tails_of = {}
    for entry in read_entries(journal):
        event = entry.event()
        if isinstance(event, e.IterationFinished | e.FilesAccepted):
            failed = [check for check in event.record.checks if not check.passed]
            each = min(room // 6 // max(len(failed), 1), 3000)
            tails = ((short(check.name, 200), _printable(check.tail, redact)) for check in failed)
            tails_of[event.iteration] = {name: tail(text, each, "…") for name, text in tails}
    return tails_of


def _printable(text: str, redact: RedactText) -> str:
    return redact(clean(text)).expandtabs(4).strip("\n")


def task_evidence(run: Listed, history: BacklogHistory, env: Mapping[str, str]) -> dict[str, Evidence]:
    """Return failed checks and changes by task key, for the tasks whose run is on this machine."""
    evidence = {}
    for key, job in [*history.board.jobs.items()][:MAX_TASKS]:
        task_run = run_at(Path(run.place).parent / job.run) if job.run else None
        if task_run:
            with suppress(UserError):
                evidence[key] = _evidence_of_task(task_run, env)
    return evidence


def _evidence_of_task(run: Listed, env: Mapping[str, str]) -> Evidence:
    history = history_of(run.folder)
    tails = _failed_checks(run.folder.journal, MAX_PER_ITERATION, Redactor(secret_values(env)).text)
    evidence = Evidence(tails=tails.get(history.finished, {}))
    with suppress(UserError):
        patch = patch_of(run, None)
        room = MAX_PATCH_LINES
        evidence.patch_is_cut = patch.is_cut or sum(len(file.lines) for file in patch.files) > room
        for file in patch.files:
            file.lines, room = file.lines[:room], max(room - len(file.lines), 0)
        evidence.patch = patch.files
    return evidence
