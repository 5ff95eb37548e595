"""Proof: undo the parts of a change one at a time in a throwaway copy, and see whether any check fails."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ralph.core import events
from ralph.core.judgement import is_green
from ralph.core.proof import Hunk, Part, Proof, hunks_worth_undoing, parse_diff, prove, without
from ralph.errors import UserError
from ralph.files import read_given
from ralph.git.checkpoints import diff_without_context
from ralph.git.client import Git
from ralph.verdict.canary import BROKEN
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy
from ralph.verdict.verify import InterruptedChecks, TimeOverError, check_copy, time_limit


def prove_change(home: Git, before: str, after: str, context: Context) -> Proof:
    """Return the proof of a change, between two commits of the user's repository, by the run's checks."""
    limit = math.inf

    def passes_without(parts: Sequence[Part], seconds: float) -> bool | None:
        """Return whether every check passes without these parts; None if that took longer than this many seconds."""
        nonlocal limit
        if limit < math.inf:  # the copy has been used
            copy.check_out(after)
        _undo(parts, folder)
        began, seconds = time.monotonic(), min(seconds, context.clock.time_left())
        try:
            passes = is_green(check_copy(copy, min(seconds, limit), fail_fast=True))
        except InterruptedChecks as error:
            raise UserError(error.message, "`ralph prove` starts it again") from None
        except TimeOverError:
            if seconds <= limit:
                return None
            passes = False
        if limit == math.inf:
            limit = time_limit(time.monotonic() - began)
        return passes

    with open_copy(context, home, after) as copy:
        folder = Path(copy.worktree.path)
        hunks = _hunks(home, before, after, folder)
        if hunks:
            context.tell(events.ProofStarted(len(hunks)))
        return prove(hunks, passes_without, time.monotonic)


def is_read(home: Git, before: str, after: str, context: Context) -> bool:
    """Return whether a check notices that the changed code is broken. If none does, they don't read it."""
    with open_copy(context, home, after) as copy:
        folder = Path(copy.worktree.path)
        for path in {hunk.path for hunk in _hunks(home, before, after, folder)}:
            (folder / path).write_bytes(BROKEN)
        return not is_green(check_copy(copy, fail_fast=True))


def _hunks(home: Git, before: str, after: str, folder: Path) -> list[Hunk]:
    hunks = parse_diff(diff_without_context(home, before, after))
    return hunks_worth_undoing(hunks, {path: _read(folder / path) for path in {hunk.path for hunk in hunks}})


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
