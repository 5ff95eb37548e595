"""Lead the commands of a copy to it when they see it at its own path: the copy cannot be in place of the user's tree.

Dependency folders are cloned, and what would lead to the user's tree leads to the copy. That is less than a namespace
can do: a path in a file still leads to the user's tree.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress

from ralph.errors import UserError
from ralph.git.dependencies import Dependencies
from ralph.git.worktrees import Worktree
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command
from ralph.verdict.leads import editable_installs

_NOT_CLONED = frozenset({".tox", ".nox"})  # their environments lead to the user's tree, and tox makes new ones
_CLONE = ("cp", "-cR") if sys.platform == "darwin" else ("cp", "-a", "--reflink=auto")


def clone_dependencies(worktree: Worktree, dependencies: Dependencies) -> None:
    """Copy the dependency folders of the user's tree that the worktree doesn't have, without their blocks if the file
    system can do that."""
    main, copy = os.path.realpath(worktree.repository.root), os.path.realpath(worktree.path)
    for path in (*dependencies.folders, *dependencies.linked):
        target = f"{copy}/{path}"
        is_ours = os.path.realpath(os.path.dirname(target)) == os.path.dirname(target)
        if os.path.lexists(target) and not _is_empty(target):
            continue
        if os.path.basename(path) in _NOT_CLONED or not is_ours:
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with suppress(OSError):
            os.rmdir(target)
        command = Command(argv=(*_CLONE, f"{main}/{path}", target), env=os.environ)
        with OwnProcess(command, worktree.repository.deadline) as process:
            process.output(timeout=float("inf"))
        if process.code:
            shutil.rmtree(target, ignore_errors=True)
            reason = process.error.strip().partition("\n")[0]
            raise UserError(f"cannot copy {main}/{path}: {reason}", 'free some space, or make it with --setup "CMD"')


def _is_empty(folder: str) -> bool:
    return os.path.isdir(folder) and not os.path.islink(folder) and not os.listdir(folder)


def lead_to_copy(env: Mapping[str, str], main: str, copy: str) -> dict[str, str]:
    """Return the environment in which variables and editable installs lead to the copy instead of the tree `main`, if
    the copy has what they name."""
    imports = [_in_copy(lead.target, main, copy) for lead in editable_installs(main, env)]
    folders = [folder for folder in dict.fromkeys(imports) if folder.startswith(copy)]
    home = os.path.realpath(env.get("HOME") or os.path.expanduser("~"))
    if f"{home}/".startswith(f"{main}/"):  # then the user's whole home is in the tree: sessions, logins, caches
        return dict(env)
    # `.git` of a copy is a file, and ralph's own git gets the repository's folder.
    led = {name: value if name.startswith("GIT_") else _lead_value(value, main, copy) for name, value in env.items()}
    if folders:
        led["PYTHONPATH"] = os.pathsep.join((*folders, *filter(None, (led.get("PYTHONPATH", ""),))))
    return led


def _lead_value(value: str, main: str, copy: str) -> str:
    """Return the value of a variable, a path or several with colons, with the paths in the copy."""
    return ":".join(_in_copy(part, main, copy) for part in value.split(":")) if main in value else value


def _in_copy(path: str, main: str, copy: str) -> str:
    is_there = path == main or (path.startswith(f"{main}/") and os.path.exists(copy + path[len(main) :]))
    return copy + path[len(main) :] if is_there else path
