"""Find the run that a person means: the named one; without a name the one running here, else the latest one."""

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

from ralph.errors import UserError
from ralph.store.register import Listed, runs, runs_in
from ralph.store.stored_run import load_run

Objection = Callable[[Listed], str]
"""Returns why a run cannot be meant, as the end of a sentence that begins with its name; "" if it can."""

_ALL = "`ralph ps -a` lists all runs"


def find_workspace(folder: Path) -> Path:
    """Return the nearest folder with runs, from this one up to the top of its repository; else this one."""
    places = (folder, *folder.parents)
    tops = [at for at, place in enumerate(places) if (place / ".git").exists()]
    inside = places[: tops[0] + 1] if tops else places[:1]
    return next((place for place in inside if (place / ".ralph" / "runs").is_dir()), folder)


def find_run(
    name: str, here: Path, objection: Objection = lambda run: "", env: Mapping[str, str] = os.environ
) -> Listed:
    """Return the run called `name` (any unique part of its id), or the one that makes sense without a name."""
    try:
        local = runs_in(here / ".ralph")  # oldest first
    except PermissionError:
        whose = owner(here / ".ralph" / "runs")
        raise UserError(f"the runs in {here} belong to {whose}", f"only {whose} may look at them") from None
    kept_here = {run.id for run in local}
    try:
        others = [run for run in runs(env) if run.id not in kept_here]
    except UserError:  # without the list of all runs, those that are kept here can still be found
        if not local:
            raise
        others = []
    known = [*others, *local]
    # The runs of a task work here but are kept in the task's folder.
    local = sorted((*local, *(run for run in others if run.facts.workspace == str(here))), key=lambda run: run.id)
    return _find_named(name, known, objection) if name else _find_obvious(local, known, here, objection)


def _find_named(name: str, known: list[Listed], objection: Objection) -> Listed:
    matching = [run for run in known if run.id == name]
    if not matching:  # the latest run for a task of a backlog, by the task's key
        of_task = [run for run in known if run.facts.backlog_task and run.facts.backlog_task == name.removeprefix("#")]
        matching = sorted(of_task, key=lambda run: run.id)[-1:] or [run for run in known if name in run.id]
    if not matching:
        raise UserError(f"no such run: {name!r}", _hint(known))
    fitting = [run for run in matching if not objection(run)]
    if len(fitting) == 1:
        return fitting[0]
    if len(matching) == 1:
        raise UserError(f"run {matching[0].id} {objection(matching[0])}", _ALL)
    raise UserError(f"{name!r} is ambiguous: {_ids(fitting or matching)}", "type more of the id")


def _find_obvious(local: list[Listed], known: list[Listed], here: Path, objection: Objection) -> Listed:
    # Without a name, a person means a task or a backlog, not the runs that were started for parts of it.
    running = [run for run in local if run.is_alive and not run.is_part and not objection(run)]
    if len(running) > 1:
        raise UserError(f"several runs match: {_ids(running)}", "name one; `ralph ps` describes them")
    latest_first = sorted(local, key=lambda run: (run.is_alive, not run.is_part))[::-1]
    # One at a time: an objection may read a whole journal.
    if found := next((run for run in (*running, *latest_first) if not objection(run)), None):
        return found
    elsewhere = [run for run in known if run.is_alive and not run.is_part and not objection(run)]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        raise UserError(f"several runs match: {_ids(elsewhere)}", "name one; `ralph ps` describes them")
    if local:
        last = max(reversed(local), key=lambda run: not run.is_part)
        raise UserError(f"run {last.id}, the last one in {here}, {objection(last)}", _ALL)
    raise UserError(f"nothing has been run in {here}", _hint(known))


def refuse_foreign(run: Listed) -> None:
    """Raise unless the run is the user's own: another user's note would be a file that the run cannot read."""
    whose = owner(run.place)
    if whose != _user_name(os.geteuid()):
        raise UserError(f"run {run.id} belongs to {whose}", f"only {whose} may steer it")


def owner(path: str | Path) -> str:
    """Return the name of the user who owns this path."""
    try:
        return _user_name(os.stat(path).st_uid)
    except PermissionError:
        return "another user"


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _ids(known: list[Listed]) -> str:
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return ", ".join(run.id for run in known[-5:]) + more


def _hint(known: list[Listed]) -> str:
    return f"on record: {_ids(known)}" if known else 'start one with `ralph run "GOAL"`'


def why_not_begun(run: Listed) -> str:
    """Return an objection if the journal of the run has no start."""
    return "" if run.facts.kind == "work" or load_run(run.folder.journal).started else "never began"
