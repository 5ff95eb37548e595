"""`ralph clean`: remove the records, checkpoints and merged worktrees of old runs, demos, and what killed gits have
left.

Work that exists nowhere else stays, and so does everything of a running run.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.actions.run_worktree import repository_of_run
from ralph.core.text import nickname
from ralph.errors import UserError
from ralph.files import AT_WORK, DEMO, DEMO_EXAM, remove_tree, state_folder
from ralph.git import worktrees
from ralph.git.client import Git, look_folder
from ralph.git.locks import update_refs
from ralph.git.worktrees import Worktree, worktree_named
from ralph.store.folder import is_occupied, remove_orders
from ralph.store.register import STATE, Listed, run_at, runs

MAX_GIT_TIME = 3600.0  # seconds; no git runs longer, so anything younger may be in use


class Leftover(Struct, frozen=True):
    """Something that can be removed: a run, or a folder outside any workspace (then `run` is None). `kept`: why it has
    to stay."""

    place: str
    run: Listed | None = None
    size: int = 0
    kept: str = ""


def find_leftovers(older: float, below: str = "") -> list[Leftover]:
    """Return what was left more than `older` seconds ago; with `below`, only in the workspaces in that folder."""
    listed, before = runs(), time.time() - older
    running = {run.id for run in listed if run.is_alive}
    ended = [run for run in listed if 0 < max(run.facts.changed, run.facts.began) < before and not run.is_child]
    old = [run for run in ended if not {run.id, run.facts.work} & running]
    here = [run for run in old if f"{run.facts.workspace}/".startswith(f"{below}/" if below else "")]
    apart = [] if below else _temporary_folders(before)
    inside = tuple(f"{folder}/" for folder in apart)
    leftovers = [
        Leftover(run.place, run, _size(run.place), _explain_unmerged(run))
        for run in here
        if not run.place.startswith(inside)
    ]
    return [*leftovers, *(Leftover(folder, size=_size(folder)) for folder in apart)]


def remove_leftovers(leftovers: Iterable[Leftover]) -> list[Leftover]:
    """Remove leftovers; return those that have to stay, for example because the run was resumed."""
    stayed = []
    for leftover in leftovers:
        try:
            if leftover.run:
                _remove_run(leftover.run)
            else:
                remove_tree(leftover.place)
        except (UserError, OSError) as error:
            stayed.append(Leftover(leftover.place, leftover.run, leftover.size, str(error)))
    folder = state_folder(os.environ, "runs")  # has links to runs; remove those whose workspace is gone
    with suppress(OSError):
        for name in os.listdir(folder):
            if os.path.islink(f"{folder}/{name}") and not os.path.exists(f"{folder}/{name}"):
                _forget(name)
    return stayed


def _temporary_folders(before: float) -> list[str]:
    """Return demos, and temporary folders that killed gits have left."""
    folder, folders = tempfile.gettempdir(), []
    idle = min(before, time.time() - MAX_GIT_TIME)
    for name in sorted(os.listdir(folder)):
        if name.startswith((DEMO, AT_WORK)):
            path, until = f"{folder}/{name}", before if name.startswith(DEMO) else idle
            with suppress(FileNotFoundError):  # it may be removed at this moment
                is_own = os.lstat(path).st_uid == os.geteuid() and os.path.isdir(path) and not os.path.islink(path)
                inside = [f"{path}/.ralph"] if os.path.lexists(f"{path}/.ralph") else []
                last = max(os.lstat(path_inside).st_mtime for path_inside in (path, *inside))
                if is_own and last < until and not is_occupied(Path(path.removesuffix(DEMO_EXAM))):
                    folders.append(path)
    return folders


def _size(place: str) -> int:
    """Return the size in bytes of what can be read: an agent may nest folders too deeply for a path."""
    total, folders = 0, [place]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _trees(run: Listed, home: Git) -> list[Worktree]:
    """Return the worktrees with a branch of a run or of a backlog's tasks. Their names are computed from the run's id,
    because an agent can edit the records."""
    names = (f"refs/heads/ralph/{run.id}", f"refs/heads/ralph/{nickname(run.id)}/")
    answer = home.run("for-each-ref", "--format=%(refname:lstrip=2) %(worktreepath)", *names)
    trees = []
    for line in answer.decode("utf-8", "surrogateescape").splitlines():
        branch, _, path = line.partition(" ")
        # Git no longer knows where the branch was if ralph was killed while it removed the worktree.
        path = path or worktree_named(home, branch.removeprefix("ralph").replace("/", "-"), branch).path
        trees.append(Worktree(path, branch, path, home))
    return trees


def _explain_unmerged(run: Listed) -> str:
    """Return why removing a run would lose work; "" if it wouldn't."""
    try:
        if home := repository_of_run(run):
            for tree in _trees(run, home):
                worktrees.refuse_if_anything_is_lost(tree)
    except UserError as error:
        return error.message
    return ""


def _remove_run(run: Listed) -> None:
    now = run_at(run.place)
    if now and now.is_alive:
        raise UserError(f"run {run.id} was continued")
    if home := repository_of_run(run):
        for tree in _trees(run, home):
            worktrees.remove(tree)
        refs = home.run("for-each-ref", "--format=delete %(refname)", f"refs/ralph/{run.id}/")
        update_refs(home, *refs.decode("utf-8", "surrogateescape").splitlines())
    remove_tree(run.place, last=STATE)
    _forget(run.id)


def _forget(run_id: str) -> None:
    """Remove the files of a run that are outside the workspace."""
    with suppress(OSError):
        os.unlink(f"{state_folder(os.environ, 'runs')}/{run_id}")
    remove_orders(run_id)
    with suppress(OSError):
        remove_tree(look_folder(run_id))
