"""Run the commands of a copy of the repository in a mount namespace, where it is at the path of the user's tree.

An editable install, a variable with an absolute path and a linked package lead to the user's tree. In the namespace the
copy is there, under private overlays of the tree's dependency folders. Nothing else is isolated: it isn't a sandbox.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from shutil import copytree
from tempfile import mkdtemp
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import remove_tree, replace_file, write_file
from ralph.git.dependencies import Dependencies
from ralph.git.index import gitlinks
from ralph.git.worktrees import Worktree, mounts_folder
from ralph.process.own_process import OwnProcess
from ralph.process.program import CannotStart, Command, find_program, own_program
from ralph.sandbox.mounts import is_inside
from ralph.sandbox.sandbox import describe_machine

Method = Literal["mount", "user", "bubblewrap"]
"""How the namespace is made: by root, in a user namespace, or by bubblewrap 0.11 or later."""

GUIDE = "docs/guides/worktrees.md"
FREE_NAMESPACES = "allow them: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
CONTAINER = "start the container with `--security-opt seccomp=unconfined`"
_TIMEOUT = 60.0  # seconds to make a namespace
_HOLD = 'echo "$$" && exec sleep 600'  # until its namespaces are open here


class Obstacle(Struct, frozen=True):
    """Why copies cannot be in place, and what would help."""

    reason: str
    hint: str = ""


class Overlay(Struct, frozen=True):
    """A private, writable view of a folder: changes go to `upper`."""

    lower: str
    upper: str
    work: str
    path: str  # relative to the copy

    @property
    def options(self) -> str:
        # In the options of a mount, commas and colons separate; a backslash takes that away.
        lower, upper, work = (_escape(folder) for folder in (self.lower, self.upper, self.work))
        return f"userxattr,lowerdir={lower},upperdir={upper},workdir={work}"


class Bind(Struct, frozen=True):
    """`source` appears at `path`, which is relative to the copy or absolute."""

    source: str
    path: str
    is_read_only: bool = False


class Namespace:
    """The namespace of one copy. It exists as long as its descriptors are open here, so no process has to hold it.

    Overlays are mounted once: two mounts of one upper folder at a time are undefined.
    """

    def __init__(
        self, worktree: Worktree, method: Method, dependencies: Dependencies, kept: Sequence[str] = ()
    ) -> None:
        self.main, self.copy = os.path.realpath(worktree.repository.root), os.path.realpath(worktree.path)
        self._worktree, self._method, self._dependencies = worktree, method, dependencies
        paths = filter(os.path.isdir, map(os.path.realpath, kept))
        self.kept = tuple(path for path in paths if is_inside(path, (self.main,)))
        self._beside = mounts_folder(self.copy)
        self._fds: dict[str, int] = {}
        self._mounted: tuple[str, ...] = ()  # dependency folders
        self._identity: list[int] = []
        self._change_outside: Callable[[Mapping[str, str]], dict[str, str]] | None = None

    def open(self) -> None:
        """Mount everything. Raise a UserError if that fails: a check could not tell it from its own failure."""
        binds, overlays = self._make_binds(), list(self._make_overlays(self._dependencies))
        self._mounted = tuple(overlay.path for overlay in overlays)
        try:
            self._fds = _open_namespaces(self._method, self.main, self.copy, binds, overlays)
        except CannotOpen as error:
            hint = f'start again, or set "copies": "plain"; see {GUIDE}'
            raise UserError(f"the copy cannot appear at {self.main}: {error}", hint) from None
        self._identity = self._identify()

    def close(self) -> None:
        _close(self._fds)
        self._fds = {}

    def leave(self, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """Let commands see the copy at its own path from now on, in an environment that is changed for that."""
        self.close()
        self._change_outside = change

    def enter(self, command: Command) -> Command:
        """Return the command as it is started in the namespace."""
        if self._change_outside:
            return replace(command, env=self._change_outside(command.env))
        if self._identify() != self._identity:  # a mount is gone when what it covers is replaced from outside
            self.close()
            self.open()
        cwd = self.inside(os.path.realpath(command.cwd))
        if not os.path.isdir(command.cwd):
            raise CannotStart(f"cannot run {command.argv[0]} in {command.cwd}: no such folder")
        env = {name: self.inside(value) for name, value in command.env.items()}
        self._refuse_missing(command, cwd)
        argv = (*_entering(self._fds, 3 + len(command.fds)), cwd, *command.argv)
        fds = (*command.fds, *map(os.dup, self._fds.values()))
        return replace(command, argv=argv, env={**env, "PWD": cwd}, fds=fds)

    def inside(self, path: str) -> str:
        """Return the name that a path of the copy or of the user's git folder has inside; other text unchanged."""
        for outside, name in () if self._change_outside else self.names:
            if path == outside or path.startswith(f"{outside}/"):
                return name + path[len(outside) :]
        return path

    def outside(self, path: str) -> str:
        """Return where a path in the namespace can be found outside: in the copy, or in a dependency folder."""
        in_copy = self.copy + path.removeprefix(self.main)
        is_mounted = any(is_inside(path, (f"{self.main}/{folder}",)) for folder in self._mounted)
        return in_copy if is_inside(path, (self.main,)) and not is_mounted else path

    @property
    def is_in_use(self) -> bool:
        return self._change_outside is None

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Paths outside, and their names inside."""
        git = ((f"{self.main}/.git", f"{self._beside}/git"),) if self._covers_git else ()
        return ((self.copy, self.main), *git)

    @property
    def _covers_git(self) -> bool:
        """Whether the copy covers the repository. If the user's tree is a linked worktree, it is somewhere else."""
        return os.path.isdir(f"{self.main}/.git")

    def _identify(self) -> list[int]:
        """Return what changes when the copy, or its `.git`, is replaced: git makes a copy that a check broke again."""
        try:
            return [os.lstat(path).st_ino for path in (self.copy, f"{self.copy}/.git")]
        except OSError:
            return []

    def _refuse_missing(self, command: Command, cwd: str) -> None:
        """Raise CannotStart if the program exists neither in the copy nor in what is mounted over it."""
        try:
            find_program(command.argv[0], command.env, command.cwd)
        except CannotStart:
            find_program(command.argv[0], command.env, cwd)

    def _make_binds(self) -> list[Bind]:
        """Create the mount points for git and for the kept folders, and return what is mounted there."""
        binds = list[Bind]()
        if self._covers_git:
            os.makedirs(f"{self._beside}/git", exist_ok=True)
            name = os.path.basename(self._worktree.git.git_dir)
            replace_file(f"{self._beside}/gitfile", f"gitdir: {self._beside}/git/worktrees/{name}\n".encode())
            binds += [Bind(f"{self.main}/.git", f"{self._beside}/git"), Bind(f"{self._beside}/gitfile", ".git", True)]
        for path in self.kept:
            inner = os.path.relpath(path, self.main)
            with suppress(FileExistsError, NotADirectoryError):
                os.makedirs(f"{self.copy}/{inner}", exist_ok=True)
            if os.path.realpath(f"{self.copy}/{inner}") == f"{self.copy}/{inner}":  # else an agent has put a link there
                binds.append(Bind(path, inner))
        return binds

    def _make_overlays(self, dependencies: Dependencies) -> Iterator[Overlay]:
        """Create the folders of the overlays. What --setup or the agent made in the copy wins over the user's tree."""
        for path in (*dependencies.folders, *dependencies.linked):
            source, target = f"{self.main}/{path}", f"{self.copy}/{path}"
            if os.path.islink(target) and os.path.realpath(target) == os.path.realpath(source):
                os.unlink(target)  # from --setup "ln -s …/node_modules .": inside it would lead to itself
            is_filled = os.path.lexists(target) and (not os.path.isdir(target) or bool(os.listdir(target)))
            if is_filled or os.path.realpath(os.path.dirname(target)) != os.path.dirname(target):
                continue
            if path in dependencies.linked:
                copytree(source, target, symlinks=True, dirs_exist_ok=True)
                continue
            name = f"{self._beside}/{sha256(os.fsencode(path)).hexdigest()[:16]}"
            for folder in (f"{name}.upper", f"{name}.work", target):
                os.makedirs(folder, exist_ok=True)
            yield Overlay(os.path.realpath(source), f"{name}.upper", f"{name}.work", path)


