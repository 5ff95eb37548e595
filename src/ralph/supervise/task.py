"""A task's folder, `ROOT/PROJECT/TASK/`: its prompt, its markers and its runs.

    TASK.md                     what to do
    DONE, WAIT_WITHOUT_RESTART  markers that the agent leaves
    TASK-MESSAGE-BUS.md         see bus.py
    runs/RUN/run-info.yaml      one per attempt and per child run, as JSON, which every YAML parser reads

Only the ralph that owns a run changes it, and its supervisor once that ralph is gone.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Usage
from ralph.core.rules import WAIT_FILE
from ralph.core.text import escaped
from ralph.errors import UNREADABLE, UserError
from ralph.files import cannot_use, make_folder, open_file, read_file, read_given, replace_file
from ralph.process.descendants import is_living, own_start
from ralph.supervise.bus import MessageBus, timestamp, unique_name

RUN_FILE = "run-info.yaml"
PROJECT_BUS = "PROJECT-MESSAGE-BUS.md"
RunStatus = Literal["running", "completed", "failed", "stopped"]


class RunInfo(Struct, frozen=True, kw_only=True):
    """One run of an agent.

    `pid` is the agent's process and `owner_pid` the process of the ralph that started it. Their start times distinguish
    them from later processes with the same pid. `attempt` counts from 1, and is 0 for child runs.
    """

    run_id: str
    status: RunStatus = "running"
    parent_run_id: str = ""
    attempt: int = 0
    agent: str = ""
    pid: int = 0
    pid_start: str = ""
    owner_pid: int = 0
    owner_start: str = ""
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None
    error_summary: str = ""
    usage: Usage = Usage()

    def is_active(self) -> bool:
        processes = (self.owner_pid, self.owner_start), (self.pid, self.pid_start)
        return self.status == "running" and any(is_living(*process) for process in processes)

    def is_dead(self) -> bool:
        """Whether the file says that the run is running, but its processes are gone."""
        return self.status == "running" and not self.is_active()


class TaskFolder:
    """The files of a task. The folder need not exist yet."""

    def __init__(self, path: Path, project: str, task: str, bus: MessageBus | None = None) -> None:
        self.path, self.project, self.task = path, project, task
        self.root, self.name = path.parent.parent, f"{project}/{task}"
        self.prompt, self.done, self.wait = path / "TASK.md", path / "DONE", path / WAIT_FILE
        self.runs = path / "runs"
        self.bus = bus or MessageBus(path / "TASK-MESSAGE-BUS.md")
        self.project_bus = MessageBus(path.parent / PROJECT_BUS)

    def environment(self, run_id: str, parent_run_id: str = "") -> dict[str, str]:
        """Return the variables for the agent of a run, each with and without the prefix `JRUN_`."""
        values = {
            "PROJECT_ID": self.project,
            "TASK_ID": self.task,
            "RUN_ID": run_id,
            "PARENT_ID": parent_run_id,
            "TASK_FOLDER": str(self.path),
            "RUN_FOLDER": str(self.runs / run_id),
            "RUNS_DIR": str(self.runs),
            "MESSAGE_BUS": self.bus.path,
        }
        return values | {f"JRUN_{name}": value for name, value in values.items()} | {"JRUN_ID": run_id}

    def save_prompt(self, text: str | None) -> str:
        """Return the given prompt, else the content of TASK.md. Create the folder, and TASK.md if it is missing."""
        hint = "give --prompt TEXT or --prompt-file FILE"
        try:
            with _reporting(self.prompt, FileNotFoundError):
                prompt = read_given(self.prompt).decode() if text is None else text
        except FileNotFoundError:
            raise UserError(f"nothing to do: {self.prompt} is missing", hint) from None
        except UnicodeDecodeError:
            raise UserError(f"{self.prompt} is not UTF-8 text", "save it as UTF-8") from None
        if not prompt.strip():
            raise UserError(f"nothing to do: {self.prompt if text is None else 'the prompt'} is empty", hint)
        with _reporting(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if text is not None:
            _write_once(self.prompt, text)
        return prompt

    def mark_waiting(self, reason: str) -> None:
        """Write the wait marker unless it exists, so that the task stays stopped until it is resumed."""
        _write_once(self.wait, f"{reason}\n")

    def remove_markers(self) -> None:
        for marker in (self.done, self.wait):
            try:
                marker.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"cannot remove {marker}: {error.strerror}", "remove it by hand") from None

    def create_run(self, agent: str, *, attempt: int = 0, parent: str = "") -> RunInfo:
        """Create a run owned by this process, in a folder that only the user can read."""
        ts = timestamp()
        folder = self.runs / unique_name(ts, 2)
        with _reporting(self.runs):
            make_folder(str(self.runs))
            folder.mkdir(mode=0o700)
        info = RunInfo(
            run_id=folder.name,
            parent_run_id=parent,
            attempt=attempt,
            agent=agent,
            owner_pid=os.getpid(),
            owner_start=own_start(),
            started_at=ts,
        )
        return self._save_run(info)

    def load_run(self, run_id: str) -> RunInfo:
        path = self.runs / run_id / RUN_FILE
        try:
            with _reporting(path):
                return msgspec.json.decode(read_file(path, 1 << 20), type=RunInfo)
        except UNREADABLE as error:
            raise UserError(
                f"cannot read {path}: {error}", "only ralph writes this file: remove it if it is damaged"
            ) from None

    def update_run(self, run_id: str, **fields: Any) -> RunInfo:
        return self._save_run(replace(self.load_run(run_id), **fields))

    def _save_run(self, run: RunInfo) -> RunInfo:
        path = self.runs / run.run_id / RUN_FILE
        with _reporting(path):
            replace_file(path, escaped(msgspec.json.format(msgspec.json.encode(run), indent=2)) + b"\n")
        return run

    def list_runs(self) -> list[RunInfo]:
        """Return all runs whose file can be read, the oldest first."""
        runs = []
        for path in self.runs.glob(f"*/{RUN_FILE}"):
            with suppress(UserError):
                runs.append(self.load_run(path.parent.name))
        return sorted(runs, key=lambda run: (run.started_at, run.run_id))

    def attempts(self) -> list[RunInfo]:
        return [run for run in self.list_runs() if run.attempt]

    def children(self) -> list[RunInfo]:
        return [run for run in self.list_runs() if not run.attempt]

    def active_children(self) -> list[RunInfo]:
        return [run for run in self.children() if run.is_active()]

    def fail_dead_runs(self) -> list[RunInfo]:
        """Mark the runs whose processes are gone as failed, and return them."""
        failed = []
        for name in [run.run_id for run in self.list_runs() if run.is_dead()]:
            run = self.load_run(name)
            if run.is_dead():  # still: it may have ended after its file was read and before its processes were sought
                why = run.error_summary or f"its process {run.pid or run.owner_pid} is gone"
                failed.append(self.update_run(name, status="failed", ended_at=timestamp(), error_summary=why))
        return failed


def task_folder(root: str | os.PathLike[str], project: str, task: str) -> TaskFolder:
    """Return the folder of a task. Raise a UserError for names that would lead out of `root`."""
    for kind, name in (("project", project), ("task", task)):
        if not is_name(name):
            raise UserError(f"not a name for a {kind}: {name[:100]!r}", "use letters, digits, dashes and underscores")
    path = Path(os.path.abspath(os.path.expanduser(root)), project, task)
    return TaskFolder(path, project, task)


def task_at(path: str | os.PathLike[str]) -> TaskFolder:
    """Return the task whose folder is `path`."""
    place = Path(os.path.abspath(path))
    return task_folder(place.parent.parent, place.parent.name, place.name)


def current_task(env: Mapping[str, str]) -> tuple[TaskFolder, str] | None:
    """Return the task whose agent started this process, and the id of the agent's run; None if there is none."""

    def value(name: str) -> str:
        return env.get(f"JRUN_{name}") or env.get(name, "")

    if not value("TASK_FOLDER"):
        return None
    path = Path(os.path.abspath(value("TASK_FOLDER")))
    bus = MessageBus(value("MESSAGE_BUS")) if value("MESSAGE_BUS") else None
    project, name = value("PROJECT_ID") or path.parent.name, value("TASK_ID") or path.name
    return TaskFolder(path, project, name, bus), env.get("JRUN_ID", "")


def is_name(name: str) -> bool:
    """Return whether a folder for a project or task may have this name."""
    if not name.isprintable() or name != name.strip() or name == PROJECT_BUS:
        return False
    return bool(name) and not name.startswith((".", "-")) and not {"/", "\\"} & set(name) and len(name.encode()) <= 200


def _write_once(path: Path, text: str) -> None:
    """Create the file unless it exists. Only its owner may read it, because it may contain a key."""
    with suppress(FileExistsError), _reporting(path, FileExistsError):
        fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(fd, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))


@contextmanager
def _reporting(path: Path, *passed: type[OSError]) -> Iterator[None]:
    """Raise a UserError that names `path` instead of an OSError, except for the types in `passed`."""
    try:
        yield
    except passed:
        raise
    except OSError as error:
        raise cannot_use(path, error) from None
