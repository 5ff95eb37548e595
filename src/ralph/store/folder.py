"""The `.ralph/` folder of a workspace, and the files in the user's state folder that decide what a run does.

`.ralph/` has settings, logs of checks, locks, and one private folder per run. An agent may edit or remove it, or run
`git clean -fdx`. So ralph keeps the request (`run.json`, `work.json`), the first tasks and the copies of protected
files in `~/.local/state/ralph/orders/<run id>/`, and reads them only from there; the copies in `.ralph/` are for
people. What exams printed is there as well, because the agent can read the run's own folder.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct, json

from ralph.core.model import Turn
from ralph.errors import UserError, shortage
from ralph.files import (
    ReplacedFileError,
    StrPath,
    acquire_lock,
    is_alive,
    load_json,
    make_folder,
    open_file,
    read_file,
    remove_tree,
    replace_file,
    save_file,
    state_folder,
    try_lock,
    write_file,
)
from ralph.process.descendants import MARK

_ORDERS = "orders"
_EXAMS, _LIST = "exams", "exams.json"
IGNORE = "# Data of ralph's runs stays out of git, this file too; the project's settings do not.\n*\n!settings.json\n"


def prepare(workspace: Path) -> Path:
    """Return the workspace's `.ralph/`; create it if it is missing, and keep it out of git."""
    folder = workspace / ".ralph"
    with report_write_errors(folder):
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise ReplacedFileError(errno.ELOOP, "it is a link", str(folder))
        if not is_ignored(folder):
            write_file(folder / ".gitignore", IGNORE.encode())
    return folder


def is_ignored(folder: StrPath) -> bool:
    """Whether the folder has a `.gitignore`."""
    return os.path.lexists(f"{os.fspath(folder)}/.gitignore")


def cannot_write(path: StrPath, error: OSError) -> UserError:
    short = shortage(error)
    hint = "make the workspace writable, free some space, or name another workspace with -C DIR"
    return UserError(f"cannot write {path}: {error.strerror or error}", short.hint if short else hint)


@contextmanager
def report_write_errors(path: StrPath) -> Iterator[None]:
    """Report an OSError in the block as the reason why `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


def write(path: StrPath, data: bytes) -> None:
    """Write a file; create its folder again if an agent has removed it."""
    with report_write_errors(path):
        try:
            write_file(path, data)
        except FileNotFoundError:
            make_folder(os.path.dirname(path))
            write_file(path, data)


class RunFolder:
    """`.ralph/runs/<run-id>/`: the journal, and what each iteration read and wrote. Only its owner can read it."""

    def __init__(self, ralph: Path, run_id: str) -> None:
        self.id = run_id
        self.path = ralph / "runs" / run_id

    def make(self) -> None:
        with report_write_errors(self.path):
            for folder in (self.path.parent, self.path):
                make_folder(str(folder))
                folder.chmod(0o700)  # it may have been there

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the run, whole or not at all."""
        path = self.path / name
        with report_write_errors(path):
            make_folder(str(path.parent))
            replace_file(path, data)

    @property
    def env(self) -> Mapping[str, str]:
        """Variables that the latest turn adds to the environment of its programs."""
        return {}

    @property
    def journal(self) -> Path:
        return self.path / "journal.ndjson"

    def close(self) -> None:
        """Called when the run has ended."""

    def turn(self, number: int, purpose: str = "work", agent: str = "") -> "TurnFolder":
        """Create and return the folder of an iteration, or of another turn inside it, such as a review."""
        name = f"{number:03d}" if purpose == "work" else f"{number:03d}-{purpose}"
        folder = f"{self.path}/iterations/{name}"
        with report_write_errors(folder):
            make_folder(folder)
        return TurnFolder(folder)


class TurnFolder:
    """The folder with prompt, logs and answer of one turn. `env` is added to the environment of its agent."""

    stdout_name = "stdout.log"
    stderr_name = "stderr.log"

    def __init__(self, path: str, env: Mapping[str, str] | None = None) -> None:
        self.path, self.env = path, env or {}
        self.prompt, self.output = f"{path}/prompt.md", f"{path}/output.md"
        self.stdout, self.stderr = f"{path}/{self.stdout_name}", f"{path}/{self.stderr_name}"

    def scratch(self) -> str:
        """Create and return a folder in which the agent may write."""
        folder = f"{self.path}/scratch"
        with report_write_errors(folder):
            make_folder(folder)
        return folder

    def record_start(self, pid: int) -> None:
        """Record that the agent is running."""

    def record_end(self, turn: Turn, answer: bytes) -> None:
        """Write the agent's answer. The caller has already redacted it."""
        write(self.output, answer)


class Log(Struct, frozen=True):
    """The start or the end of a file, and its whole size."""

    data: bytes
    size: int


def read_log(run: Path, number: int, name: str, most: int, tail: bool = False) -> Log:
    """Return at most `most` bytes of a file of an iteration, from its start or, with `tail`, its end."""
    fd = open_file(f"{run}/iterations/{number:03d}/{name}")
    try:
        size = os.fstat(fd).st_size
        return Log(os.pread(fd, most, max(0, size - most) if tail else 0), size)
    finally:
        os.close(fd)


