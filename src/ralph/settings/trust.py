"""Settings that changed during a run need the user's consent: the agent may have changed them.

At the start of a run, the content of the settings files is recorded in the state folder. While the files differ from
that record, no run starts until the user has accepted the difference (`ralph trust`).
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path

import msgspec
from msgspec import Struct

from ralph.errors import UNREADABLE, UserError, shortage
from ralph.files import is_alive, read_file, read_given, replace_file, state_folder

MOST_BYTES = 4 << 20
MOST_LINES = 2000  # lines of a file that are compared: the time for a diff grows faster than the text
LONGEST_SESSION = 7 * 24 * 3600.0  # seconds until a session that left its loop counts as over
Contents = dict[str, bytes | None]


class Before(Struct, frozen=True):
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


class Watched:
    """Watches the settings files of one run, from its start to its end."""

    def __init__(
        self,
        workspace: Path,
        run_id: str,
        files: Sequence[Path],
        env: Mapping[str, str],
        pid: int | None = None,
    ) -> None:
        self._path = os.path.join(place_of(workspace, env), run_id)
        self._pid = os.getpid() if pid is None else pid
        self._files = tuple(map(str, files))
        self._before: Before | None = None

    def begin(self) -> None:
        """Record the files as they are; a resumed run keeps what it recorded first."""
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            for path in {*_records(os.path.dirname(self._path))} - {self._path}:
                before = _read(path)
                if before and not _is_running(path, before) and not _changed_files(before):
                    os.unlink(path)  # of a run that was killed
            known = _read(self._path)
            self._before = Before(self._pid, known.files if known else _contents(self._files))
            _write(self._path, self._before)
        except OSError:  # the state folder cannot be written: the register of runs reports that
            pass

    def end(self) -> list[str]:
        """Return the files that changed during the run. If there are any, the record stays for the next run."""
        try:
            changed = _changed_files(self._before) if self._before else []
        except OSError:  # the next run compares the files
            return []
        if not changed:
            _forget(self._path)
        return changed


def place_of(workspace: Path, env: Mapping[str, str]) -> str:
    """Return the folder with the records for a workspace."""
    name = os.path.realpath(workspace).strip("/").replace("/", "%")[-200:]
    return os.path.join(state_folder(env, "settings"), name or "%")


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
    known = [
        before for path in _records(place_of(workspace, env)) if (before := _read(path)) and _changed_files(before)
    ]
    return "\n".join(dict.fromkeys(map(difference_between, known)))


def trust(workspace: Path, env: Mapping[str, str]) -> None:
    """Accept the settings as they are now. Only a person may: an agent would accept what it wrote itself."""
    if "RALPH_RUN_ID" in env:
        raise UserError("an agent cannot accept settings", "run `ralph trust` yourself, when the run has ended")
    for path in _records(place_of(workspace, env)):
        _forget(path)


def _is_running(path: str, before: Before) -> bool:
    """Return whether the run of a record may still be running; for a session: whether the record is recent."""
    return is_alive(before.pid) if before.pid else time.time() - os.lstat(path).st_mtime < LONGEST_SESSION


def _records(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _contents(files: Sequence[str]) -> Contents:
    found: Contents = {}
    for path in files:
        try:
            found[path] = read_given(path, MOST_BYTES)
        except OSError as error:
            if shortage(error):  # without memory or descriptors nobody knows whether the file has changed
                raise
            found[path] = None if isinstance(error, FileNotFoundError) else (error.strerror or "").encode()
    return found


def _changed_files(before: Before) -> list[str]:
    now = _contents(tuple(before.files))
    return [path for path, then in before.files.items() if then != now[path]]


def difference_between(before: Before) -> str:
    """Return the changes since `before` as a patch; never empty if a file differs."""
    now = _contents(tuple(before.files))
    lines: list[str] = []
    for path in _changed_files(before):
        old, new = ((one or b"").decode("utf-8", "replace").splitlines() for one in (before.files[path], now[path]))
        names = f"{path} (when the run began)", f"{path} (now)"
        lines += unified_diff(old[:MOST_LINES], new[:MOST_LINES], *names, lineterm="")
        if (longest := max(len(old), len(new))) > MOST_LINES:
            lines.append(f"{path}: {longest - MOST_LINES} more lines are not compared")
    return "\n".join(lines)


def _read(path: str) -> Before | None:
    try:
        said = msgspec.json.decode(read_file(path, 8 * MOST_BYTES), type=Before)
        return Before(said.pid, {os.fsdecode(name.encode("latin-1")): data for name, data in said.files.items()})
    except (OSError, *UNREADABLE):
        return None


def _write(path: str, before: Before) -> None:
    """Write a record. A path may not be valid UTF-8, so each of its bytes becomes a character."""
    named = {os.fsencode(name).decode("latin-1"): data for name, data in before.files.items()}
    replace_file(path, msgspec.json.encode(Before(before.pid, named)), 0o600)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except OSError:  # the folder has records of other runs
        pass
