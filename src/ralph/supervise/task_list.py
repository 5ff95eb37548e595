"""How do the tasks below a root stand? One row each, for `ralph tasks`."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from ralph.core.model import Outcome
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.files import locked, put, read_file, unusable
from ralph.processes.descendants import is_living
from ralph.records.register import recorded_in
from ralph.supervise import bus, remarks, run_info
from ralph.supervise.run_info import IsLiving, RunInfo, is_active
from ralph.supervise.task_folder import Markers, TaskFolder, is_name, markers, task_folder


class TaskRow(Struct, frozen=True, kw_only=True):
    """`attempt` is that of the latest run; `age` the seconds since anything happened."""

    project: str
    task: str
    state: str
    attempt: int = 0
    age: float = 0.0
    last_message: str = ""


def every(root: str | os.PathLike[str], now: float, project: str | None = None) -> list[TaskRow]:
    """The tasks below `root`, by project and name."""
    top = Path(os.path.abspath(os.path.expanduser(root)))
    projects = [project] if project else _folders(top)
    folders = [task_folder(top, name, task) for name in projects for task in _folders(top / name)]
    tasks = [one for one in folders if any(path.exists() for path in (one.prompt, one.bus, one.runs))]
    return [row(folder, now) for folder in tasks]


def row(folder: TaskFolder, now: float) -> TaskRow:
    try:
        runs = run_info.every(folder)
        attempts = [run for run in runs if run.attempt]
        word = state(markers(folder), runs, unmet(folder), is_done(folder))
    except UserError as error:
        return TaskRow(project=folder.project, task=folder.task, state="trouble", last_message=error.message)
    age = max(0.0, now - _last_change(folder, runs))
    try:
        message = bus.last(folder.bus)
        said = one_line(f"{message.type} {message.body}", 80) if message else ""
    except UserError as error:
        said = error.message
    return TaskRow(
        project=folder.project,
        task=folder.task,
        state=word,
        attempt=attempts[-1].attempt if attempts else 0,
        age=age,
        last_message=said,
    )


def state(
    found: Markers, runs: Sequence[RunInfo], waits_for: Sequence[str], accepted: bool, living: IsLiving = is_living
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


def _last_change(folder: TaskFolder, runs: Sequence[RunInfo]) -> float:
    infos = [folder.runs / run.run_id / run_info.FILE for run in runs[-1:]]
    times = [0.0]
    for path in (folder.path, folder.prompt, folder.bus, folder.done, *infos):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue  # not every task has all of them
    return max(times)


FILE = "DEPENDS-ON"


def depend(folder: TaskFolder, names: Sequence[str]) -> None:
    """Record that `folder`, which exists, comes after these tasks (`task` of its project, or `project/task`)."""
    wanted = [_named(folder, name) for name in names]
    # One at a time in the whole root: two tasks may be about to depend on each other.
    with locked(folder.root):

        def edges(name: str) -> Iterable[str]:
            return [other.name for other in (wanted if name == folder.name else recorded(_named(folder, name)))]

        if circle := circle_through(folder.name, edges):
            raise UserError(f"the tasks would wait for each other: {' -> '.join(circle)}", "drop one --depends-on")
        put(folder.path / FILE, "".join(f"{other.name}\n" for other in wanted))


def recorded(folder: TaskFolder) -> list[TaskFolder]:
    """The tasks that this one depends on."""
    path = folder.path / FILE
    try:
        lines = read_file(path, 1 << 20).decode("utf-8", "replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unusable(path, error) from None
    return [_named(folder, line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def unmet(folder: TaskFolder) -> list[str]:
    """The tasks that this one waits for: recorded, and not done."""
    return [other.name for other in recorded(folder) if not is_done(other)]


def circle_through(start: str, edges: Callable[[str], Iterable[str]]) -> list[str]:
    """A way from `start` back to itself, or nothing."""
    came_from, ahead = dict[str, str](), [start]
    while ahead:
        here = ahead.pop()
        for name in edges(here):
            if name == start:
                way = [start, here]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if name not in came_from:
                came_from[name] = here
                ahead.append(name)
    return []


def _named(folder: TaskFolder, name: str) -> TaskFolder:
    project, slash, task = name.partition("/")
    return task_folder(folder.root, project, task) if slash else task_folder(folder.root, folder.project, name)


def is_done(folder: TaskFolder) -> bool:
    """Whether DONE is there, and the last supervisor, if one has begun, ended by accepting it. Checks may have refused
    it, its children may be at work, or the supervisor was killed before it could look."""
    if not markers(folder).done:
        return False
    outcomes = [run.facts.outcome for run in recorded_in(folder.path / ".ralph") if run.facts.workspace]
    return not outcomes or outcomes[-1] == Outcome.DONE.value


def tell_project(folder: TaskFolder, run_id: str, attempts: int) -> str:
    """Post the completion, unless it was. Gives what went wrong, which is no reason for the task to fail."""
    try:
        done_at = run_info.timestamp(folder.done.stat().st_mtime)
        facts = bus.read(folder.project_bus, types=["FACT"])
        if not any(fact.task == folder.task and f"DONE at {done_at}," in fact.body for fact in facts):
            fact = remarks.completion(folder.name, done_at, run_id, attempts)
            bus.post(folder.project_bus, fact.type, fact.body, project=folder.project, task=folder.task, run=run_id)
    except OSError as error:
        return str(error)
    except UserError as error:
        return error.message
    return ""
