"""Which file is a program, and why it can't be started."""

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ralph.errors import UserError


class Command(Struct, frozen=True, kw_only=True):
    """A program to start, and all of its stdin.

    `term_delay` is how many seconds it may take to end by itself before it gets SIGTERM. If it is `sandboxed`, the
    program is bubblewrap, which starts the real one. `fds` are passed to it from descriptor 3 on, and then closed here.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = ""
    stdin: bytes = b""
    term_delay: float = 0.0
    sandboxed: bool = False
    fds: tuple[int, ...] = ()


class CannotStart(UserError):
    """A program could not be started at all."""


class ProgramMissing(CannotStart):
    pass


class ProgramNotExecutable(CannotStart):
    pass


def find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """Return the path of a program, looked up in `cwd` and on the PATH of `env`; raise CannotStart if there is none."""
    for path in _candidates(name, env, cwd):
        if _is_program(path):
            return path
    for path in _candidates(name, env, cwd):
        if os.path.isfile(path):
            raise ProgramNotExecutable(f"not executable: {path}", f"try: chmod +x {path}")
    if "/" in name:
        raise ProgramMissing(f"no such program: {name}", "check the path")
    raise ProgramMissing(f"command not found: {name}", "is it installed, and is its folder on PATH?")


def own_program(name: str, untrusted: Sequence[str] = ()) -> str:
    """Return the path of a program that ralph itself needs, such as git; empty if there is none.

    A program inside a workspace or repository (a virtual environment on PATH, for example) counts only if there is no
    other: an agent may have put it there. One inside an `untrusted` folder never counts.
    """
    if "/" in name:
        return name
    folders = [folder for folder in search_path(untrusted).split(os.pathsep) if folder.startswith("/")]
    programs = [path for folder in folders if _is_program(path := f"{folder}/{name}")]
    trusted = (path for path in programs if not _is_in_work(path) and not _is_in_work(os.path.realpath(path)))
    return next(trusted, "") or next(iter(programs), "")


def search_path(untrusted: Sequence[str] = ()) -> str:
    """Return the PATH for programs that ralph itself runs, without what is inside the `untrusted` folders."""
    path = os.environ.get("PATH", os.defpath)
    if not untrusted:
        return path
    excluded = tuple(f"{os.path.realpath(folder)}/" for folder in untrusted)
    entries = [entry for entry in path.split(os.pathsep) if os.path.isabs(entry)]
    return os.pathsep.join(entry for entry in entries if not f"{os.path.realpath(entry)}/".startswith(excluded))


def start_error(error: OSError, program: str, cwd: str) -> CannotStart:
    """Explain why the system refused to start `program`."""
    if error.filename == cwd:
        return CannotStart(f"cannot run {program} in {cwd}: {error.strerror}")
    if isinstance(error, FileNotFoundError):
        return ProgramMissing(f"cannot run {program}: the interpreter in its first line is missing")
    if isinstance(error, PermissionError):
        return ProgramNotExecutable(f"cannot run {program}: {error.strerror}", f"try: chmod +x {program}")
    return CannotStart(f"cannot run {program}: {error.strerror}")


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK) and os.path.isfile(path)


def _candidates(name: str, env: Mapping[str, str], cwd: str) -> Iterator[str]:
    if "/" in name:
        yield os.path.join(cwd, name)
        return
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        yield os.path.join(cwd, folder, name)


def _is_in_work(path: str) -> bool:
    """Return whether the path is inside a workspace or a repository."""
    while (folder := os.path.dirname(path)) != path:
        if os.path.lexists(f"{folder}/.ralph") or os.path.lexists(f"{folder}/.git"):
            return True
        path = folder
    return False
