"""What becomes of the work that a run did on a branch of its own? It is taken over, once its checks pass on exactly
what the merge would bring; or it is thrown away, and can be had back for a while."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from ralph.core import events
from ralph.core.model import Check
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import listed as named_all
from ralph.errors import UserError
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.records.folder import prepare, workspace_lock
from ralph.records.journal import recall
from ralph.records.register import Listed
from ralph.repository import landing, working_trees, worktrees
from ralph.repository.configuration import Configuration
from ralph.repository.git import Repository, commit_of, find_repository, obeying, refusal
from ralph.repository.worktrees import Worktree
from ralph.run import order as orders
from ralph.run.checks import CheckManner, Checks, Guard
from ralph.run.context import Context
from ralph.run.order import Order
from ralph.show.words import nickname, plural

DISCARDED = "discarded"
_IN_THE_WAY = "commit or stash what is in the way, then accept it again; nothing was changed"


class NotTaken(UserError):
    """The work cannot be taken over as it is: nobody's mistake, and nothing was changed."""


class TakenOver(Struct, frozen=True):
    """What was merged. `commit` is where the user's branch is now; `files` changed; `checks` passed before that."""

    branch: str
    commit: str
    files: int
    checks: int


def has_no_branch(run: Listed) -> str:
    """Why a run has nothing to take over or to throw away."""
    if run.is_alive:
        return "is at work"
    if run.facts.work:
        return f"is for an item of work {run.facts.work}, whose gate takes it over"
    if not run.facts.branch:
        return "worked in the tree itself: its work is there"
    root = _home_of(run)
    return "" if root and _tip(root, run.facts.branch) else f"has no branch any more: {run.facts.branch} is gone"


def take_over(
    run: Listed, keeper: Keeper, interrupt: Interrupt, tell: events.TellAll, env: Mapping[str, str] = os.environ
) -> TakenOver:
    """Merges the work of a run, and removes its worktree and its branch: all of it or nothing."""
    home, tree = _places(run)
    landing.refuse_old_git(home.root)
    with _alone(run, home, tree):
        commit, base = _candidate(run, home, tree), commit_of(home.root, "HEAD")
        order = orders.read(run.folder.path / "run.json")
        files = landing.changed_files(home, base, commit) if commit != base else ()
        checks: tuple[Check, ...] = ()
        try:
            if commit != base and order.settings.guardrails:
                working_trees.tree_at(home, tree.path, commit)
                checks = _checked(run, order, tree, keeper=keeper, interrupt=interrupt, tell=tell, env=env)
            answer = home.ask("merge", "--ff-only", "--quiet", commit)
            if answer.code:
                raise NotTaken(refusal(("merge",), answer, "cannot merge into your tree").message, _IN_THE_WAY)
        except BaseException:
            _back_to_branch(tree)
            raise
        if os.path.isdir(tree.path):
            working_trees.restore(tree.path)
        worktrees.remove(tree)
        return TakenOver(tree.branch, commit, len(files), len(checks))


def throw_away(run: Listed) -> str:
    """Removes the worktree and the branch of a run. What was there is kept under a name, which is given back."""
    home, tree = _places(run)
    with _alone(run, home, tree):
        if os.path.isdir(tree.path) and worktrees.unsaved(tree):
            worktrees.commit_all(tree, "what was not committed when it was discarded")
        tip = _tip(home.root, tree.branch)
        kept_as = f"refs/ralph/{run.id}/{DISCARDED}"
        home.git("-c", "core.logAllRefUpdates=false", "update-ref", kept_as, tip)
        if os.path.lexists(tree.path):
            home.git("worktree", "remove", "--force", "--force", "--", tree.path)
        home.git("worktree", "prune")
        home.git("update-ref", "-d", f"refs/heads/{tree.branch}", tip)
        return kept_as


