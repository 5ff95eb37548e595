"""Which session asks, and where is its loop kept? One file per session, in `.ralph/hook/` of its workspace.

    .ralph/hook/SESSION.json          a loop that is going on
    .ralph/hook/ended/SESSION.json    the last one that has ended in a session
    .ralph/hook/runs/RUN/             its journal, and what it was asked for
    .ralph/hook/log                   a line per decision

Imports next to nothing: the stop hook asks this after every turn of every session.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Event = dict[str, Any]


ACTIVE = "ACTIVE"
FOLDER = ".ralph/hook"
LONGEST_NAME = 200
LIMIT = 6 * 3600.0  # seconds that a host gives the hook: checks may be slow, and each has a limit of its own
SESSION_VARIABLES = ("CLAUDE_CODE_SESSION_ID", "QWEN_CODE_SESSION_ID", "GEMINI_SESSION_ID")
PROJECT_VARIABLES = ("CLAUDE_PROJECT_DIR", "QWEN_PROJECT_DIR", "GEMINI_PROJECT_DIR", "COPILOT_PROJECT_DIR")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def may_go_on(data: bytes) -> bool:
    """Whether a loop may go on in the session whose host says `data`: by the names of files alone, for to read JSON
    would take as long as all the rest of a stop without a loop."""
    here, said = _places(), data + " ".join(_sessions()).encode()
    near = [name for folder in _upwards(here) for name in _listed(f"{folder}/{FOLDER}") if name.endswith(".json")]
    is_elsewhere = b'"cwd"' in data and not any(f'"{place}"'.encode() in data for place in here)
    return is_elsewhere or any("%" in name or name.removesuffix(".json").encode() in said for name in near)


def session_of(event: "Event") -> str:
    """The session that asks. Other sessions are none of our business, so nothing is ever guessed."""
    session = event.get("session_id") or event.get("sessionId")
    return session if isinstance(session, str) and session else next(iter(_sessions()), "")


def places_of(event: "Event") -> list[str]:
    """Where the workspace of a session may be: its project, and wherever the agent has gone since."""
    cwd = event.get("cwd")
    *projects, here = _places() or [""]
    return [place for place in (*projects, cwd if isinstance(cwd, str) else "", here) if place]


def _sessions() -> list[str]:
    return [os.environ[name] for name in SESSION_VARIABLES if os.environ.get(name)]


def _places() -> list[str]:
    named = [os.environ[name] for name in PROJECT_VARIABLES if os.environ.get(name)]
    try:
        return [*named, os.getcwd()]
    except OSError:
        return named


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _upwards(places: "Iterable[str]") -> "Iterator[str]":
    """The places and every folder above them, each once."""
    seen = set[str]()
    for place in places:
        folder = os.path.abspath(place)
        while folder not in seen:
            seen.add(folder)
            yield folder
            folder = os.path.dirname(folder)


class Unreadable(Exception):
    """A loop's file that says nothing useful."""


class Loop:
    """One loop: what its file holds, and `root`, its workspace. `transcript` is the session's, of which the first
    `offset` bytes have been judged; `answered` is when a host was last told to go on."""

    session: str
    agent: str
    run: str
    task: str
    started: float
    max_iterations: int
    transcript: str
    offset: int
    iteration: int = 0
    status: str = ACTIVE
    answered: float = 0.0

    def __init__(self, root: str, facts: "dict[str, Any]") -> None:
        kinds = Loop.__annotations__
        known = {name: facts.get(name, getattr(Loop, name, None)) for name in kinds}
        if wrong := [name for name, kind in kinds.items() if type(known[name]) is not kind]:
            raise Unreadable(f"{', '.join(wrong)} missing or wrong")
        self.root = root
        vars(self).update(known)

    @property
    def facts(self) -> "dict[str, Any]":
        return {name: getattr(self, name) for name in Loop.__annotations__}

    @property
    def path(self) -> str:
        return f"{self.root}/{FOLDER}/{file_name(self.session)}"

    def goes_on(self) -> bool:
        """Whether it is still this loop that its session is in. The folder must be locked."""
        try:
            return read(self.root, self.session).run == self.run
        except Unreadable:
            return False

    def save(self) -> None:
        _put(self.path, self.facts)

    def end(self, status: str) -> None:
        """The loop is over: it is kept, but no longer found by its session."""
        self.status = status
        ended = f"{self.root}/{FOLDER}/ended"
        os.makedirs(ended, mode=0o700, exist_ok=True)
        _put(f"{ended}/{file_name(self.session)}", self.facts)
        if os.path.exists(self.path):
            os.unlink(self.path)

    def log(self, text: str) -> None:
        """One line for people: when, which session, how far, and what was decided."""
        write_log(self.root, f"session={self.session} iteration={self.iteration}/{self.max_iterations} {text}")


