"""How do the tasks below a root stand? One row each, for `ralph tasks`."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.world.processes.identity import is_living
from ralph.world.records.atomic import unusable
from ralph.world.supervision import bus, runinfo
from ralph.world.supervision.children import Living, is_active
from ralph.world.supervision.completion import is_done
from ralph.world.supervision.dependencies import unmet
from ralph.world.supervision.runinfo import RunInfo
from ralph.world.supervision.taskfolder import Markers, TaskFolder, is_name, markers, task_folder


class TaskRow(Struct, frozen=True):
    """`attempt` is that of the latest run; `age` the seconds since anything happened."""

    project: str
    task: str
    state: str
    attempt: int
    age: float
    last_message: str


def every(root: str | os.PathLike[str], now: float, project: str | None = None) -> list[TaskRow]:
    """The tasks below `root`, by project and name."""
    top = Path(os.path.abspath(os.path.expanduser(root)))
    projects = [project] if project else _folders(top)
    folders = [task_folder(top, name, task) for name in projects for task in _folders(top / name)]
    return [row(folder, now) for folder in folders if _is_task(folder)]


def row(folder: TaskFolder, now: float) -> TaskRow:
    try:
        runs = runinfo.every(folder)
        attempts = [run for run in runs if run.attempt]
        word = state(markers(folder), runs, unmet(folder), is_done(folder))
    except UserError as error:
        return TaskRow(folder.project, folder.task, "trouble", 0, 0.0, error.message)
    age = max(0.0, now - _last_change(folder, runs))
    return TaskRow(
        folder.project, folder.task, word, attempts[-1].attempt if attempts else 0, age, _last_message(folder)
    )


def state(
    found: Markers, runs: Sequence[RunInfo], waits_for: Sequence[str], accepted: bool, living: Living = is_living
) -> str:
    """One word for how a task stands. `accepted`: the DONE that is there counts."""
    last = next((run for run in reversed(runs) if run.attempt), None)
    is_supervised = last is not None and living(last.owner_pid, last.owner_start)
    is_running = any(is_active(run, living) for run in runs)
    if found.trouble:
        return "trouble"
    if found.done and (is_running or is_supervised):
        return "finishing"
    if accepted:
        return "done"
    if is_running:
        return "running"
    if found.wait or (last and last.status == "stopped"):
        return "stopped"
    if is_supervised:
        return "restarting"
    if waits_for:
        return "blocked"
    if last is None:
        return "new"
    return "unfinished" if last.status == "completed" else "failed"


def _folders(path: Path) -> list[str]:
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except FileNotFoundError:
        raise UserError(f"there is no folder {path}", "--root DIR names the folder of the projects") from None
    except OSError as error:
        raise unusable(path, error) from None
    return [entry.name for entry in entries if entry.is_dir() and is_name(entry.name)]


def _is_task(folder: TaskFolder) -> bool:
    return any(path.exists() for path in (folder.prompt, folder.bus, folder.runs))


def _last_change(folder: TaskFolder, runs: Sequence[RunInfo]) -> float:
    infos = [folder.runs / run.run_id / runinfo.FILE for run in runs[-1:]]
    times = [0.0]
    for path in (folder.path, folder.prompt, folder.bus, folder.done, *infos):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue  # not every task has all of them
    return max(times)


def _last_message(folder: TaskFolder) -> str:
    try:
        message = bus.last(folder.bus)
    except UserError as error:
        return error.message
    return one_line(f"{message.type} {message.body}", 80) if message else ""
