"""The files that decide what a run does, kept in the user's state folder.

An agent works in the workspace: it may edit or remove `.ralph/`, or run `git clean -fdx`. So ralph keeps the request
(`run.json`, `work.json`), the first tasks and the copies of protected files in `~/.local/state/ralph/orders/<run id>/`,
and reads them only from there. The copies in `.ralph/` are for people.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from ralph.errors import UserError
from ralph.files import read_file, remove_tree, state_folder

_ORDERS = "orders"


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
