"""What has to be known, and made, before a backlog can be worked off? Everything that could be wrong is said now."""

import os
import time
from pathlib import Path

from ralph import __version__
from ralph.backlog.backlog_source import PROGRAMS, BacklogSource, find
from ralph.backlog.lists import ListContent, sound
from ralph.backlog.work_order import WorkOrder
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.processes.program import AskedProgram
from ralph.records.folder import new_run_id
from ralph.repository import landing
from ralph.repository.git import Repository, commit_of, environment, repository
from ralph.repository.landing import Remote
from ralph.repository.worktrees import holder_of
from ralph.settings import Settings, amended

ANSWER = 60.0  # seconds for the program that keeps the list


def source_of(word: str, workspace: Path, home: Repository) -> BacklogSource:
    from msgspec.structs import replace

    source = find(word, workspace, Path(home.root))
    # A list that the last commit does not hold is not in git: no landing can tick it.
    paths = tuple(path for path in source.paths if not home.ask("cat-file", "-e", f"HEAD:{path}").code)
    return replace(source, paths=paths)


def read_list(source: BacklogSource, workspace: Path) -> ListContent:
    """What the list says now, with nothing wrong in it."""
    if source.is_in_files:
        return sound(source.read(), source.name)
    from shutil import which

    module = PROGRAMS[source.program]
    if which(module.PROGRAM) is None:
        raise UserError(f"{module.PROGRAM} is not installed", module.HINT)
    try:
        with AskedProgram.start(asking(source, workspace), environment()) as asked:
            said = asked.output(ANSWER)
    except TimeoutError:
        raise UserError(f"{module.PROGRAM} gave no answer within {ANSWER:.0f} seconds", "try again") from None
    if asked.code:
        raise UserError(f"{module.PROGRAM} cannot list them: {one_line(asked.error, 300)}", module.HINT)
    return sound(source.understood(said), source.name)


def read_list_at(commit: str, order: WorkOrder, home: Repository) -> ListContent:
    """What a list in git says at a commit: so much of it is seen from every clone."""
    listed = home.git("ls-tree", "-r", "-z", "--name-only", commit, "--", *order.source.paths)
    names = [name for name in listed.decode("utf-8", "replace").split("\0") if name]
    files = {name: home.git("cat-file", "blob", f"{commit}:{name}") for name in names}
    return sound(order.source.read_from(files), order.source.name)


def asking(source: BacklogSource, workspace: Path) -> tuple[str, ...]:
    """The command that asks the keeper of a list, in the workspace."""
    return ("sh", "-c", 'cd "$0" && exec "$@"', str(workspace), *source.command())


def home_of(workspace: Path) -> Repository:
    """The repository around the workspace, if a backlog can be worked off in it."""
    home = repository(workspace)
    landing.refuse_old_git(home.root)
    if not commit_of(home.root, "HEAD"):
        raise UserError("there is no commit yet to start from", "commit once, then start again")
    if commit_of(home.root, "refs/heads/ralph"):
        raise UserError("a branch named ralph is in the way of ralph/…", "rename it: git branch -m ralph my-ralph")
    return home


def with_checks(settings: Settings, reading: ListContent) -> Settings:
    """The settings with the checks that a plan brings; without any nothing could be verified."""
    own = [check for check in reading.checks if check not in {one.command for one in settings.guardrails}]
    if own:
        known = [{"command": g.command, "hint": g.hint, "failAction": g.fail_action} for g in settings.guardrails]
        settings = amended(settings, {"guardrails": [*known, *({"command": command} for command in own)]})
    if not settings.guardrails:
        raise UserError("no checks given", 'the gate needs at least one: --check "CMD"')
    return settings


