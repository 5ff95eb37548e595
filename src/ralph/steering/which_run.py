"""Which run does a person mean? The one that is named, the one at work here, or the only one that makes sense."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ralph.core.events import RunStarted
from ralph.errors import UserError
from ralph.records.journal import recall, unreadable
from ralph.records.register import Listed, recorded_in, runs
from ralph.repository.git import Repository, repository

Objection = Callable[[Listed], str]
"""Why a run cannot be meant, as the end of a sentence that begins with its name; nothing where it can."""

_ALL = "`ralph ps -a` lists all runs"


def workspace_around(folder: Path) -> Path:
    """The nearest folder in which something was run, from this one up to the top of its repository; else this one."""
    places = (folder, *folder.parents)
    tops = [at for at, place in enumerate(places) if (place / ".git").exists()]
    inside = places[: tops[0] + 1] if tops else places[:1]
    return next((place for place in inside if (place / ".ralph" / "runs").is_dir()), folder)


def which_run(
    name: str, here: Path, objection: Objection = lambda run: "", env: Mapping[str, str] = os.environ
) -> Listed:
    """The run called `name` (any part of its id that only one has), or the one that makes sense without a name."""
    try:
        local = recorded_in(here / ".ralph")  # oldest first
    except PermissionError:
        whose = owner(here / ".ralph" / "runs")
        raise UserError(f"the runs in {here} belong to {whose}", f"only {whose} may look at them") from None
    kept_here = {run.id for run in local}
    try:
        others = [run for run in runs(env) if run.id not in kept_here]
    except UserError:  # where the list of all cannot be read, the runs that are kept here can be meant all the same
        if not local:
            raise
        others = []
    known = [*others, *local]
    # What works here may be kept elsewhere: a task's runs are in the task's folder.
    local = sorted((*local, *(run for run in others if run.facts.workspace == str(here))), key=lambda run: run.id)
    return _named(name, known, objection) if name else _obvious(local, known, here, objection)


def _named(name: str, known: list[Listed], objection: Objection) -> Listed:
    matching = [run for run in known if run.id == name]
    if not matching:  # the latest run for an item of a backlog, by the item's key
        of_item = [run for run in known if run.facts.item and run.facts.item == name.removeprefix("#")]
        matching = sorted(of_item, key=lambda run: run.id)[-1:] or [run for run in known if name in run.id]
    if not matching:
        raise UserError(f"there is no run {name!r}", _on_record(known))
    fitting = [run for run in matching if not objection(run)]
    if len(fitting) == 1:
        return fitting[0]
    if len(matching) == 1:
        raise UserError(f"run {matching[0].id} {objection(matching[0])}", _ALL)
    raise UserError(f"{name!r} may mean {_names(fitting or matching)}", "give more of the id")


def _obvious(local: list[Listed], known: list[Listed], here: Path, objection: Objection) -> Listed:
    # Who speaks of a task or a backlog means the whole, not what was started for a part of it.
    at_work = [run for run in local if run.is_alive and not run.is_part and not objection(run)]
    if len(at_work) > 1:
        raise UserError(f"several runs may be meant: {_names(at_work)}", "name one; `ralph ps` says what they do")
    latest_first = sorted(local, key=lambda run: (run.is_alive, not run.is_part))[::-1]
    # One after the other: an objection may take as long as the run's journal is.
    if found := next((run for run in (*at_work, *latest_first) if not objection(run)), None):
        return found
    elsewhere = [run for run in known if run.is_alive and not run.is_part and not objection(run)]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        raise UserError(f"several runs may be meant: {_names(elsewhere)}", "name one; `ralph ps` says what they do")
    if local:
        last = max(reversed(local), key=lambda run: not run.is_part)
        raise UserError(f"run {last.id}, the last one in {here}, {objection(last)}", _ALL)
    raise UserError(f"nothing has been run in {here}", _on_record(known))


def refuse_foreign(run: Listed) -> None:
    """Only the user who started a run may steer it: another's note would be a file that it cannot read."""
    whose = owner(run.place)
    if whose != _name_of(os.geteuid()):
        raise UserError(f"run {run.id} belongs to {whose}", f"only {whose} may steer it")


def owner(path: str | Path) -> str:
    try:
        return _name_of(os.stat(path).st_uid)
    except PermissionError:
        return "another user"


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _names(known: list[Listed]) -> str:
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return ", ".join(run.id for run in known[-5:]) + more


def _on_record(known: list[Listed]) -> str:
    return f"on record: {_names(known)}" if known else 'start one with `ralph run "GOAL"`'


def has_not_begun(run: Listed) -> str:
    try:
        return "" if run.facts.kind == "work" or recall(run.folder.journal).started else "never began"
    except OSError as error:
        raise unreadable(run.folder.journal, error) from None


def repository_of(run: Listed) -> Repository:
    """Where the run worked: the repository around its workspace, or the worktree that stood in for it."""
    started = _beginning_of(run)
    if not started.worktree:
        return repository(_workspace_of(run, started))
    if not os.path.isdir(started.worktree):
        raise UserError(
            f"the run's worktree is gone: {started.worktree}", f"its work is on the branch {started.branch}"
        )
    return repository(Path(started.worktree))


def saved_in(run: Listed) -> Repository:
    """The repository that holds what the run saved after each iteration: that stays when its worktree goes."""
    started = _beginning_of(run)
    is_gone = started.worktree and not os.path.isdir(started.worktree)
    return repository(_workspace_of(run, started)) if is_gone else repository_of(run)


def _beginning_of(run: Listed) -> RunStarted:
    try:
        started = recall(run.folder.journal).started
    except OSError as error:
        raise unreadable(run.folder.journal, error) from None
    if started is None:
        raise UserError(f"the journal of {run.id} does not say where it worked", "name a run; `ralph ps -a` lists them")
    return started


def _workspace_of(run: Listed, started: RunStarted) -> Path:
    """Where the record of the run is: it may have been moved with its workspace, and the name of a folder need not be
    text that a journal can hold. The record of a task lies elsewhere."""
    ralph = run.folder.path.parents[1]
    return ralph.parent if ralph.name == ".ralph" and not started.task else Path(started.workspace)