class CannotOpen(Exception):
    """The namespace could not be made; the message says why."""


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(",", "\\,").replace(":", "\\:")


def _program(name: str) -> str:
    if not (path := own_program(name)):
        raise CannotOpen(f"{name} is not installed")
    return path


def _starting(
    method: Method, main: str, copy: str, binds: Sequence[Bind], overlays: Sequence[Overlay]
) -> tuple[str, ...]:
    """Return the command that makes the namespace, prints the pid of a process in it, and waits."""
    if method == "bubblewrap":
        return _starting_bubblewrap(main, copy, binds, overlays)
    mount, unshare, user = _program("mount"), _program("unshare"), (str(os.getuid()), str(os.getgid()))
    lines: list[tuple[str, ...]] = [
        (mount, "-t", "overlay", "-o", overlay.options, "overlay", f"{copy}/{overlay.path}") for overlay in overlays
    ]
    for bind in binds:
        options = "bind,ro" if bind.is_read_only else "bind"
        lines.append((mount, "-o", options, bind.source, os.path.join(copy, bind.path)))
    lines += [(mount, "--rbind", copy, main)]
    script = " && ".join(map(shlex.join, lines))
    if method == "mount":
        return (unshare, "--mount", "sh", "-c", f"{script} && {_HOLD}")
    inner = (unshare, "--user", f"--map-user={user[0]}", f"--map-group={user[1]}", "--mount", "sh", "-c", _HOLD)
    return (unshare, "--user", "--map-root-user", "--mount", "sh", "-c", f"{script} && exec {shlex.join(inner)}")


