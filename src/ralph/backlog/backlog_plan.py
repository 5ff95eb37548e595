"""A backlog before it starts: `load_backlog` reads and validates it, `prepare` returns the frozen `BacklogPlan`, which
`play` in backlog_play.py plays."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.backlog.backlog_content import BacklogContent
from ralph.backlog.backlog_order import ORDER, BacklogOrder, read
from ralph.backlog.backlog_source import BacklogSource, read_list, source_of
from ralph.errors import UserError
from ralph.git import merging
from ralph.git.client import Git, require_git
from ralph.git.remote import Remote, skipped_push_hook
from ralph.git.worktrees import checked_out_at
from ralph.run.agents import choices
from ralph.settings import Settings, override
from ralph.settings.schema import ExamCommand
from ralph.settings.trust import refuse_untrusted
from ralph.store.folder import RunFolder, new_run_id
from ralph.verdict.copies import find_copy_method
from ralph.verdict.exam_commands import COULD_READ, validate_exams
from ralph.verdict.sandboxing import validate_sandbox


class BacklogRequest(Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    workspace: str
    backlog: str
    """A file, a folder, or the list of a tracker such as `github:`."""
    settings: Settings
    """Those of each loop."""
    target: str = ""
    """The local branch to merge into, by default a new one."""
    push: str | None = None
    """Merge into this branch, REMOTE/BRANCH, instead of a local one. Empty: the upstream of the current branch."""
    max_cost: float | None = None
    max_time: float | None = None
    is_shared: bool = False


class LoadedBacklog(Struct, frozen=True, kw_only=True):
    """A backlog that can be run. Nothing has been created or fetched."""

    request: BacklogRequest
    repository: Git
    source: BacklogSource
    content: BacklogContent
    settings: Settings
    """With the checks of a plan."""

    @property
    def is_done(self) -> bool:
        return all(task.done for task in self.content.tasks)


class BacklogPlan(Struct, frozen=True, kw_only=True):
    """A backlog run that can start or be resumed: its order, the tasks as they are listed now, and what the user should
    know first."""

    order: BacklogOrder
    content: BacklogContent
    notice: str = ""


def load_backlog(
    request: BacklogRequest, accept_settings: Callable[[str], bool] = lambda difference: False
) -> LoadedBacklog:
    """Read a backlog. Raise a UserError for anything that cannot work.

    `accept_settings` gets the settings that changed during an earlier run, as a diff, and returns whether the user
    accepts them.
    """
    if request.max_cost is not None and request.max_cost <= 0:
        raise UserError(f"--max-cost {request.max_cost} is too small", "give a number above 0")
    workspace = Path(request.workspace)
    repository = find_repository(workspace)
    source = source_of(request.backlog, workspace, repository)
    content = read_list(source, workspace)
    refuse_untrusted(workspace, os.environ, accept_settings)
    settings = with_checks(request.settings, content)
    exams = _exams_of(settings, content)
    if exams and request.is_shared:
        raise UserError("--exam doesn't work with --db: its script is on one machine only", "leave one of them out")
    validate_exams(replace(settings, exams=exams), request.workspace)
    choices(settings, os.environ, request.workspace)  # fail now if an agent is missing
    return LoadedBacklog(request=request, repository=repository, source=source, content=content, settings=settings)


def prepare(backlog: LoadedBacklog) -> BacklogPlan:
    """Return the plan of a new run. Its target is fetched if it is on a remote."""
    order, settings = _new_order(backlog), backlog.settings
    has_exams = bool(_exams_of(settings, backlog.content))
    notices = filter(
        None,
        (
            _uncommitted_notice(backlog.repository),
            skipped_push_hook(backlog.repository) if order.remote and not order.remote.runs_hooks else "",
            COULD_READ if has_exams and not settings.sandbox.enabled else "",
        ),
    )
    return BacklogPlan(order=order, content=backlog.content, notice="; ".join(notices))


def plan_to_resume(folder: RunFolder) -> BacklogPlan:
    """Return the plan for a backlog that was stopped, killed, or has parked tasks."""
    order = read(folder, ORDER, BacklogOrder)
    if order.is_shared:
        hint = f"`ralph work resume {order.name} --db URL` reopens it, `ralph worker --db URL` joins in"
        raise UserError(f"backlog {order.name} is shared with other machines", hint)
    return BacklogPlan(order=order, content=read_list(order.source, Path(order.workspace)))


def _exams_of(settings: Settings, content: BacklogContent) -> tuple[ExamCommand, ...]:
    return (*settings.exams, *(ExamCommand(command) for task in content.tasks for command in task.exams))


def find_repository(workspace: Path) -> Git:
    """Return the repository around the workspace; raise a UserError if no backlog can run in it."""
    repository = require_git(workspace)
    merging.refuse_old_git(repository.root)
    if not repository.resolve("HEAD"):
        raise UserError("there is no commit yet to start from", "commit once, then start again")
    if repository.resolve("refs/heads/ralph"):
        raise UserError("a branch named ralph prevents branches named ralph/…", "rename it: git branch -m ralph old")
    return repository


def with_checks(settings: Settings, reading: BacklogContent) -> Settings:
    """Return the settings with the checks of a plan; raise a UserError if there are none, because nothing could be
    verified.
    """
    own = [check for check in reading.checks if check not in {other.command for other in settings.checks}]
    if own:
        checks = [{"command": g.command, "hint": g.hint, "failAction": g.fail_action} for g in settings.checks]
        settings = override(settings, {"checks": [*checks, *({"command": command} for command in own)]})
    if not settings.checks:
        raise UserError("no checks given", 'the gate needs at least one: --check "CMD"')
    return settings


def _new_order(backlog: LoadedBacklog) -> BacklogOrder:
    """Return the order of a new run with an unused name and its target: a local branch, or one on a remote."""
    request, repository, settings = backlog.request, backlog.repository, backlog.settings
    if settings.sandbox.enabled:
        validate_sandbox(settings, request.workspace, os.environ, is_in_process=False)
    find_copy_method(settings)
    name = ""
    while not name or repository.run(
        "for-each-ref", "--count=1", f"refs/heads/ralph/{name}", f"refs/heads/ralph/{name}/"
    ):
        run_id = new_run_id(time.time())  # `ralph/x` and `ralph/x/y` cannot both be branches
        name = run_id[-4:]
    target, remote = request.target or f"ralph/{name}/merged", None
    if request.push is not None:
        remote = replace(_parse_remote(repository, request.push), runs_hooks=not settings.sandbox.enabled)
        remote.fetch(repository)
    return BacklogOrder(
        id=run_id,
        name=name,
        workspace=request.workspace,
        source=backlog.source,
        settings=settings,
        target=target,
        base=repository.resolve(remote.ref) if remote else _find_base(repository, target),
        remote=remote,
        slots=settings.work.jobs,
        returns=settings.work.returns,
        allow_red=settings.work.allow_red,
        max_cost=request.max_cost,
        max_time=request.max_time,
        version=__version__,
    )


def _find_base(repository: Git, target: str) -> str:
    """Return the commit that the target starts from. A branch that is checked out is never moved."""
    if repository.try_run("check-ref-format", "--branch", target).code:
        raise UserError(f"{target!r} isn't a valid branch name", "name one with --target BRANCH")
    if place := checked_out_at(repository, target):
        raise UserError(
            f"{target} is checked out in {place}, and a branch that is checked out is never moved",
            f"leave --target out and merge afterwards, or merge into the remote's branch with --push=REMOTE/{target}",
        )
    return repository.resolve(f"refs/heads/{target}") or repository.resolve("HEAD")


def _parse_remote(repository: Git, word: str) -> Remote:
    """Parse `REMOTE/BRANCH`; the default is the upstream of the current branch."""
    if not word:
        answer = repository.try_run("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
        word = answer.out.decode("utf-8", "replace").strip()
        if answer.code or not word:
            raise UserError("this branch has no upstream to push to", "name one with --push=REMOTE/BRANCH")
    remotes = repository.run("remote").decode("utf-8", "replace").split()
    for name in sorted(remotes, key=len, reverse=True):
        if word.startswith(f"{name}/") and word != f"{name}/":
            return Remote(name, word.removeprefix(f"{name}/"))
    listed = ", ".join(remotes) or "none"
    raise UserError(f"--push={word}: expected REMOTE/BRANCH", f"remotes here: {listed}")


def _uncommitted_notice(repository: Git) -> str:
    """Return a notice if the user's tree has uncommitted changes."""
    out = repository.run("--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=no")
    count = len([line for line in out.split(b"\0") if line])
    if not count:
        return ""
    changes = "an uncommitted change is" if count == 1 else f"{count} uncommitted changes are"
    return f"{changes} left out: the loops start from the last commit"
