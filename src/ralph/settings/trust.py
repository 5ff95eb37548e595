"""Settings that changed during a run need the user's consent: the agent may have changed them.

At the start of a run, the content of the settings files is recorded in the state folder. While the files differ from
that record, no run starts until the user has accepted the difference (`ralph trust`).
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from difflib import unified_diff
from pathlib import Path

import msgspec
from msgspec import Struct

from ralph.errors import UserError, shortage
from ralph.files import is_alive, load_json, read_given, replace_file, state_folder

MAX_FILE = 4 << 20  # bytes
MAX_RECORD = 8 * MAX_FILE
MAX_LINES = 2000  # of a file that are compared: the time for a diff grows faster than the text
MAX_SESSION = 7 * 24 * 3600.0  # seconds after which a loop inside a session counts as over
Contents = dict[bytes, bytes | None]  # of each file by its path; None for a file that doesn't exist


class SettingsRecord(Struct, frozen=True):
    """The settings files at the start of a run. `pid` is the run's process; 0 for a loop inside an agent's session."""

    pid: int
    files: Contents


class Untrusted(UserError):
    """The settings changed during a run, and the user has not accepted them."""

    def __init__(self) -> None:
        super().__init__(
            "the settings changed during a run here, and nobody has accepted the change",
            "`ralph trust` shows the difference and accepts it",
        )


class SettingsWatch:
    """Watches the settings files of one run, from its start to its end."""

    def __init__(
        self, workspace: Path, run_id: str, files: Iterable[Path], env: Mapping[str, str], pid: int | None = None
    ) -> None:
        self._folder = _record_folder(workspace, env)
        self._path = os.path.join(self._folder, run_id)
        self._pid = os.getpid() if pid is None else pid
        self._files = [os.fsencode(path) for path in files]
        self._record: SettingsRecord | None = None

    def begin(self) -> None:
        """Record the files as they are now. If the run is resumed, its first record stays."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for path, record in _records(self._folder).items():
                if path != self._path and not _is_running(path, record) and not _changed_files(record):
                    os.unlink(path)  # of a run that was killed
            earlier = load_json(self._path, SettingsRecord, MAX_RECORD)
            self._record = SettingsRecord(self._pid, earlier.files if earlier else _read_files(self._files))
            replace_file(self._path, msgspec.json.encode(self._record), 0o600)
        except OSError:  # the state folder cannot be written: the register of runs reports that
            pass

    def end(self) -> list[str]:
        """Return the files that changed during the run. If there are any, the record stays for the next run."""
        try:
            changed = _changed_files(self._record) if self._record else []
        except OSError:  # the next run compares the files
            return []
        if not changed:
            _remove_record(self._path)
        return changed


def refuse_untrusted(
    workspace: Path, env: Mapping[str, str], accept: Callable[[str], bool] = lambda difference: False
) -> None:
    """Raise if settings changed during an earlier run, unless the user accepts the difference now."""
    if difference := difference_in(workspace, env):
        if not accept(difference):
            raise Untrusted()
        trust(workspace, env)


def difference_in(workspace: Path, env: Mapping[str, str]) -> str:
    """Return what changed in the settings during runs in this workspace, as a patch; empty if nothing did."""
    differences = map(difference_since, _records(_record_folder(workspace, env)).values())
    return "\n".join(dict.fromkeys(filter(None, differences)))


def difference_since(record: SettingsRecord) -> str:
    """Return the changes since the start of a run as a patch; empty if there are none."""
    now = _read_files(record.files)
    lines: list[str] = []
    for path in _changed_files(record):
        before, after = record.files[os.fsencode(path)] or b"", now[os.fsencode(path)] or b""
        old, new = (data.decode("utf-8", "backslashreplace").split("\n") for data in (before, after))
        names = f"{path} (when the run began)", f"{path} (now)"
        lines += unified_diff(old[:MAX_LINES], new[:MAX_LINES], *names, lineterm="")
        if (longest := max(len(old), len(new))) > MAX_LINES:
            lines.append(f"{path}: {longest - MAX_LINES} more lines are not compared")
    return "\n".join(lines)


def trust(workspace: Path, env: Mapping[str, str]) -> None:
    """Accept the settings as they are now. Only a person may do so: an agent would accept its own changes."""
    if "RALPH_RUN_ID" in env:
        raise UserError("an agent cannot accept settings", "run `ralph trust` yourself, when the run has ended")
    for path in _records(_record_folder(workspace, env)):
        _remove_record(path)


def _record_folder(workspace: Path, env: Mapping[str, str]) -> str:
    """Return the folder with the records of the runs in a workspace."""
    name = os.path.realpath(workspace).strip("/").replace("/", "%")[-200:]
    return os.path.join(state_folder(env, "settings"), name or "%")


def _records(folder: str) -> dict[str, SettingsRecord]:
    """Return the readable records in a folder by their paths."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
    return {path: record for path in paths if (record := load_json(path, SettingsRecord, MAX_RECORD))}


def _remove_record(path: str) -> None:
    try:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except OSError:  # the folder has records of other runs
        pass


def _is_running(path: str, record: SettingsRecord) -> bool:
    """Return whether the run of a record may still be running. For a session: whether the record is recent."""
    return is_alive(record.pid) if record.pid else time.time() - os.lstat(path).st_mtime < MAX_SESSION


def _read_files(paths: Iterable[bytes]) -> Contents:
    contents: Contents = {}
    for path in paths:
        try:
            contents[path] = read_given(os.fsdecode(path), MAX_FILE)
        except OSError as error:
            if shortage(error):  # without memory or descriptors ralph can't tell whether the file has changed
                raise
            contents[path] = None if isinstance(error, FileNotFoundError) else (error.strerror or "").encode()
    return contents


def _changed_files(record: SettingsRecord) -> list[str]:
    now = _read_files(record.files)
    return [os.fsdecode(path) for path, data in record.files.items() if data != now[path]]
