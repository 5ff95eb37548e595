"""Proof: undo the parts of a change one at a time in a throwaway copy, and see whether any check fails."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.proof import Hunk, Part, Proof, hunks_worth_undoing, parse_diff, prove, without
from ralph.errors import UserError
from ralph.files import read_given
from ralph.git.checkpoints import diff_without_context
from ralph.git.client import Git
from ralph.verdict.checks import Checks
from ralph.verdict.context import Clock, Context
from ralph.verdict.copies import open_copy

MIN_LIMIT, LIMIT_FACTOR = 10.0, 3.0  # seconds; how much longer a run of the checks may take than the first one


def prove_change(home: Git, before: str, after: str, context: Context) -> Proof:
    """Return the proof of a change, between two commits of the user's repository, by the run's checks."""
    limit = math.inf

    def tell_notices(*happened: events.Event) -> None:
        """Leave out the events of checks, because these checks belong to no iteration."""
        if notices := [event for event in happened if isinstance(event, events.Notice)]:
            context.tell(*notices)

    def passes_without(parts: Sequence[Part], seconds: float) -> bool | None:
        """Return whether every check passes without these parts; None if that took longer than this many seconds."""
        nonlocal limit
        if limit < math.inf:  # the copy has been used
            copy.check_out(after)
        _undo(parts, folder)
        seconds = min(seconds, context.clock.time_left())
        clock = Clock(min(seconds, limit))
        settings = replace(copy.context.settings, fail_fast=True)
        inside = replace(copy.context, clock=clock, tell=tell_notices, settings=settings)
        checks = Checks(inside, settings.checks).run(0)
        if checks is None:
            raise UserError("interrupted", "`ralph prove` starts it again")
        passes = all(check.passed for check in checks)
        if not passes and seconds <= limit and clock.time_left() <= 0:
            return None
        if limit == math.inf:
            limit = LIMIT_FACTOR * clock.elapsed() + MIN_LIMIT
        return passes

    with open_copy(context, home, after) as copy:
        folder = Path(copy.worktree.path)
        found = parse_diff(diff_without_context(home, before, after))
        hunks = hunks_worth_undoing(found, {path: _read(folder / path) for path in {hunk.path for hunk in found}})
        if hunks:
            context.tell(events.ProofStarted(len(hunks)))
        return prove(hunks, passes_without, time.monotonic)


def _undo(parts: Sequence[Part], folder: Path) -> None:
    hunks: dict[str, list[Hunk]] = {}
    for part in parts:
        hunks.setdefault(part.path, []).extend(part.hunks)
    for path, undone in hunks.items():
        if undone[0].is_new_file:
            os.unlink(folder / path)
        else:
            (folder / path).write_bytes(without(_read(folder / path), undone).encode("utf-8", "surrogateescape"))


def _read(path: Path) -> str:
    return read_given(path).decode("utf-8", "surrogateescape")
