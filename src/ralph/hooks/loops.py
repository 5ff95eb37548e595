"""Where is a loop kept that runs inside an agent's session? One file per session, in `.ralph/hook/` of its workspace.

    .ralph/hook/SESSION.json          a loop that is going on
    .ralph/hook/ended/SESSION.json    the last one that has ended in a session
    .ralph/hook/runs/RUN/             its journal, and what it was asked for
    .ralph/hook/log                   a line per decision

Imports almost nothing: the stop hook reads this before every answer.
"""

import os
import sys
import time

from ralph.hooks.notation import dumps, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Facts = dict[str, Any]


ACTIVE = "ACTIVE"
FOLDER = ".ralph/hook"
LONGEST_NAME = 200
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_KINDS: "dict[str, type]" = {
    **dict.fromkeys(("session", "run", "agent", "task", "promise", "on_promise_no_work", "transcript"), str),
    **dict.fromkeys(("iteration", "max_iterations", "min_tool_calls", "offset", "tool_calls"), int),
    **dict.fromkeys(("gated", "ultrawork", "anywhere"), bool),
    "started": float,
}


class Unreadable(Exception):
    """A loop's file that says nothing useful."""


class Loop:
    """One loop. `facts` is what its file holds; `root` is the workspace."""

    def __init__(self, root: str, facts: "Facts") -> None:
        self.root, self.facts = root, facts

    @property
    def path(self) -> str:
        return f"{self.root}/{FOLDER}/{file_name(self.facts['session'])}"

    @property
    def ended_path(self) -> str:
        return f"{self.root}/{FOLDER}/ended/{file_name(self.facts['session'])}"

    @property
    def journal(self) -> str:
        return f"{self.root}/{FOLDER}/runs/{self.facts['run']}/journal.ndjson"

    def goes_on(self) -> bool:
        """Whether it is still this loop that its session is in. The lock must be held."""
        try:
            return bool(read(self.root, self.facts["session"]).facts["run"] == self.facts["run"])
        except Unreadable:
            return False

    def save(self) -> None:
        put(self.path, self.facts)

    def end(self, status: str) -> None:
        """The loop is over: it is kept, but no longer found by its session."""
        self.facts["status"] = status
        os.makedirs(os.path.dirname(self.ended_path), mode=0o700, exist_ok=True)
        put(self.ended_path, self.facts)
        if os.path.exists(self.path):
            os.unlink(self.path)

    def log(self, text: str) -> None:
        """One line for people: when, which session, how far, and what was decided."""
        facts = self.facts
        place = f"{facts['iteration']}/{facts['max_iterations']}"
        write_log(self.root, f"session={facts['session']} iteration={place} {text}")


def file_name(session: str) -> str:
    """A session's file: its id, with what a file name cannot hold written as %XX."""
    data = session.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data) + ".json"


def is_nameable(session: str) -> bool:
    return bool(session) and len(file_name(session)) <= LONGEST_NAME


def find(session: str, places: "Iterable[str]") -> str | None:
    """The workspace in which a loop goes on in `session`: one of `places`, or a folder above one."""
    if not is_nameable(session):
        return None
    name, seen = file_name(session), set()
    for place in places:
        folder = os.path.abspath(place) if place else ""
        while folder and folder not in seen:
            seen.add(folder)
            if os.path.lexists(f"{folder}/{FOLDER}/{name}"):
                return folder
            folder = os.path.dirname(folder)
    return None


def exists(root: str, session: str) -> bool:
    return os.path.lexists(f"{root}/{FOLDER}/{file_name(session)}")


def read(root: str, session: str) -> Loop:
    """The loop of a session; Unreadable if its file makes no sense."""
    loop = read_file(root, path := f"{root}/{FOLDER}/{file_name(session)}")
    if loop.facts["session"] != session:
        raise Unreadable(f"{path}: it is another session's")
    return loop


def read_file(root: str, path: str) -> Loop:
    try:
        with open(path, "rb") as file:
            facts = table(file.read())
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from None
    wrong = [name for name, kind in _KINDS.items() if type(facts.get(name)) is not kind]
    if wrong:
        raise Unreadable(f"{path}: {', '.join(wrong)} missing or wrong")
    return Loop(root, facts)


def set_aside(root: str, session: str) -> str:
    """Moves a file that makes no sense out of the way; nothing is lost. Where it is now."""
    path = f"{root}/{FOLDER}/{file_name(session)}"
    number = 1
    while os.path.lexists(aside := f"{path}.unreadable-{number}"):
        number += 1
    os.rename(path, aside)
    return aside


def put(path: str, facts: "Facts") -> None:
    """Replaces a file as a whole: nobody ever reads half of it."""
    fresh = f"{path}.{os.getpid()}.new"
    with open(fresh, "wb", opener=_private) as file:
        file.write(dumps(facts).encode() + b"\n")
    os.replace(fresh, path)


def write_log(root: str, text: str) -> None:
    """The log is for people: a decision does not wait for it."""
    line = f"{stamp()} {' '.join(text.split())}\n"
    try:
        with open(f"{root}/{FOLDER}/log", "ab", opener=_private) as file:
            file.write(line.encode("utf-8", "backslashreplace"))
    except OSError as error:
        print(f"ralph: cannot write the log: {error}", file=sys.stderr)


def stamp(at: float | None = None) -> str:
    """A moment as the journal writes it."""
    at = time.time() if at is None else at
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class locked:
    """One process at a time changes the loops of a workspace. The lock dies with its holder."""

    def __init__(self, root: str) -> None:
        self._path, self._handle = f"{root}/{FOLDER}/lock", -1

    def __enter__(self) -> None:
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.lockf(self._handle, os.F_LOCK, 0)

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)
