"""The sandbox of a run: created, tested before anything is spent, and cleaned up after each process.

`mounts` says what is visible inside, `discovery` finds it on this machine. What has to be cleaned up is recorded in a
file first, so that the keeper or the next run can do it for a run that was killed.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from shutil import move

import msgspec
from msgspec.structs import replace

from ralph.errors import UNREADABLE, UserError
from ralph.files import acquire_lock, names_in, open_file, remove_tree, try_lock
from ralph.process.keeper import PACKAGE_ROOT, Keeper, KeeperLost
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command, find_program
from ralph.sandbox import network
from ralph.sandbox.discovery import SandboxRequest, find_view, read_start, refresh_view
from ralph.sandbox.mounts import (
    CopyNamespace,
    Mount,
    SandboxView,
    bubblewrap_command,
    guarded_folders,
    is_inside,
    mount_table,
    rename_mounts,
    required_folders,
    sandbox_environment,
)
from ralph.sandbox.network import Network, Reachable

INSTALL = "install it: `apt-get install bubblewrap` (dnf, pacman, zypper and apk call it the same)"
GUIDE = "docs/guides/sandbox.md"
_UNTOUCHED = b"untouched\n"
_PROBE = 'echo inside > /tmp/.probe && cat /tmp/.probe && rm /tmp/.probe; echo touched > "$1"'
_PROBE_TIMEOUT = 60.0  # seconds


class CleanupRecord(msgspec.Struct):
    """What to do when a sandbox ends.

    `tmp` is removed. Whatever is at the `watched` paths is moved away, unless it is the link that was there before. New
    links in `linkless` folders are moved away, and at any depth in `linkless_trees`; the lists name links to keep.
    """

    tmp: str
    watched: dict[str, str | None] = {}
    linkless: dict[str, list[str]] = {}
    linkless_trees: dict[str, list[str]] = {}


class CleanupFile:
    """The file that holds the record. It is locked while its sandbox exists."""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd, self._written = path, fd, b""

    @classmethod
    def open(cls, path: str) -> "CleanupFile":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        acquire_lock(fd, path)
        return cls(path, fd)

    def write(self, record: CleanupRecord) -> None:
        text = msgspec.json.encode(record)
        if text != self._written:
            self._written = text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        os.unlink(self._path)
        os.close(self._fd)


def links_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def links_below(folder: str) -> list[str]:
    """Return the links at any depth, relative to `folder`. Folders behind links are not entered."""
    paths = []
    for place, folders, files in os.walk(folder):
        paths += [os.path.join(place, name) for name in (*folders, *files)]
    return [os.path.relpath(path, folder) for path in paths if os.path.islink(path)]


def move_planted(record: CleanupRecord, folder: str) -> Iterator[tuple[str, str]]:
    """Move what was planted to `folder`; yield old and new path. Links go first: they may be on the way to the rest."""
    new_links = [(place, set(links_in(place)) - set(before)) for place, before in record.linkless.items()]
    new_links += [(place, set(links_below(place)) - set(before)) for place, before in record.linkless_trees.items()]
    for path in sorted(f"{place}/{name}" for place, names in new_links for name in names):
        if path not in record.watched:
            yield path, _move(path, folder)
    for path, link in record.watched.items():
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == link):
            yield path, _move(path, folder)
            if link is not None:
                os.symlink(link, path)


def _move(path: str, folder: str) -> str:
    target = f"{folder}/{time.time_ns()}-{os.path.basename(path)}"
    move(path, target)
    return target


def clean_up_killed_runs(folder: str) -> None:
    """Do what runs that were killed could not do themselves."""
    for name in names_in(f"{folder}/open"):
        path = f"{folder}/open/{name}"
        # Locked: its run is alive. Unreadable: it was killed before the sandbox started.
        with suppress(OSError, *UNREADABLE), open(open_file(path), "rb") as file:
            if not try_lock(file.fileno()):
                continue
            os.unlink(path)
            record = msgspec.json.decode(file.read(), type=CleanupRecord)
            list(move_planted(record, f"{folder}/planted"))
            remove_folder(record.tmp)


def remove_folder(folder: str) -> None:
    """Remove a folder with everything in it, as far as possible."""
    with suppress(OSError):
        remove_tree(folder)


class Sandbox:
    """The sandbox in which all processes of a run are started. `folder` holds its records, invisible inside."""

    def __init__(
        self,
        bubblewrap: str,
        request: SandboxRequest,
        view: SandboxView,
        *,
        folder: str,
        cleanup_file: CleanupFile,
        net: Network | None,
        keeper: Keeper,
        namespace: CopyNamespace | None = None,
    ) -> None:
        self._namespace = namespace
        self._bubblewrap, self._request, self._view = bubblewrap, request, view
        self._folder, self._cleanup_file, self._network, self._keeper = folder, cleanup_file, net, keeper
        self._record = CleanupRecord(request.private_tmp)
        self._mounted: dict[str, int] = {}  # read-only files and their inodes

    def command(self, command: Command, scratch: str = "") -> Command:
        """Return the command as it is started in the sandbox. `scratch` is one more folder that it may write to."""
        program = find_program(command.argv[0], command.env, command.cwd)
        self._view = view = refresh_view(self._view, self._request)
        if scratch:
            view = replace(view, writable=(*view.writable, os.path.realpath(scratch)))
        workspace, cwd = view.workspace, os.path.realpath(command.cwd)
        mounts = mount_table(view, os.path.isdir)
        if (inner := self._namespace) and inner.is_in_use:
            mounts = rename_mounts(mounts, inner, lambda path: os.path.lexists(inner.outside(path)))
            workspace, cwd = inner.inside(workspace), inner.inside(cwd)
        _unlink_on_mount_paths(view, mounts)
        self._record_guarded(view)
        fds = self._network.attach() if self._network else ()
        only_writable = (workspace, "/tmp") if self._request.sealed else None
        start = bubblewrap_command(self._bubblewrap, mounts, cwd, is_online=not fds, only_writable=only_writable)
        env = sandbox_environment(command.env, network.environment() if self._network else {})
        return replace(command, argv=(*start, program, *command.argv[1:]), env=env, fds=fds, sandboxed=True)

    def _record_guarded(self, view: SandboxView) -> None:
        """Record what must not appear while the next process runs."""
        record = self._record
        record.watched, record.linkless, record.linkless_trees = {}, {}, {}
        for guarded in guarded_folders(view):
            for path in (f"{guarded.folder}/{name}" for name in guarded.read_only):
                with suppress(FileNotFoundError):
                    self._mounted.setdefault(path, os.stat(path).st_ino)
            for path in (f"{guarded.folder}/{name}" for name in guarded.absent):
                record.watched[path] = os.readlink(path) if os.path.islink(path) else None
            for path in (f"{guarded.folder}/{name}".rstrip("/") for name in guarded.linkless):
                record.linkless[path] = links_in(path)
            for path in (f"{guarded.folder}/{name}".rstrip("/") for name in guarded.linkless_trees):
                record.linkless_trees[path] = links_below(path)
        self._cleanup_file.write(record)

    def settle(self) -> list[str]:
        """Move away what the last process planted; return messages about that and about refused connections."""
        notices = [
            f"what the agent left at {path} was taken away; it is kept in {backup}"
            for path, backup in move_planted(self._record, f"{self._folder}/planted")
        ]
        return notices + list(self._replaced_files()) + self.refused_connections()

    def _replaced_files(self) -> Iterator[str]:
        """Yield a message for each read-only file that was replaced outside. Linux removes a mount from such a file, so
        that the new file is writable inside: `git config` and editors replace files."""
        for path, inode in self._mounted.items():
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino != inode:
                    yield f"{path} was replaced while the agent ran, so the agent could write it: check its content"
        self._mounted.clear()

    def refused_connections(self) -> list[str]:
        return self._network.refused() if self._network else []

    def close(self) -> list[str]:
        """Clean up; return the last messages, like `settle`."""
        notices = self.settle()
        if self._network:
            self._network.close()
        with suppress(KeeperLost):
            self._keeper.set_cleanup((), key=self._record.tmp)
        remove_folder(self._record.tmp)
        self._cleanup_file.close()
        return notices


def open_sandbox(
    request: SandboxRequest,
    folder: str,
    run_id: str,
    hosts: Sequence[Reachable] | None,
    keeper: Keeper,
    *,
    namespace: CopyNamespace | None = None,
) -> Sandbox:
    """Create a sandbox and test it. Raises if there cannot be one.

    If the workspace is a copy in a `namespace`, the sandbox is started there.
    """
    bubblewrap = find_bubblewrap(request.env, request.workspace)
    try:
        clean_up_killed_runs(folder)
        view = find_view(request)
        for path in (*required_folders(view), request.private_home, f"{folder}/open", f"{folder}/planted"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        cleanup_file = CleanupFile.open(f"{folder}/open/{run_id}")
        cleanup_file.write(CleanupRecord(request.private_tmp))
        os.mkdir(request.private_tmp, 0o700)
    except OSError as error:
        raise UserError(
            f"cannot create a sandbox: {error.filename}: {error.strerror}", "free some space, or name another TMPDIR"
        ) from None
    net = None if hosts is None else Network.start(hosts, request.env)
    sandbox = Sandbox(
        bubblewrap,
        request,
        view,
        folder=folder,
        cleanup_file=cleanup_file,
        net=net,
        keeper=keeper,
        namespace=namespace,
    )
    # If ralph is killed, the keeper executes this.
    cleanup = "import sys; from ralph.sandbox.sandbox import clean_up_killed_runs as clean; clean(sys.argv[1])"
    cleanup_env = {**os.environ, "PYTHONPATH": PACKAGE_ROOT}
    keeper.set_cleanup((sys.executable, "-P", "-c", cleanup, folder), cleanup_env, key=request.private_tmp)
    try:
        enter = namespace.enter if namespace else None
        _probe(sandbox, f"{folder}/canary-{run_id}", request, keeper, enter)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _probe(
    sandbox: Sandbox,
    canary: str,
    request: SandboxRequest,
    keeper: Keeper,
    enter: Callable[[Command], Command] | None,
) -> None:
    """Start a process in the sandbox, and check that it cannot write outside."""
    with open(canary, "wb") as file:
        file.write(_UNTOUCHED)
    command = Command(argv=("/bin/sh", "-c", _PROBE, "sh", canary), cwd=request.workspace, env=request.env)
    for _ in range(2):  # a socket may disappear just before it is blanked out
        inside = sandbox.command(command)
        probe = KeptProcess(enter(inside) if enter else inside, keeper=keeper, limits=Limits(turn=_PROBE_TIMEOUT))
        output = probe.capture(head=4000, tail=0)
        if not output.head.startswith("bwrap: Can't "):
            break
    with open(canary, "rb") as file:
        is_untouched = file.read() == _UNTOUCHED
    os.unlink(canary)
    if trouble := sandbox.refused_connections():
        raise UserError(trouble[0], "use --sandbox-net on, or see docs/guides/sandbox.md")
    if not is_untouched:
        raise UserError("a program in the sandbox could write outside", "do not rely on it; report this")
    if not output.head.startswith("inside\n"):
        machine = describe_machine(request.env)
        raise explain_failure(output.head, has_apparmor=machine.has_apparmor, is_container=machine.is_container)


class Machine(msgspec.Struct, frozen=True):
    """What may keep a machine from creating namespaces."""

    has_apparmor: bool
    is_container: bool


def describe_machine(env: Mapping[str, str]) -> Machine:
    restricted = read_start("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 2).strip() == b"1"
    marks = ("/.dockerenv", "/run/.containerenv")
    return Machine(restricted, "container" in env or any(map(os.path.exists, marks)))


def _unlink_on_mount_paths(view: SandboxView, mounts: Sequence[Mount]) -> None:
    """Remove links in the private folders that are on the path of a mount: they would redirect it."""
    private = [
        (f"{guarded.folder}/{name}", source) for guarded in view.guarded for name, source in guarded.private.items()
    ]
    for outer, folder in ((view.home, view.private_home), ("/tmp", view.private_tmp), *private):
        for path in (mount.path for mount in mounts if mount.path != outer and is_inside(mount.path, (outer,))):
            place = folder
            for name in path[len(outer) + 1 :].split("/"):
                place = f"{place}/{name}"
                if os.path.islink(place):
                    os.unlink(place)
                if not os.path.isdir(place):
                    break


def find_bubblewrap(env: Mapping[str, str], workspace: str) -> str:
    """Return the path of bubblewrap; never one in the workspace, where an agent may have put it."""
    if sys.platform != "linux":
        raise UserError("a sandbox needs Linux", f"use a container, or another user: {GUIDE}")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        is_program = os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path)
        if is_program and not is_inside(os.path.realpath(path), (os.path.realpath(workspace),)):
            return path
    raise UserError("a sandbox needs bubblewrap, which is not installed", INSTALL)


def explain_failure(output: str, *, has_apparmor: bool = False, is_container: bool = False) -> UserError:
    """Return why bubblewrap could not create a sandbox, from its output and what the machine is like."""
    reason = output.strip().partition("\n")[0].removeprefix("bwrap: ")
    if any(words in reason for words in ("No space left", "Disk quota", "I/O error")):  # the last is from a shell
        return UserError(
            f"the sandbox has no room for its temporary files: {reason}", "free some space, or name another TMPDIR"
        )
    is_forbidden = any(word in reason for word in ("ermission", "not permitted", "amespace"))
    if is_forbidden and has_apparmor:
        return UserError(
            "AppArmor lets only programs with a profile create namespaces, so there is no sandbox",
            f"give bwrap one, as {GUIDE} shows; or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    if is_forbidden and is_container:
        return UserError(
            f"this container does not allow namespaces, so there is no sandbox ({reason})",
            f"the container already isolates the run: leave --sandbox out, or start the container as {GUIDE} shows",
        )
    return UserError(f"bubblewrap could not create a sandbox: {reason or 'it printed nothing'}", f"see {GUIDE}")


def without_network(command: Command, keeper: Keeper, namespace: CopyNamespace | None, read_only: str) -> Command:
    """Return the command so that it has no network and cannot write to the user's folder `read_only`; for a copy in a
    `namespace` that is its git folder, because the copy covers the others.

    On a machine without user namespaces, the command is returned unchanged.
    """
    try:
        bubblewrap = find_bubblewrap(command.env, read_only)
    except UserError:
        return command
    cwd = command.cwd
    if namespace and namespace.is_in_use:
        read_only, cwd = namespace.inside(f"{namespace.main}/.git"), namespace.inside(os.path.realpath(cwd))
    mounts = ("--dev-bind", "/", "/", "--ro-bind-try", read_only, read_only, "--dev-bind", cwd, cwd)
    start = (bubblewrap, "--unshare-net", "--die-with-parent", *mounts, "--chdir", cwd, "--")
    probe = replace(command, argv=(*start, "/bin/sh", "-c", "echo inside"))
    probe = namespace.enter(probe) if namespace else probe
    output = KeptProcess(probe, keeper=keeper, limits=Limits(turn=_PROBE_TIMEOUT)).capture(head=100, tail=0)
    if output.head != "inside\n":
        return command
    program = find_program(command.argv[0], command.env, os.path.realpath(command.cwd))
    return replace(command, argv=(*start, program, *command.argv[1:]))
