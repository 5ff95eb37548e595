"""`judge(...)` from Python: the verdict about a change, as a receipt."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ralph.actions.judge_change import JudgeRequest, judge_planned, plan_judgement
from ralph.core.findings import TestsRule
from ralph.core.receipt import Receipt
from ralph.errors import UserError
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.process.streams import open_standard_streams
from ralph.settings import PRESET_OF


def judge(
    base: str = "",
    *,
    head: str = "",
    workspace: str | os.PathLike[str] = ".",
    checks: Sequence[str] = (),
    exams: Sequence[str] = (),
    protect: Sequence[str] = (),
    tests: TestsRule = "as-they-were",
    setup: str = "",
    prove: bool = False,
    sandbox: bool = False,
) -> Receipt:
    """Judge a change as `ralph judge` does, and return the receipt. Raise a UserError if there is nothing to judge.

    `base` is a commit, `A..B`, or a run; empty: what came after the default branch. What is not given comes from the
    settings and the project at the base.
    """
    for name, value in (("checks", checks), ("exams", exams), ("protect", protect)):
        if isinstance(value, str):
            raise UserError(f"{name}: expected a list, got {value!r}", "put it into a list")
    open_standard_streams()
    overrides: dict[str, Any] = {"preset": PRESET_OF["judge"], "tests": tests}
    overrides |= {"checks": [*checks]} if checks else {}
    overrides |= {"exams": [*exams]} if exams else {}
    overrides |= {"protect": [*protect]} if protect else {}
    overrides |= {"setup": setup} if setup else {}
    overrides |= {"prove": "report"} if prove else {}
    overrides |= {"sandbox": {"enabled": True}} if sandbox else {}
    request = JudgeRequest(workspace=Path(workspace).resolve(), word=base, head=head, overrides=overrides)
    with Keeper.start() as keeper, Interrupt() as interrupt:
        deadline = Deadline(interrupt, grace=0.0)
        plan = plan_judgement(request, deadline)
        return judge_planned(plan, request, keeper=keeper, deadline=deadline, tell=lambda *event: None).receipt
