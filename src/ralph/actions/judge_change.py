"""`ralph judge`: find out what is judged against what and by which checks, judge it, and write the receipt."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from ralph import __version__
from ralph.actions.base_settings import SettingsAtBase, settings_at_base
from ralph.actions.review_change import review_change
from ralph.core.events import Event, Notice, TellAll
from ralph.core.judgement import Judgement
from ralph.core.receipt import JudgedCommit, JudgedExam, JudgedReview, Receipt, receipt_cells
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import make_folder, read_given, save_file, state_folder, temporary_folder
from ralph.git.change_range import ChangeRange, find_range, require_commit
from ralph.git.checkpoints import Checkpoints
from ralph.git.client import Git, require_git, version_line
from ralph.history.feed import repository_with_checkpoints
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline
from ralph.run import request as requests
from ralph.settings import Settings, override
from ralph.settings.trust import refuse_untrusted
from ralph.store.folder import RunFolder, new_run_id
from ralph.store.register import Listed, find_run
from ralph.verdict.context import Context
from ralph.verdict.exam_commands import find_exams, validate_exams
from ralph.verdict.judge import Change, JudgedChange, Questions, judge

RECEIPTS = "judgements"
RIGHTS = "the judged code runs with your rights: for other people's work --sandbox"


class JudgeRequest(Struct, frozen=True, kw_only=True):
    """What somebody wants to have judged."""

    workspace: Path
    word: str = ""
    """A base, `A..B`, `A...B` or a run; empty: what comes after the default branch."""
    head: str = ""
    overrides: Mapping[str, Any] = {}
    """Settings of the options, in the keys of settings.json."""
    options: Mapping[str, str] = {}
    """The options that set them, for messages."""


class JudgePlan(Struct, frozen=True, kw_only=True):
    """What will be judged, and by what."""

    home: Git
    change: ChangeRange
    settings: Settings
    files: int
    """How many files the change touches."""
    notices: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The line that says what is judged against what."""
        return self.change.describe(self.files)


class JudgeResult(Struct, frozen=True):
    """A receipt, and the file in the state folder that has it. `hint` says what to do if it could not judge."""

    receipt: Receipt
    path: str
    hint: str = ""


def plan_judgement(
    request: JudgeRequest, deadline: Deadline, accept_settings: Callable[[str], bool] = lambda difference: False
) -> JudgePlan:
    """Return what will be judged; raise a UserError if there is nothing, or nothing to judge it by."""
    home = require_git(request.workspace, deadline)
    refuse_untrusted(request.workspace, os.environ, accept_settings)
    run = None if not request.word or ".." in request.word else _find_run(home, request)
    if run:
        home, change = _range_of_run(run)
        settings = override(requests.read(run.id).settings, dict(request.overrides))
        chosen = SettingsAtBase(settings)
        if not settings.checks and not settings.exams:
            raise UserError(f"run {run.id} had no check", f'name one: ralph judge {request.word} --check "CMD"')
    else:
        change = find_range(home, request.word, request.head)
        chosen = settings_at_base(home, change, request.overrides, env=os.environ, options=request.options)
    settings = replace(chosen.settings, grace=0.0, fail_fast=False, keep_children=False)
    validate_exams(settings, str(request.workspace))
    files = home.run("diff-tree", "-r", "-z", "--name-only", change.base, change.head).count(b"\0")
    notices = [*chosen.notices]
    if change.left_out:
        notices.append(f"too big or unreadable, and not judged: {', '.join(change.left_out[:3])}")
    if not settings.sandbox.enabled and _is_by_others(home, change):
        notices.append(RIGHTS)
    return JudgePlan(home=home, change=change, settings=settings, files=files, notices=tuple(notices))


def judge_planned(
    plan: JudgePlan,
    request: JudgeRequest,
    *,
    keeper: Keeper,
    deadline: Deadline,
    tell: TellAll,
    step: Callable[[int], None] = lambda number: None,
) -> JudgeResult:
    """Judge what was planned, and keep the receipt in the state folder."""
    settings, change = plan.settings, Change(plan.home, plan.change.base, plan.change.head)
    run_id = new_run_id(time.time())

    def tell_notices(*happened: Event) -> None:
        if notices := [event for event in happened if isinstance(event, Notice)]:
            tell(*notices)

    with temporary_folder() as temporary:
        context = Context(
            root=request.workspace,
            workspace=str(request.workspace),
            settings=settings,
            folder=RunFolder(Path(temporary) / ".ralph", run_id),
            keeper=keeper,
            tell=tell_notices,
            deadline=deadline,
        )
        questions = Questions(
            tests=settings.tests or "as-they-were",
            protect=settings.protect,
            review=(lambda cell: review_change(change, cell, context)) if settings.reviews else None,
            proves=settings.prove != "off",
        )
        try:
            judged, hint = judge(change, questions, context, step), ""
        except UserError as error:
            if deadline.interrupt.level:
                raise KeyboardInterrupt from None
            refusal = Judgement(verdict="could not judge", reasons=(error.message,))
            judged, hint = JudgedChange(judgement=refusal), error.hint
    receipt = _receipt(plan, judged, request.workspace)
    return JudgeResult(receipt, _keep(receipt, run_id), hint)