@contextmanager
def _alone(run: Listed, home: Repository, tree: Worktree) -> Iterator[None]:
    """While entered, nobody else works in the worktree, and git obeys the settings from before the agent came."""
    configuration = Configuration(home)
    is_known = configuration.recall(run.id)
    with obeying(configuration if is_known else None):
        if not os.path.isdir(tree.workspace):
            yield
            return
        with workspace_lock(prepare(Path(tree.workspace)), run.id):
            yield


def _home_of(run: Listed) -> str:
    place = Path(run.place).parents[2]
    return str(place) if place.is_dir() else ""


def _places(run: Listed) -> tuple[Repository, Worktree]:
    """The user's own repository, and the worktree of the run, be it there or not."""
    started, root = recall(run.folder.journal).started, _home_of(run)
    home = find_repository(Path(root)) if root else None
    if started is None or home is None:
        raise UserError(f"the repository of run {run.id} is gone", "nothing can be taken over")
    inside = os.path.join(started.worktree, home.prefix).rstrip("/")
    return home, Worktree(started.worktree, started.branch, inside, home.root)


def _tip(root: str, branch: str) -> str:
    return commit_of(root, f"refs/heads/{branch}")


def _candidate(run: Listed, home: Repository, tree: Worktree) -> str:
    """The commit that the user's branch would be at: the work itself, or the merge with what came in the meantime."""
    if os.path.isdir(tree.path) and (unsaved := worktrees.unsaved(tree)):
        raise NotTaken(
            f"the worktree has work that is not committed: {unsaved}",
            f"go on with `ralph resume {nickname(run.id)}`, or commit it in {tree.path}",
        )
    base, tip = commit_of(home.root, "HEAD"), _tip(home.root, tree.branch)
    if worktrees.contains(home.root, base, tip):
        return base
    if worktrees.contains(home.root, tip, base):
        return tip
    merge = landing.merged(home, base, tip)
    if merge.conflict:
        raise NotTaken(
            f"{tree.branch} no longer merges: conflicts in {named_all(merge.conflict.files, 5)}",
            f"solve them yourself: git merge {tree.branch}; nothing was changed",
        )
    return landing.joined(home, merge.tree, (base, tip), f"Merge branch '{tree.branch}'")


def _checked(
    run: Listed,
    order: Order,
    tree: Worktree,
    *,
    keeper: Keeper,
    interrupt: Interrupt,
    tell: events.TellAll,
    env: Mapping[str, str],
) -> tuple[Check, ...]:
    """Runs the checks of the run once more, in its worktree and in its box, if it had one."""
    settings = order.settings
    context = Context(
        root=Path(tree.workspace),
        folder=run.folder,
        keeper=keeper,
        interrupt=interrupt,
        tell=tell,
        env=dict(env),
        redact=Redactor(secret_values(env)),
        max_log=settings.max_log,
        grace=0.0,  # who presses Ctrl-C here wants no merge
        began=time.monotonic(),
        boxes_checks=settings.sandbox.checks,
    )
    if settings.sandbox.enabled:
        from ralph.run.belongings import enclose

        context.box = enclose(context, settings, (), order.workspace)
    manner = CheckManner(timeout=settings.check_timeout, parallel=settings.parallel_checks)
    try:
        guards = [Guard(guardrail.command) for guardrail in settings.guardrails]
        done = Checks(context, guards, manner).run(0)
    finally:
        if context.box:
            context.box.close()
    if done is None or interrupt.level:
        raise KeyboardInterrupt
    if red := [check for check in done if not check.passed]:
        raise NotTaken(
            f"{len(red)} of {plural(len(done), 'check')} failed: {named_all([check.name for check in red], 3)}",
            f"go on with `ralph resume {nickname(run.id)}`, or look around in {tree.path}; nothing was changed",
        )
    return done


def _back_to_branch(tree: Worktree) -> None:
    """The worktree as it was before the merge was tried in it."""
    from ralph.repository.git import ask

    if os.path.isdir(tree.path):
        working_trees.restore(tree.path)
        ask(tree.path, "checkout", "-q", "--force", tree.branch)
