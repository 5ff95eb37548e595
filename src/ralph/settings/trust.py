"""Were the settings changed while a run was at work, be it by its agent? What they were when it began is kept in the
state folder; nobody obeys others before a person has seen the difference."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ralph.errors import UNREADABLE, UserError, shortage
from ralph.files import is_alive, read_file, read_given, replace_file, state_folder

if TYPE_CHECKING:
    import pathlib

MOST_BYTES = 4 << 20
MOST_LINES = 2000  # of a file that are compared: what tells two texts apart takes more time than they are long
LONGEST_SESSION = 7 * 24 * 3600.0
Contents = dict[str, bytes | None]


class Before(Struct, frozen=True):
    """What the files held when a run began, and which process plays it; none (0) plays a loop inside a session."""

    pid: int
    files: Contents


class Untrusted(UserError):
    """The settings are not what they were when a run began."""

    def __init__(self) -> None:
        super().__init__(
            "the settings have changed while a run was at work here, and nobody has looked at them since",
            "`ralph trust` shows the difference and accepts it",
        )


class Watched:
    """The settings files of one run, from its beginning to its end. What they held is written down for the next run;
    but an agent may remove that, and nobody can have accepted anything meanwhile: so for this one it is remembered."""

    def __init__(
        self,
        workspace: "pathlib.Path",
        run_id: str,
        files: "Sequence[pathlib.Path]",
        env: Mapping[str, str],
        pid: int | None = None,
    ) -> None:
        self._path = os.path.join(place_of(workspace, env), run_id)
        self._pid = os.getpid() if pid is None else pid
        self._files = tuple(map(str, files))
        self._before: Before | None = None

    def begin(self) -> None:
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            for path in {*_records(os.path.dirname(self._path))} - {self._path}:
                before = _read(path)
                if before and not _is_at_work(path, before) and not _changed(before):  # killed, with nothing changed
                    os.unlink(path)
            known = _read(self._path)  # a run that goes on is measured by its beginning
            self._before = Before(self._pid, known.files if known else _contents(self._files))
            _write(self._path, self._before)
        except OSError:  # as with the list of runs, which says so: then nothing can be compared
            pass

    def end(self) -> list[str]:
        """The files that have changed. Where none has, there is nothing to remember; where that cannot be seen, the
        next run looks."""
        try:
            changed = _changed(self._before) if self._before else []
        except OSError:
            return []
        if not changed or not self._before:
            _forget(self._path)
            return []
        folder = os.path.dirname(self._path)
        with suppress(OSError):
            # It was there when the run began: what an agent has put in its place, or above it, goes aside.
            for place in (os.path.dirname(os.path.dirname(folder)), os.path.dirname(folder), folder):
                if os.path.lexists(place) and not os.path.isdir(place):
                    os.replace(place, f"{place}.aside")
            os.makedirs(folder, mode=0o700, exist_ok=True)
            _write(self._path, self._before)
        return changed


def place_of(workspace: "pathlib.Path", env: Mapping[str, str]) -> str:
    """The folder for what is known of the settings of a workspace."""
    name = os.path.realpath(workspace).strip("/").replace("/", "%")[-200:]
    return os.path.join(state_folder(env, "settings"), name or "%")


def refuse_untrusted(workspace: "pathlib.Path", env: Mapping[str, str]) -> None:
    """Raises where a run must not obey the settings that are there now."""
    if difference_in(workspace, env):
        raise Untrusted()


def difference_in(workspace: "pathlib.Path", env: Mapping[str, str]) -> str:
    """What has changed while runs were at work here, as a patch; nothing where all is as it was."""
    known = [before for path in _records(place_of(workspace, env)) if (before := _read(path)) and _changed(before)]
    return "\n".join(dict.fromkeys(map(difference_between, known)))  # of runs side by side, each has its own


def trust(workspace: "pathlib.Path", env: Mapping[str, str]) -> None:
    """Takes the settings for good as they are now; runs at work are measured by them from here on."""
    for path in _records(place_of(workspace, env)):
        before = _read(path)
        if before and _is_at_work(path, before):
            _write(path, Before(before.pid, _contents(tuple(before.files))))
        else:
            _forget(path)


def _is_at_work(path: str, before: Before) -> bool:
    """Nobody says when a session is over that was left in the middle of its loop."""
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
        except OSError as error:  # none, or none that could be obeyed
            if shortage(error):  # it may be as it was
                raise
            found[path] = None if isinstance(error, FileNotFoundError) else (error.strerror or "").encode()
    return found


def _changed(before: Before) -> list[str]:
    now = _contents(tuple(before.files))
    return [path for path, then in before.files.items() if then != now[path]]


def difference_between(before: Before) -> str:
    """What these files say now that they did not say before, as a patch; never nothing where they differ."""
    from difflib import unified_diff

    now = _contents(tuple(before.files))
    lines: list[str] = []
    for path in _changed(before):
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
    """The name of a folder need not be text: it is written byte by byte."""
    named = {os.fsencode(name).decode("latin-1"): data for name, data in before.files.items()}
    replace_file(path, msgspec.json.encode(Before(before.pid, named)), 0o600)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    except OSError:  # other runs have theirs there
        pass
