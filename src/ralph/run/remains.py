"""What is left of runs that ended long ago, and what of it may go? Records, checkpoints, merged worktrees and the
folders of demonstrations; never work that is nowhere else, and nothing of a run that lives."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.errors import UserError
from ralph.records.folder import is_occupied
from ralph.records.register import Listed, listed, registry, runs
from ralph.records.seal import break_seal
from ralph.repository import configuration, worktrees
from ralph.repository.git import Repository, find_repository
from ralph.repository.worktrees import Worktree

DEMO = "ralph-demo-"


class Remains(Struct, frozen=True):
    """Of one run, or of a demonstration (then there is no run). `kept`: why it stays, if it does."""

    place: str
    run: Listed | None = None
    size: int = 0
    kept: str = ""


def remains(older: float, env: Mapping[str, str] = os.environ, below: str = "") -> list[Remains]:
    """What is older than so many seconds; of the workspaces `below` a folder alone, if one is named."""
    known, before = runs(env), time.time() - older
    at_work = {run.id for run in known if run.is_alive}
    old = [run for run in known if _is_old(run, before) and not {run.id, run.facts.work} & at_work]
    here = [run for run in old if f"{run.facts.workspace}/".startswith(f"{below}/" if below else "")]
    demos = [] if below else _demos(before)
    inside = tuple(f"{demo}/" for demo in demos)
    found = [
        Remains(run.place, run, _size(run.place), _unmerged(run)) for run in here if not run.place.startswith(inside)
    ]
    return [*found, *(Remains(demo, size=_size(demo)) for demo in demos)]


def take_away(found: Iterable[Remains], env: Mapping[str, str] = os.environ) -> list[Remains]:
    """Removes what may go; gives what had to stay after all: somebody may have gone on with it in the meantime."""
    stayed = []
    for one in found:
        try:
            if one.run:
                _remove_run(one.run, env)
            else:
                shutil.rmtree(one.place)
        except (UserError, OSError) as error:
            stayed.append(Remains(one.place, one.run, one.size, str(error)))
    _drop_dead_links(env)
    return stayed


def _is_old(run: Listed, before: float) -> bool:
    last = max(run.facts.changed, run.facts.began)
    return not run.is_alive and not run.is_child and 0 < last < before


def _demos(before: float) -> list[str]:
    folder = tempfile.gettempdir()
    names = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.startswith(DEMO)]
    return [
        path
        for path in names
        if os.lstat(path).st_uid == os.geteuid()
        and os.path.isdir(path)
        and not os.path.islink(path)
        and _last_change(path) < before
        and not is_occupied(Path(path))
    ]


def _last_change(path: str) -> float:
    return max(os.lstat(one).st_mtime for one in (path, f"{path}/.ralph") if os.path.lexists(one))


def _size(place: str) -> int:
    total = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):
                total += os.lstat(f"{folder}/{name}").st_size
    return total


def _repository_of(run: Listed) -> Repository | None:
    place = Path(run.place).parents[2]
    return find_repository(place) if place.is_dir() else None


def _trees(run: Listed, home: Repository) -> list[Worktree]:
    """The worktrees of a run, or of a backlog's items, that have a branch."""
    names = [f"refs/heads/{run.facts.branch}"] if run.facts.branch else []
    names += [f"refs/heads/ralph/{run.id}", f"refs/heads/ralph/{run.id.rpartition('-')[2]}/"]
    out = home.git("for-each-ref", "--format=%(refname:lstrip=2)", *names).decode("utf-8", "replace")
    paths = _checked_out(home)
    return [Worktree(paths.get(name, ""), name, paths.get(name, ""), home.root) for name in out.splitlines()]


def _checked_out(home: Repository) -> dict[str, str]:
    """Where each branch is checked out."""
    found, path = {}, ""
    for line in home.git("worktree", "list", "--porcelain").decode("utf-8", "surrogateescape").splitlines():
        if line.startswith("worktree "):
            path = line.partition(" ")[2]
        elif line.startswith("branch refs/heads/"):
            found[line.removeprefix("branch refs/heads/")] = path
    return found


def _unmerged(run: Listed) -> str:
    """Why the work of a run would be lost with it, if it would."""
    try:
        home = _repository_of(run)
        for tree in _trees(run, home) if home else ():
            worktrees.refuse_if_anything_is_lost(tree)
    except UserError as error:
        return error.message
    return ""


def _remove_run(run: Listed, env: Mapping[str, str]) -> None:
    now = listed(run.place)
    if now and now.is_alive:
        raise UserError(f"run {run.id} has gone on")
    home = _repository_of(run)
    if home:
        for tree in _trees(run, home):
            worktrees.remove(tree)
        refs = home.git("for-each-ref", "--format=delete %(refname)", f"refs/ralph/{run.id}/")
        home.git("update-ref", "--stdin", stdin=refs)
    shutil.rmtree(run.place)
    _forget(run.id, env)


def _forget(run_id: str, env: Mapping[str, str]) -> None:
    """What lies outside the workspace for the sake of a run goes with it."""
    with suppress(OSError):
        os.unlink(f"{registry(env)}/{run_id}")
    break_seal(run_id, env)
    configuration.forget(run_id, env)


def _drop_dead_links(env: Mapping[str, str]) -> None:
    """Links of the register to runs whose workspace is gone."""
    folder = registry(env)
    with suppress(OSError):
        for name in os.listdir(folder):
            if os.path.islink(f"{folder}/{name}") and not os.path.exists(f"{folder}/{name}"):
                _forget(name, env)
