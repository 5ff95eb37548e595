"""What is known of one run in a task? Its `runs/<run_id>/run-info.yaml`, which several processes change at once."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph.errors import UserError
from ralph.files import locked, put, read_file, unusable
from ralph.processes.descendants import own_start, start_of
from ralph.processes.program import seconds_left
from ralph.supervise.task_folder import TaskFolder

FILE = "run-info.yaml"
Status = Literal["running", "completed", "failed", "stopped", "unreadable"]


class RunInfo(Struct, frozen=True, kw_only=True):
    """One run. `pid` is the agent, `owner_pid` the ralph that looks after it; their starts tell them from later
    processes with the same numbers. `attempt` counts from 1; a child run has a parent and no attempt."""

    run_id: str
    status: Status = "running"
    project_id: str = ""
    task_id: str = ""
    parent_run_id: str = ""
    previous_run_id: str = ""
    attempt: int = 0
    agent: str = ""
    pid: int = 0
    pgid: int = 0
    pid_start: str = ""
    owner_pid: int = 0
    owner_start: str = ""
    started_at: str = ""
    ended_at: str = ""
    exit_code: int | None = None
    error_summary: str = ""
    prompt_path: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    output_path: str = ""


def create(
    folder: TaskFolder, agent: str, now: float, *, attempt: int = 0, parent: str = "", previous: str = ""
) -> RunInfo:
    """A new run with a folder of its own, for the user's eyes only, looked after by this process."""
    path = _new_folder(folder.runs, now)
    info = RunInfo(
        run_id=path.name,
        project_id=folder.project,
        task_id=folder.task,
        parent_run_id=parent,
        previous_run_id=previous,
        attempt=attempt,
        agent=agent,
        owner_pid=os.getpid(),
        owner_start=own_start(),
        started_at=timestamp(now),
        prompt_path=str(path / "prompt.md"),
        stdout_path=str(path / "agent-stdout.txt"),
        stderr_path=str(path / "agent-stderr.txt"),
        output_path=str(path / "output.md"),
    )
    put(path / FILE, dump(asdict(info)))
    return info


def started(path: Path, pid: int, pgid: int) -> RunInfo:
    """Note that the agent of the run in `path` is at work."""
    return update(path, pid=pid, pgid=pgid, pid_start=start_of(pid) or "")


def ended(path: Path, now: float, status: Status, exit_code: int | None, error_summary: str = "") -> RunInfo:
    """Note how the run in `path` ended."""
    return update(path, status=status, exit_code=exit_code, error_summary=error_summary, ended_at=timestamp(now))


def release(path: Path) -> RunInfo:
    """Note that nobody looks after the run in `path` any more: no attempt follows it."""
    return update(path, owner_pid=0, owner_start="")


def update(path: Path, **fields: str | int | None) -> RunInfo:
    """Change some fields of the run in the folder `path`; what others change meanwhile is kept."""
    return amend(path, lambda info: replace(info, **fields))


def amend(path: Path, change: Callable[[RunInfo], RunInfo]) -> RunInfo:
    """Change the run in the folder `path` according to what it is at that moment."""
    with locked(path, seconds_left):
        info = load(path)
        changed = change(info)
        if changed != info:
            put(path / FILE, dump(asdict(changed)))
    return changed


def load(path: Path) -> RunInfo:
    """The run in the folder `path`."""
    try:
        text = read_file(path / FILE, 1 << 20).decode("utf-8")
        return msgspec.convert(parse(text), RunInfo, strict=False)
    except OSError as error:
        raise unusable(path / FILE, error) from None
    except ValueError as error:
        raise UserError(f"{path / FILE} cannot be read: {error}", "it is written by ralph alone") from None


def every(folder: TaskFolder) -> list[RunInfo]:
    """All runs of a task, the oldest first. One that cannot be read is among them, and says why."""
    try:
        paths = [Path(entry.path) for entry in os.scandir(folder.runs) if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unusable(folder.runs, error) from None
    infos = [_readable(path) for path in paths if (path / FILE).exists()]
    return sorted(infos, key=lambda info: (info.started_at, info.run_id))


def timestamp(now: float) -> str:
    micros = round(now * 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(micros // 1_000_000))}.{micros % 1_000_000:06d}Z"


def _readable(path: Path) -> RunInfo:
    try:
        return load(path)
    except UserError as error:
        return RunInfo(run_id=path.name, status="unreadable", error_summary=error.message)


def _new_folder(runs: Path, now: float) -> Path:
    try:
        runs.mkdir(mode=0o700, exist_ok=True)
        while True:
            path = runs / f"{timestamp(now).translate(_AS_NAME)}-{os.urandom(2).hex()}"
            try:
                path.mkdir(mode=0o700)
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise unusable(runs, error) from None


_AS_NAME = str.maketrans({"-": "", ":": "", "T": "-", ".": "-", "Z": ""})


Scalar = str | int | None

# What may stand without quotes: nothing that YAML would take for a number, a date, a truth value or its own syntax.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*\Z")
_TAKEN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"))


def dump(values: dict[str, Scalar]) -> str:
    return "".join(f"{key}: {_written(value)}\n" for key, value in values.items())


def parse(text: str) -> dict[str, str]:
    """The values as text. Raises ValueError for a line that is no `key: value`."""
    values = {}
    for line in text.split("\n"):
        if line.strip() in ("", "---") or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").isalnum():
            raise ValueError(f"not a `key: value`: {line[:80]!r}")
        values[key] = _read(value.strip())
    return values


def _written(value: Scalar) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.match(value) and value.lower() not in _TAKEN:
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(character: str) -> str:
    """Escapes that JSON and YAML have in common: so that what is written by one rule is read by either."""
    if character in '"\\':
        return "\\" + character
    if character.isprintable() or character > "\uffff":
        return character
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character) or f"\\u{ord(character):04x}"


def _read(value: str) -> str:
    if value.startswith('"'):
        return msgspec.json.decode(value, type=str)
    if value.startswith("'"):
        return value[1:-1].replace("''", "'")
    return value