def _find_run(home: Git, request: JudgeRequest) -> Listed | None:
    """Return the run that the word names, if it names no commit."""
    if home.resolve(request.word):
        return None
    try:
        run = find_run(request.word, request.workspace)
    except UserError:
        require_commit(home, request.word)  # raises
        return None
    if request.head:
        raise UserError(f"{request.word} is a run, which has its own head", f"ralph judge {request.word}")
    return run


def _range_of_run(run: Listed) -> tuple[Git, ChangeRange]:
    if why := run.by_kind("is running" if run.is_alive else "", "is a backlog: name a task of it"):
        raise UserError(f"run {run.id} {why}", "ralph ps")
    home = repository_with_checkpoints(run)
    base, head = Checkpoints(home, run.id).ends()
    if home.tree_at(base) == home.tree_at(head):
        raise UserError(f"run {run.id} changed nothing", "ralph ps lists the others")
    return home, ChangeRange(base=base, head=head, tip=head, name=f"run {run.id}", since="its start")


def _is_by_others(home: Git, change: ChangeRange) -> bool:
    """Return whether the last commit of the change is by somebody else than the user."""
    if change.tip == change.base:
        return False
    identity = home.try_run("-c", "user.useConfigOnly=true", "var", "GIT_AUTHOR_IDENT").out.decode("utf-8", "replace")
    email = home.run("show", "-s", "--format=%ae", change.tip).decode("utf-8", "replace").strip()
    return f"<{email}>" not in identity


def _receipt(plan: JudgePlan, judged: JudgedChange, workspace: Path) -> Receipt:
    judgement, evidence, home = judged.judgement, judged.evidence, plan.home
    one_run, user_home = sum(check.duration for check in evidence.cells.head), os.path.expanduser("~")
    scripts = [program.script for program in find_exams(plan.settings, str(workspace))]
    hashes = {os.path.basename(script): _hash(script) for script in scripts}

    def shorten(texts: Iterable[str]) -> tuple[str, ...]:
        """Return texts with the project's folder as `.` and the home folder as `~`."""
        return tuple(text.replace(home.root, ".").replace(user_home, "~") for text in texts)

    return Receipt(
        verdict=judgement.verdict,
        exit_code=judgement.exit_code,
        reasons=shorten(judgement.reasons),
        looks=shorten(judgement.looks),
        notes=shorten(judgement.notes),
        left_out=judgement.left_out,
        title=plan.title,
        base=JudgedCommit(plan.change.base, home.tree_at(plan.change.base)),
        head=JudgedCommit(plan.change.head, home.tree_at(plan.change.head)),
        uncommitted=plan.change.has_uncommitted,
        files=plan.files,
        checks=shorten(check.command for check in plan.settings.checks),
        cells=receipt_cells(evidence.cells, lambda text: shorten([text])[0]),
        restored=judged.tests.plan.restored if judged.tests else (),
        removed=judged.tests.plan.removed if judged.tests else (),
        exams=tuple(JudgedExam(exam.name, hashes.get(exam.name, ""), exam.passed) for exam in evidence.exams),
        reviews=tuple(JudgedReview(each.name, each.passed, each.changes, each.problem) for each in evidence.reviews),
        untested=tuple(part.place for part in evidence.proof.untested) if evidence.proof else (),
        runs=judged.runs,
        seconds=round(judged.seconds, 2),
        ratio=round(judged.seconds / one_run, 1) if one_run else 0.0,
        copies="in-place" if judged.is_in_place else "plain",
        versions={
            "ralph": __version__,
            "git": version_line(home.root),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _hash(path: str) -> str:
    try:
        return sha256(read_given(path)).hexdigest()
    except OSError:
        return ""


def _keep(receipt: Receipt, run_id: str) -> str:
    folder = state_folder(os.environ, RECEIPTS)
    make_folder(folder)
    path = os.path.join(folder, f"{one_line(receipt.base.commit[:7])}-{run_id}.json")
    save_file(path, encode(receipt) + b"\n")
    return path
