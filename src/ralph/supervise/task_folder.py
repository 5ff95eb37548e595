"""Where does a supervised task live? `<root>/<project>/<task>/`: what to do, whether it is done, its bus and runs."""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.rules import WAIT_FILE
from ralph.errors import UserError
from ralph.files import open_file, read_given, unusable
from ralph.run.context import marked, words_of

PROJECT_BUS = "PROJECT-MESSAGE-BUS.md"


class TaskFolder(Struct, frozen=True, kw_only=True):
    """`at` is where the task lives if its project and task have other names than their folders, `kept_at` where its bus
    and runs are if not in there, `bus_at` where the bus is if not with them."""

    root: Path
    project: str
    task: str
    at: Path | None = None
    bus_at: Path | None = None
    kept_at: Path | None = None

    @property
    def path(self) -> Path:
        return self.at or self.root / self.project / self.task

    @property
    def name(self) -> str:
        return f"{self.project}/{self.task}"

    @property
    def prompt(self) -> Path:
        return self.path / "TASK.md"

    @property
    def done(self) -> Path:
        return self.path / "DONE"

    @property
    def wait(self) -> Path:
        return self.path / WAIT_FILE

    @property
    def bus(self) -> Path:
        return self.bus_at or (self.kept_at or self.path) / "TASK-MESSAGE-BUS.md"

    @property
    def project_bus(self) -> Path:
        return self.path.parent / PROJECT_BUS

    @property
    def runs(self) -> Path:
        return (self.kept_at or self.path) / "runs"


class Markers(Struct, frozen=True):
    """What the files that an agent leaves in its task's folder say. `wait`: why it wants no restart."""

    done: bool = False
    wait: str = ""
    trouble: str = ""


def task_folder(root: str | os.PathLike[str], project: str, task: str) -> TaskFolder:
    """The folder of a task, which need not exist yet. The names cannot lead out of `root`."""
    place = Path(os.path.abspath(os.path.expanduser(root)))
    return TaskFolder(root=place, project=_name("project", project), task=_name("task", task))


def folder_at(path: str | os.PathLike[str]) -> TaskFolder:
    """The task that lives in `path`."""
    place = Path(os.path.abspath(path))
    return task_folder(place.parent.parent, place.parent.name, place.name)


def workspace_as_task(workspace: Path, run_id: str) -> TaskFolder:
    """The task of a run that was given a workspace and no folder for its task: the agent leaves its marks in the
    workspace, and all else is where ralph's things are."""
    return TaskFolder(
        root=workspace.parent,
        project=workspace.name or "workspace",
        task=run_id,
        at=workspace,
        kept_at=workspace / ".ralph" / "task",
    )


def around(environment: Mapping[str, str]) -> tuple[TaskFolder, str] | None:
    """The task, and the run of it, that started this process, if one did."""
    folder = environment.get("JRUN_TASK_FOLDER") or environment.get("TASK_FOLDER")
    if not folder:
        return None
    bus = environment.get("JRUN_MESSAGE_BUS") or environment.get("MESSAGE_BUS")
    runs = environment.get("JRUN_RUNS_DIR")
    path = Path(os.path.abspath(folder))
    if runs and Path(runs).parent != path:
        found = replace(workspace_as_task(path, environment.get("JRUN_TASK_ID", "")), kept_at=Path(runs).parent)
    else:
        found = folder_at(path)
    if bus and Path(bus) != found.bus:
        found = replace(found, bus_at=Path(bus))
    return found, environment.get("JRUN_ID", "")


def task_environment(folder: TaskFolder, run_id: str, parent_run_id: str = "", at: str = "") -> dict[str, str]:
    """What the agent of a run finds in its environment: the same under short names and with `JRUN_` in front. `at` is
    the folder of the run if it is not among the task's."""
    values = {
        "PROJECT_ID": folder.project,
        "TASK_ID": folder.task,
        "RUN_ID": run_id,
        "PARENT_ID": parent_run_id,
        "TASK_FOLDER": str(folder.path),
        "RUN_FOLDER": at or str(folder.runs / run_id),
        "RUNS_DIR": str(folder.runs),
        "MESSAGE_BUS": str(folder.bus),
    }
    return values | {f"JRUN_{name}": value for name, value in values.items()} | {"JRUN_ID": run_id}


def keep_prompt(folder: TaskFolder, given: str | None) -> str:
    """The prompt of this run: the one given, else TASK.md. Makes the folder, and TASK.md where there is none yet."""
    prompt = _text_of(folder.prompt) if given is None else given
    if not prompt.strip():
        empty = folder.prompt if given is None else "the prompt"
        raise UserError(f"there is nothing to do: {empty} is empty", "give --prompt TEXT or --prompt-file FILE")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder.path, error) from None
    if given is not None:
        _write_once(folder.prompt, given)
    return prompt


def markers(folder: TaskFolder) -> Markers:
    """As they are now. Only a missing file is a plain no: whatever else is in its place is trouble."""
    done, trouble = marked(folder.done)
    waiting, other = marked(folder.wait)
    return Markers(done, words_of(folder.wait) if waiting else "", trouble or other)


def mark_waiting(folder: TaskFolder, reason: str) -> None:
    """A task whose agent asked for no restart stays as it is, however it asked, until somebody takes the mark off."""
    _write_once(folder.wait, f"{reason}\n")


def reopen(folder: TaskFolder) -> None:
    """Take the marks off a task, so that it is worked on again."""
    for marker in (folder.done, folder.wait):
        try:
            marker.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {marker}: {error.strerror}", "remove it by hand") from None


def _text_of(path: Path) -> str:
    try:
        return read_given(path).decode()
    except FileNotFoundError:
        hint = "give --prompt TEXT or --prompt-file FILE"
        raise UserError(f"there is nothing to do: {path} is missing", hint) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except OSError as error:
        raise unusable(path, error) from None


def _write_once(path: Path, text: str) -> None:
    try:
        made = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)  # for its owner alone: it may hold a key
        with open(made, "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
    except FileExistsError:
        pass
    except OSError as error:
        raise unusable(path, error) from None


def is_name(name: str) -> bool:
    """Whether a project or a task may be called so: it becomes the name of a folder, and must stay in its place."""
    if not name.isprintable() or name != name.strip() or name == PROJECT_BUS:
        return False
    return bool(name) and not name.startswith((".", "-")) and not {"/", "\\"} & set(name) and len(name.encode()) <= 200


def _name(what: str, name: str) -> str:
    if not is_name(name):
        raise UserError(f"not a name for a {what}: {name[:100]!r}", "use letters, digits, dashes and underscores")
    return name
