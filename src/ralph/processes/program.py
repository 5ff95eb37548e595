"""What is to be started, and which file is that? Looked up as in the command's own folder and on its own PATH."""

import os
from collections.abc import Iterator, Mapping

from msgspec import Struct

from ralph.errors import UserError


class Command(Struct, frozen=True, kw_only=True):
    """What to start, and all that it can read on its stdin. `patience`: the seconds in which it may come to an end by
    itself once it has to end. `boxed`: it makes a box and starts a program in there; `fds` are for it alone, from 3 on,
    and are closed here once it has them."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""
    patience: float = 0.0
    boxed: bool = False
    fds: tuple[int, ...] = ()


class CannotStart(UserError):
    """A program could not be started at all."""


class ProgramMissing(CannotStart):
    pass


class ProgramNotExecutable(CannotStart):
    pass


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """The path of the program; says why there is none."""
    for path in _places(name, env, cwd):
        if os.access(path, os.X_OK) and os.path.isfile(path):  # in this order: `access` is quick to say no
            return path
    for path in _places(name, env, cwd):
        if os.path.isfile(path):
            raise ProgramNotExecutable(f"not executable: {path}", f"try: chmod +x {path}")
    if "/" in name:
        raise ProgramMissing(f"no such program: {name}", "check the path")
    raise ProgramMissing(f"command not found: {name}", "is it installed, and is its folder on PATH?")


def _places(name: str, env: Mapping[str, str], cwd: str) -> Iterator[str]:
    """Where a program of this name may be."""
    if "/" in name:
        yield os.path.join(cwd, name)
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        # Every check looks for its shell: `os.path.join` takes longer than to look.
        yield f"{folder.rstrip('/')}/{name}" if folder.startswith("/") else os.path.join(cwd, folder, name)


def explained(error: OSError, program: str, cwd: str) -> CannotStart:
    """What the system's refusal to start `program` means to a person."""
    if error.filename == cwd:
        return CannotStart(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return ProgramMissing(f"cannot run {program}: the interpreter in its first line is missing")
    if isinstance(error, PermissionError):
        return ProgramNotExecutable(f"cannot run {program}: {error.strerror}", f"try: chmod +x {program}")
    return CannotStart(f"cannot run {program}: {error.strerror}")