def new_order(
    workspace: Path, home: Repository, source: BacklogSource, settings: Settings, **asked: object
) -> WorkOrder:
    """The order of a new work, under a name that no branch bears, with its target."""
    if settings.sandbox.enabled:
        from ralph.run.belongings import refuse_what_has_no_box

        refuse_what_has_no_box(settings, str(workspace), os.environ, is_in_process=False)
    run_id = new_run_id(time.time())
    while _is_taken(home, run_id[-4:]):
        run_id = new_run_id(time.time())
    name = run_id[-4:]
    remote = _remote(home, str(asked.pop("push"))) if "push" in asked else None
    target = str(asked.pop("target", "") or f"ralph/{name}/merged")
    if remote:
        remote.fetch(home)
        base = commit_of(home.root, remote.ref)
    else:
        base = _target(home, target)
    return WorkOrder(
        id=run_id,
        name=name,
        workspace=str(workspace),
        source=source,
        settings=settings,
        target=target,
        base=base,
        remote=remote,
        version=__version__,
        **asked,  # type: ignore[arg-type]
    )


def _is_taken(home: Repository, name: str) -> bool:
    """`ralph/x` and `ralph/x/y` cannot both be branches."""
    out = home.git("for-each-ref", "--count=1", f"refs/heads/ralph/{name}", f"refs/heads/ralph/{name}/")
    return bool(out.strip())


def _target(home: Repository, target: str) -> str:
    """The commit from which the branch will grow; one that is checked out is never moved."""
    if home.ask("check-ref-format", "--branch", target).code:
        raise UserError(f"{target!r} is no name for a branch", "name one with --target BRANCH")
    if held := holder_of(home, target):
        raise UserError(
            f"{target} is checked out in {held}, and a branch that is checked out is never moved",
            f"leave --target out and merge afterwards, or land on the remote's branch with --push=REMOTE/{target}",
        )
    parts = target.split("/")
    above = ["/".join(parts[:size]) for size in range(1, len(parts))]
    below = home.git("for-each-ref", "--count=1", "--format=%(refname:lstrip=2)", f"refs/heads/{target}/")
    for name in (*above, below.decode("utf-8", "replace").strip()):
        if name and commit_of(home.root, f"refs/heads/{name}"):
            raise UserError(f"the branch {name} is in the way of {target}", "name another with --target BRANCH")
    return commit_of(home.root, f"refs/heads/{target}") or commit_of(home.root, "HEAD")


def make_target(order: WorkOrder, home: Repository) -> None:
    """Makes the branch that will grow, unless it is there. Not before the work is on record: else nobody would know
    whose it is."""
    ref = f"refs/heads/{order.target}"
    if order.remote is None and not commit_of(home.root, ref):
        landing.advance(home, ref, order.base, "")


def _remote(home: Repository, asked: str) -> Remote:
    """`REMOTE/BRANCH`, or the upstream of the branch that is checked out."""
    if not asked:
        answer = home.ask("rev-parse", "--abbrev-ref", "--symbolic-full-name", "@{upstream}")
        asked = answer.out.decode("utf-8", "replace").strip()
        if answer.code or not asked:
            raise UserError("this branch has no upstream to push to", "name one with --push=REMOTE/BRANCH")
    remotes = home.git("remote").decode("utf-8", "replace").split()
    for name in sorted(remotes, key=len, reverse=True):
        if asked.startswith(f"{name}/") and asked != f"{name}/":
            return Remote(name, asked.removeprefix(f"{name}/"))
    known = ", ".join(remotes) or "there is none"
    raise UserError(f"--push={asked} names no remote's branch", f"write REMOTE/BRANCH; remotes here: {known}")


def unsaved(home: Repository) -> str:
    """A notice where the tree is not as committed."""
    out = home.git("--no-optional-locks", "status", "--porcelain", "-z", "--untracked-files=no")
    count = len([line for line in out.split(b"\0") if line])
    if not count:
        return ""
    changes = "an uncommitted change is" if count == 1 else f"{count} uncommitted changes are"
    return f"{changes} not part of it: the loops start from the last commit"


def settle(order: WorkOrder, key: str, commit: str) -> str:
    """Has the keeper of a list close what has landed, where it can; what stands in the way of that, if anything."""
    from ralph.backlog import beads

    if order.source.program != "beads":
        return ""
    words = ("sh", "-c", 'cd "$0" && exec "$@"', order.workspace, *beads.closing(key, commit))
    try:
        with AskedProgram.start(words, environment()) as asked:
            asked.output(ANSWER)
    except TimeoutError:
        return f"bd did not close {key}"
    return f"bd did not close {key}: {one_line(asked.error, 200)}" if asked.code else ""