def _starting_bubblewrap(main: str, copy: str, binds: Sequence[Bind], overlays: Sequence[Overlay]) -> tuple[str, ...]:
    user = ("--unshare-user", "--uid", str(os.getuid()), "--gid", str(os.getgid()), "--die-with-parent")
    words = [_program("bwrap"), *user, "--dev-bind", "/", "/", "--dev-bind", copy, main]
    for overlay in overlays:
        words += ["--overlay-src", overlay.lower, "--overlay", overlay.upper, overlay.work, f"{main}/{overlay.path}"]
    for bind in binds:
        option = "--ro-bind" if bind.is_read_only else "--dev-bind"
        words += [option, bind.source, os.path.join(main, bind.path)]
    return (*words, "--", "sh", "-c", _HOLD)


def _open_namespaces(
    method: Method, main: str, copy: str, binds: Sequence[Bind], overlays: Sequence[Overlay]
) -> dict[str, int]:
    """Make the namespaces; return descriptors of them, which keep them alive."""
    argv, fds = _starting(method, main, copy, binds, overlays), dict[str, int]()
    with OwnProcess(Command(argv=argv, env=os.environ)) as holder:
        try:
            text = holder.first_line(_TIMEOUT)
            if not text.strip().isdigit():
                raise CannotOpen(holder.error.strip().partition("\n")[0] or f"{argv[0]} has failed")
            for kind in ("mnt",) if method == "mount" else ("user", "mnt"):
                fds[kind] = os.open(f"/proc/{int(text)}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
        except (OSError, CannotOpen) as error:
            _close(fds)
            reason = f"no answer within {_TIMEOUT:g}s" if isinstance(error, TimeoutError) else str(error)
            raise CannotOpen(reason) from None
    return fds


def _close(fds: Mapping[str, int]) -> None:
    for fd in fds.values():
        os.close(fd)


def _entering(kinds: Iterable[str], first: int) -> tuple[str, ...]:
    """Return the words in front of a folder and a command that enter namespaces, whose descriptors begin at `first`."""
    options, fds = {"user": "--user", "mnt": "--mount"}, {kind: fd for fd, kind in enumerate(kinds, first)}
    entered = [f"{options[kind]}=/proc/self/fd/{fd}" for kind, fd in fds.items()]
    keep = ("--preserve-credentials",) if "user" in fds else ()
    closing = " ".join(f"{fd}<&-" for fd in fds.values())
    # Entering a user namespace clears the signal by which a program dies with its keeper.
    start = (_program("nsenter"), *entered, *keep, "--", _program("setpriv"), "--pdeathsig", "KILL", "--")
    return (*start, "/bin/sh", "-c", f'cd "$0" && exec "$@" {closing}')


# Which machines and repositories can have copies in place


@cache
def find_method(folder: str) -> Method | Obstacle:
    """Return how this machine shows a copy in `folder` in place, by trying it; or why it can't."""
    if sys.platform != "linux":
        return Obstacle("it needs Linux")
    reasons = list[str]()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    place = mkdtemp(prefix="probe-", dir=folder)
    try:
        for name in ("main/deps", "copy/deps", "upper", "work"):
            os.makedirs(f"{place}/{name}")
        write_file(f"{place}/main/deps/file", b"")
        overlay = Overlay(f"{place}/main/deps", f"{place}/upper", f"{place}/work", "deps")
        for method in ("mount", "user", "bubblewrap") if os.geteuid() == 0 else ("user", "bubblewrap"):
            try:
                _try_method(method, place, overlay)
            except CannotOpen as error:
                reasons.append(str(error))
            else:
                return method
    finally:
        remove_tree(place)
    return _explain(reasons[-2])  # that of `unshare`: bubblewrap may be missing


def _try_method(method: Method, place: str, overlay: Overlay) -> None:
    """Enter a namespace, and write to a folder on an overlay there. Raise CannotOpen if that fails."""
    fds = _open_namespaces(method, f"{place}/main", f"{place}/copy", (), (overlay,))
    try:
        words = ("sh", "-c", "test -f main/deps/file && echo > main/deps/new")
        argv, passed = (*_entering(fds, 3), place, *words), tuple(map(os.dup, fds.values()))
        with OwnProcess(Command(argv=argv, env=os.environ, fds=passed)) as process:
            process.output(timeout=_TIMEOUT)
        if process.code:
            raise CannotOpen(process.error.strip() or f"nsenter exited with {process.code}")
    except OSError as error:
        raise CannotOpen(str(error)) from None
    finally:
        _close(fds)


def _explain(reason: str) -> Obstacle:
    machine = describe_machine(os.environ)
    if machine.has_apparmor:
        return Obstacle("AppArmor lets only programs with a profile create namespaces", FREE_NAMESPACES)
    if machine.is_container:
        return Obstacle(f"this container does not allow namespaces ({reason})", CONTAINER)
    return Obstacle(f"this machine does not allow it ({reason})", f"see {GUIDE}")


def find_obstacle(worktree: Worktree, dependencies: Dependencies, texts: Iterable[str]) -> Obstacle | None:
    """Return why this worktree cannot be in place, if it can't. `texts` are commands and paths of the settings."""
    main, copy = os.path.realpath(worktree.repository.root), os.path.realpath(worktree.path)
    home = os.path.realpath(os.path.expanduser("~"))
    if is_inside(home, (main,)):
        return Obstacle(f"{main} contains your home")
    if any(os.path.lexists(os.path.join(copy, os.fsdecode(path), ".git")) for path in gitlinks(worktree.git)):
        return Obstacle("it has submodules")  # their `.git` files lead to relative paths, which are others inside
    folders = (*dependencies.folders, *dependencies.linked)
    pattern = re.compile(re.escape(main) + r"/([^\s'\":;,]+)")
    for path in (match[1] for text in texts for match in pattern.finditer(text)):
        is_there = os.path.lexists(f"{copy}/{path}") or is_inside(path, (*folders, ".git"))
        if os.path.exists(f"{main}/{path}") and not is_there:
            return Obstacle(f"{main}/{path} is only in your tree", "git add it, or use its path in .worktreeinclude")
    return None