def new_run_id(now: float) -> str:
    """Return a new id. Ids sort by time, to the thousandth of a second, and end in four easy characters."""
    letters = "23456789abcdefghijkmnpqrstuvwxyz"  # 32 characters, sorted
    thousandth = int(now % 1 * 1024)
    numbers = (thousandth // 32, thousandth % 32, *os.urandom(2))
    suffix = "".join(letters[number % 32] for number in numbers)
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{suffix}"


LOCK_TIMEOUT = 3.0  # seconds


@contextmanager
def backlog_lock(ralph: Path, run_id: str) -> Iterator[None]:
    """Keep other backlogs from running in the workspace while entered: two would start the same tasks."""
    handle = _lock(ralph / "work.lock", run_id, "another backlog is running in")
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def workspace_lock(ralph: Path, run_id: str) -> Iterator[Callable[[], None]]:
    """Keep other runs from working in the workspace while entered. Yield a function that locks again if the file was
    removed.

    Children do not inherit the lock, and the kernel releases it when this process dies.
    """
    handles = [_lock(ralph / "lock", run_id)]

    def lock_again() -> None:
        if os.fstat(handles[-1]).st_nlink == 0:
            handles.append(_lock(ralph / "lock", run_id))

    try:
        yield lock_again
    finally:
        for handle in handles:
            os.close(handle)


def is_occupied(folder: Path) -> bool:
    try:
        handle = open_file(folder / ".ralph" / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        return not try_lock(handle)
    finally:
        os.close(handle)


def _lock(path: Path, run_id: str, trouble: str = "another run is running in") -> int:
    """Return the lock's descriptor, or raise an error that names the holder.

    Wait a moment if the holder has died: its child may not have started its program yet, and then still has the lock.
    """
    with report_write_errors(path):
        handle = open_file(path, os.O_RDWR | os.O_CREAT)

    def read_holder() -> str:
        return os.pread(handle, 200, 0).decode(errors="replace").strip()

    def time_left() -> float:
        process = read_holder().rpartition(" ")[2]
        return 0.0 if process.isdecimal() and is_alive(int(process)) else LOCK_TIMEOUT

    try:
        acquire_lock(handle, path, LOCK_TIMEOUT, time_left)
    except UserError:
        holder = read_holder()
        os.close(handle)
        raise UserError(
            f"{trouble} {path.parent.parent}: {holder or 'unknown'}",
            "wait for it, stop it with `ralph stop`, or work next to it with --worktree",
        ) from None
    with report_write_errors(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"run {run_id}, process {os.getpid()}\n".encode(), 0)
    return handle


PROOFS, MAX_PROOFS = "proofs.json", 1000


def seen_red(ralph: Path) -> frozenset[str]:
    return frozenset(load_json(ralph / PROOFS, list[str]) or ())


def remember_red(ralph: Path, commands: Iterable[str]) -> None:
    """Record that these checks have failed, which proves that they can. Ignore errors: then the
    checks stay unproven."""
    proven = seen_red(ralph)
    if fresh := [command for command in dict.fromkeys(commands) if command not in proven]:
        with suppress(OSError):
            replace_file(ralph / PROOFS, json.encode([*sorted(proven), *fresh][-MAX_PROOFS:]))


def order_folder(run_id: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the folder with the files that decide what this run does. It may not exist yet."""
    return os.path.join(state_folder(env, _ORDERS), run_id)


def backlog_order_folder(run: Path, env: Mapping[str, str] = os.environ) -> str:
    """Return the same folder for a backlog. Its name contains a hash of `run`, because several clones may work on one
    backlog."""
    clone = blake2b(os.fsencode(os.path.realpath(run)), digest_size=4).hexdigest()
    return f"{order_folder(run.name, env)}-{clone}"


def read_order(path: str, run_id: str) -> bytes:
    """Return the content of a file of an order folder. Raise a UserError if it is missing or unreadable."""
    try:
        return read_file(path)
    except FileNotFoundError:
        raise UserError(
            f"run {run_id} cannot be resumed here: {path} is missing",
            "it was discarded, or started by another user or on another machine: start a new run",
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check its permissions, or start a new run") from None


def remove_orders(run_id: str) -> None:
    """Remove the order folders of a run or a backlog, for all its clones."""
    folder = state_folder(os.environ, _ORDERS)
    with suppress(OSError):
        for name in os.listdir(folder):
            if name == run_id or name.startswith(f"{run_id}-"):
                remove_tree(os.path.join(folder, name))


class ExamOutput(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One exam that was run at a `stage`, such as the claim of "iteration 3". `log` holds what it printed."""

    stage: str
    command: str
    passed: bool
    ending: str
    duration: float
    log: str

    def text(self, most: int) -> str:
        """Return the last `most` bytes of what the exam printed; empty if they are gone."""
        try:
            return read_file(self.log)[-most:].decode("utf-8", "replace")
        except OSError:
            return ""


def exam_folder(run_id: str, env: Mapping[str, str] = os.environ) -> str:
    return os.path.join(order_folder(run_id, env), _EXAMS)


def add_exam_output(folder: str, output: ExamOutput) -> None:
    others = [other for other in read_exam_outputs(folder) if other.log != output.log]
    save_file(os.path.join(folder, _LIST), json.encode([*others, output]))


def load_exam_outputs(run_id: str, env: Mapping[str, str] = os.environ) -> Sequence[ExamOutput]:
    """Return what the exams of a run printed, oldest first; nothing for a program that a run has started."""
    return [] if env.get(MARK) else read_exam_outputs(exam_folder(run_id, env))


def read_exam_outputs(folder: str) -> list[ExamOutput]:
    return load_json(os.path.join(folder, _LIST), list[ExamOutput]) or []
