"""Where do loops and the gate work? Each in a worktree of its own, furnished with what git does not carry."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ralph.backlog.work_order import WorkOrder
from ralph.core.text import tail
from ralph.errors import UserError
from ralph.processes.process import Limits, run_command
from ralph.processes.program import Command
from ralph.repository import landing, worktrees
from ralph.repository.git import Repository, commit_of
from ralph.repository.worktrees import Worktree, alone, carry_over
from ralph.run.checks import enclosed
from ralph.run.context import Context

FURNISHED = "ralph-furnished"
"""A mark beside the index of a worktree that is complete. Without it nothing was ever done there: it is made anew."""
KEPT = 4000


def item_place(
    order: WorkOrder,
    repository: Repository,
    key: str,
    occupy: Callable[[Path], None],
    furnish: Callable[[Worktree], None],
) -> Worktree:
    """The worktree of an item, on its branch: as it was left, or from the target as it is now."""
    made = order.worktree_of(repository, key)
    with alone(repository):
        is_new = not os.path.exists(_mark(made))
        if is_new:
            _make(order, repository, made)
        occupy(Path(made.workspace))
    if is_new:
        furnish(made)
        Path(_mark(made)).touch()
    worktrees.heal(made.path, f"refs/heads/{made.branch}")
    return made


def align(order: WorkOrder, repository: Repository, key: str, tip: str) -> None:
    """Makes the item's branch here what it is on the remote, unless it has only gone on from there. What others have
    done since counts, and what was never pushed does not."""
    made = order.worktree_of(repository, key)
    here = commit_of(repository.root, f"refs/heads/{made.branch}")
    if here == tip or (here and not repository.ask("merge-base", "--is-ancestor", tip, here).code):
        return
    with alone(repository):
        _remove(made)
        repository.git("update-ref", f"refs/heads/{made.branch}", tip)


def _mark(made: Worktree) -> str:
    try:
        return os.path.join(worktrees.own_folder(made.path), FURNISHED)
    except OSError:
        return os.path.join(made.path, ".git", FURNISHED)


def _make(order: WorkOrder, repository: Repository, made: Worktree) -> None:
    import shutil

    if os.path.lexists(made.path):
        shutil.rmtree(made.path, ignore_errors=True)
        repository.git("worktree", "prune")
    words = ["worktree", "add", "-q", "--force", "--force"]  # what git remembers of one that is gone is in nobody's way
    if commit_of(repository.root, f"refs/heads/{made.branch}"):
        words += ["--", made.path, made.branch]
    else:
        words += ["--no-track", "-b", made.branch, "--", made.path, commit_of(repository.root, order.target_ref)]
    repository.git(*words)
    os.makedirs(made.workspace, exist_ok=True)


def furnish(order: WorkOrder, repository: Repository, made: Worktree, context: Context) -> None:
    """Brings the files of `.worktreeinclude`, then runs `--setup`: in a box, where there are boxes, for it may execute
    what an agent wrote."""
    carry_over(repository, made)
    if not order.setup:
        return
    command = Command(argv=("sh", "-c", order.setup), cwd=made.workspace, env=dict(os.environ))
    here = replace(context, root=Path(made.workspace))
    with enclosed(here, order.settings, order.workspace) as inside:
        command, interrupt = inside.boxed(command), context.interrupt
        output = run_command(context.keeper, command, head=0, tail=KEPT, limits=Limits(), interrupt=interrupt)
    if output.exit.code or output.exit.ended_by:
        said = tail(output.tail.strip(), 500, "…") or f"exit code {output.exit.code}"
        raise UserError(f"--setup failed in {made.workspace}: {order.setup}: {said}", "mend it, then start again")


def clear(order: WorkOrder, repository: Repository, landed: dict[str, str]) -> None:
    """Removes worktrees and branches of items that are in the target, unless somebody has put them to another use."""
    gone: dict[str, str] = {}
    for key, tip in landed.items():
        made = order.worktree_of(repository, key)
        if os.path.isdir(made.path) and not worktrees.is_clean(made.path, tip):
            continue
        _remove(made)
        gone[made.branch] = tip
    landing.drop_branches(repository, gone)


def _remove(made: Worktree) -> None:
    """As git would, the worktree first: without it, what git keeps of it counts for nothing."""
    import shutil

    own = ""
    with suppress(OSError):
        own = worktrees.own_folder(made.path)
    shutil.rmtree(made.path, ignore_errors=True)
    if own and os.path.basename(os.path.dirname(own)) == "worktrees":
        shutil.rmtree(own, ignore_errors=True)


def clear_leftovers(order: WorkOrder, repository: Repository, landed: dict[str, str], is_done: bool) -> None:
    """Removes what is left of items that have landed, and the gate's own worktree where all of them have."""
    prefix = order.branch_of("")
    out = repository.git("for-each-ref", "--format=%(refname:lstrip=2)", f"refs/heads/{prefix}")
    left = {name.removeprefix(prefix) for name in out.decode("utf-8", "replace").split()}
    if left & {*landed}:
        landing.heal_packed_refs(repository)
        clear(order, repository, {key: landed[key] for key in left & {*landed}})
    if is_done:
        _remove(order.gate_in(repository))
