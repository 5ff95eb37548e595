"""The files that decide what a run does, kept in the user's state folder.

An agent works in the workspace: it may edit or remove `.ralph/`, or run `git clean -fdx`. So ralph keeps the request
(`run.json`, `work.json`), the first tasks and the copies of protected files in `~/.local/state/ralph/orders/<run id>/`,
and reads them only from there. The copies in `.ralph/` are for people. What exams printed is there as well, because the
agent can read the run's own folder.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from ralph.errors import UserError
from ralph.files import load_json, read_file, remove_tree, save_file, state_folder
from ralph.process.descendants import MARK

_ORDERS = "orders"
_EXAMS, _LIST = "exams", "exams.json"


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


def remove_orders(run_id: str, env: Mapping[str, str] = os.environ) -> None:
    """Remove the order folders of a run or a backlog, for all its clones."""
    folder = state_folder(env, _ORDERS)
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
    kept = [one for one in _read(folder) if one.log != output.log]
    save_file(os.path.join(folder, _LIST), msgspec.json.encode([*kept, output]))


def load_exam_outputs(run_id: str, env: Mapping[str, str] = os.environ) -> Sequence[ExamOutput]:
    """Return what the exams of a run printed, oldest first; nothing for a program that a run has started."""
    return [] if env.get(MARK) else _read(exam_folder(run_id, env))


def _read(folder: str) -> list[ExamOutput]:
    return load_json(os.path.join(folder, _LIST), list[ExamOutput]) or []