def file_name(session: str) -> str:
    """A session's file: its id, with what a file name cannot hold written as %XX."""
    data = session.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data) + ".json"


def is_nameable(session: str) -> bool:
    return bool(session) and len(file_name(session)) <= LONGEST_NAME


def find(session: str, places: "Iterable[str]") -> str | None:
    """The workspace in which a loop goes on in `session`: one of `places`, or a folder above one."""
    folders = _upwards(places) if is_nameable(session) else ()
    return next((folder for folder in folders if exists(folder, session)), None)


def exists(root: str, session: str) -> bool:
    return os.path.lexists(f"{root}/{FOLDER}/{file_name(session)}")


def read(root: str, session: str) -> Loop:
    """The loop of a session; Unreadable if its file makes no sense."""
    loop = read_file(root, path := f"{root}/{FOLDER}/{file_name(session)}")
    if loop.session != session:
        raise Unreadable(f"{path}: it is another session's")
    return loop


def read_file(root: str, path: str) -> Loop:
    from ralph.files import read_file as contents

    try:
        return Loop(root, table(contents(path)))
    except (OSError, ValueError, Unreadable) as error:
        raise Unreadable(f"{path}: {error}") from None


def recorded(root: str) -> "Iterator[Loop]":
    """The loops of a workspace: those that go on, then those that have ended; each time the oldest first."""
    for folder in (f"{root}/{FOLDER}", f"{root}/{FOLDER}/ended"):
        paths = [f"{folder}/{name}" for name in _listed(folder) if name.endswith(".json")]
        for path in sorted(paths, key=lambda path: os.lstat(path).st_mtime):
            try:
                yield read_file(root, path)
            except Unreadable:
                continue  # the stop hook will say so


def set_aside(root: str, session: str) -> str:
    """Moves a file that makes no sense out of the way; nothing is lost. Where it is now."""
    path = f"{root}/{FOLDER}/{file_name(session)}"
    number = 1
    while os.path.lexists(aside := f"{path}.unreadable-{number}"):
        number += 1
    os.rename(path, aside)
    return aside


def table(data: bytes) -> "dict[str, Any]":
    """The JSON object in `data`, control characters forgiven. Anything else is a ValueError."""
    from json import loads

    try:
        value = loads(data.decode("utf-8", "replace"), strict=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _put(path: str, facts: "dict[str, Any]") -> None:
    """Replaces a file as a whole: nobody ever reads half of it."""
    from json import dumps

    from ralph.files import replace_file

    replace_file(path, dumps(facts).encode() + b"\n", 0o600)


def write_log(root: str, text: str) -> None:
    """The log is for people: a decision does not wait for it."""
    from ralph.files import add_to_file

    line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {' '.join(text.split())}\n"
    try:
        add_to_file(f"{root}/{FOLDER}/log", line.encode("utf-8", "backslashreplace"), 0o600)
    except OSError as error:
        print(f"ralph: cannot write the log: {error}", file=sys.stderr)
