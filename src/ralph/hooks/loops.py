"""The files of loops inside sessions, in `.ralph/hook/` of the workspace, and the session that a hook is called for.

    .ralph/hook/SESSION.json          an active loop
    .ralph/hook/ended/SESSION.json    the session's last loop that has ended
    .ralph/hook/runs/RUN/             its journal
    .ralph/hook/log                   one line per decision

The stop hook uses this after every turn of every session, so imports stay few.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from json import dumps, loads
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct, convert, to_builtins

from ralph.errors import UNREADABLE
from ralph.files import add_to_file, read_file, replace_file

HookEvent = dict[str, Any]

ACTIVE = "ACTIVE"
FOLDER = ".ralph/hook"
MAX_NAME = 200
HOOK_TIMEOUT = 6 * 3600.0  # seconds that a host gives the hook: checks may be slow, and each has its own timeout
SESSION_VARIABLES = ("CLAUDE_CODE_SESSION_ID", "GEMINI_SESSION_ID")
PROJECT_VARIABLES = ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")


class Unreadable(Exception):
    """The file of a loop can't be read."""


class Loop(Struct, kw_only=True):
    """A loop inside a session."""

    root: str  # the workspace: where the file is, not what it says
    session: str
    agent: str
    run: str
    task: str
    started: float
    max_iterations: int
    transcript: str
    offset: int
    """How many bytes of the transcript were judged."""
    iteration: int = 0
    status: str = ACTIVE
    answered: float = 0.0
    """When the hook last made the agent continue, in seconds since the epoch."""

    def is_active(self) -> bool:
        """Whether the session is still in this loop. The folder must be locked."""
        try:
            return read(self.root, self.session).run == self.run
        except Unreadable:
            return False

    def save(self) -> None:
        self._write(loop_file(self.root, self.session))

    def end(self, status: str) -> None:
        """Move the loop to the folder of ended loops."""
        self.status = status
        ended = f"{self.root}/{FOLDER}/ended"
        os.makedirs(ended, mode=0o700, exist_ok=True)
        self._write(f"{ended}/{file_name(self.session)}")
        if exists(self.root, self.session):
            os.unlink(loop_file(self.root, self.session))

    def _write(self, path: str) -> None:
        replace_file(path, dumps(to_builtins(self)).encode() + b"\n", 0o600)

    def log(self, text: str) -> None:
        write_log(self.root, f"session={self.session} iteration={self.iteration}/{self.max_iterations} {text}")


def session_of(event: HookEvent) -> str:
    """Return the id of the session that the hook is called for; "" if unknown: a guess might end another session's
    loop."""
    session = event.get("session_id")
    if isinstance(session, str) and session:
        return session
    return next((os.environ[name] for name in SESSION_VARIABLES if os.environ.get(name)), "")


def places_of(event: HookEvent) -> list[str]:
    """Return the folders that may be, or be inside, a session's workspace: its project and its current folders."""
    places = [os.environ.get(name, "") for name in PROJECT_VARIABLES]
    cwd = event.get("cwd")
    places.append(cwd if isinstance(cwd, str) else "")
    with suppress(OSError):
        places.append(os.getcwd())
    return [place for place in places if place]


def find(session: str, places: Iterable[str]) -> str | None:
    """Return the workspace of the session's active loop: one of `places` or a parent of one; None if there is no
    loop."""
    if not is_nameable(session):
        return None
    for place in places:
        folder = Path(os.path.abspath(place))
        for parent in (folder, *folder.parents):
            if exists(str(parent), session):
                return str(parent)
    return None


def file_name(session: str) -> str:
    """Return the file name for a session: its id, with unusual characters as %XX."""
    return quote(session.encode("utf-8", "surrogatepass"), safe="") + ".json"


def loop_file(root: str, session: str) -> str:
    return f"{root}/{FOLDER}/{file_name(session)}"


def is_nameable(session: str) -> bool:
    return bool(session) and len(file_name(session)) <= MAX_NAME


def exists(root: str, session: str) -> bool:
    return os.path.lexists(loop_file(root, session))


def read(root: str, session: str) -> Loop:
    """Return the active loop of a session; raise Unreadable if its file can't be read."""
    return read_loop(root, loop_file(root, session))


def read_loop(root: str, path: str) -> Loop:
    try:
        return convert({**parse_object(read_file(path)), "root": root}, Loop)
    except (OSError, *UNREADABLE) as error:
        raise Unreadable(f"{path}: {error}") from None


def list_loops(root: str) -> Iterator[Loop]:
    """Yield the active loops of a workspace, then the ended ones, each group sorted by age with the oldest first."""
    for folder in (f"{root}/{FOLDER}", f"{root}/{FOLDER}/ended"):
        names = os.listdir(folder) if os.path.isdir(folder) else []
        paths = [f"{folder}/{name}" for name in names if name.endswith(".json")]
        for path in sorted(paths, key=lambda path: os.lstat(path).st_mtime):
            try:
                yield read_loop(root, path)
            except Unreadable:
                continue  # the stop hook will report it


def set_aside(root: str, session: str, error: Unreadable) -> str:
    """Rename and log a file that can't be read, and return its new name."""
    path = loop_file(root, session)
    aside = f"{path}.unreadable-{time.time_ns()}"
    os.rename(path, aside)
    write_log(root, f"session={session} unreadable state moved to {aside}: {error}")
    return aside


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`, control characters allowed; raise ValueError for anything else."""
    try:
        value = loads(data.decode("utf-8", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def write_log(root: str, text: str) -> None:
    """Append a line to the log; if that fails, only print a warning."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(text.split())}\n"
    try:
        add_to_file(f"{root}/{FOLDER}/log", line.encode("utf-8", "backslashreplace"), 0o600)
    except OSError as error:
        print(f"ralph: cannot write the log: {error}", file=sys.stderr)
