"""What is to be started, and which file is that? Looked up as in the command's own folder and on its own PATH."""

import os
from collections.abc import Mapping

from msgspec import Struct

from ralph.errors import UserError


class Command(Struct, frozen=True):
    """What to start, and all that it can read on its stdin."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdin: bytes = b""


class CannotStart(UserError):
    """A program could not be started at all."""


class ProgramMissing(CannotStart):
    pass


class ProgramNotExecutable(CannotStart):
    pass


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """The path of the program; says why there is none."""
    folders = [""] if "/" in name else env.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(cwd, folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):  # in this order: `access` is quick to say no
            return path
    for path in (os.path.join(cwd, folder, name) for folder in folders):
        if os.path.isfile(path):
            raise ProgramNotExecutable(f"not executable: {path}", f"try: chmod +x {path}")
    if "/" in name:
        raise ProgramMissing(f"no such program: {name}", "check the path")
    raise ProgramMissing(f"command not found: {name}", "is it installed, and is its folder on PATH?")


def explained(error: OSError, program: str, cwd: str) -> CannotStart:
    """What the system's refusal to start `program` means to a person."""
    if error.filename == cwd:
        return CannotStart(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return ProgramMissing(f"cannot run {program}: the interpreter in its first line is missing")
    if isinstance(error, PermissionError):
        return ProgramNotExecutable(f"cannot run {program}: {error.strerror}", f"try: chmod +x {program}")
    return CannotStart(f"cannot run {program}: {error.strerror}")
