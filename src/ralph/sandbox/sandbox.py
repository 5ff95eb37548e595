"""The sandbox of a run: created, tested before anything is spent, and cleaned up after each process.

`mounts` says what is visible inside, `discovery` finds it on this machine, `cleanup` removes what was planted.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.process.keeper import PACKAGE_ROOT, Keeper, KeeperLost
from ralph.process.process import Limits, Process
from ralph.process.program import Command, find_program
from ralph.sandbox import network
from ralph.sandbox.bubblewrap import explain_failure, find_bubblewrap, find_restrictions
from ralph.sandbox.cleanup import (
    CleanupFile,
    CleanupRecord,
    clean_up_killed_runs,
    links_below,
    links_in,
    move_planted,
    remove_folder,
)
from ralph.sandbox.discovery import SandboxRequest, find_view, refresh_view
from ralph.sandbox.mounts import (
    Mount,
    SandboxView,
    bubblewrap_command,
    guarded_folders,
    is_inside,
    mount_table,
    required_folders,
    sandbox_environment,
)
from ralph.sandbox.network import Network, Reachable

_UNTOUCHED = b"untouched\n"
_PROBE = 'echo inside > /tmp/.probe && cat /tmp/.probe && rm /tmp/.probe; echo touched > "$1"'
_PROBE_TIMEOUT = 60.0  # seconds


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
    ) -> None:
        self._bubblewrap, self._request, self._view = bubblewrap, request, view
        self._folder, self._cleanup_file, self._network, self._keeper = folder, cleanup_file, net, keeper
        self._record = CleanupRecord(request.private_tmp)

    def command(self, command: Command, scratch: str = "") -> Command:
        """Return the command as it is started in the sandbox. `scratch` is one more folder that it may write to."""
        program = find_program(command.argv[0], command.env, command.cwd)
        self._view = view = refresh_view(self._view, self._request)
        if scratch:
            view = replace(view, writable=(*view.writable, os.path.realpath(scratch)))
        mounts = mount_table(view, os.path.isdir)
        _unlink_on_mount_paths(view, mounts)
        self._record_guarded(view)
        fds = self._network.attach() if self._network else ()
        kept = (view.workspace, "/tmp") if self._request.sealed else None
        cwd = os.path.realpath(command.cwd)
        start = bubblewrap_command(self._bubblewrap, mounts, cwd, is_online=not fds, only_writable=kept)
        env = sandbox_environment(command.env, network.environment() if self._network else {})
        return replace(command, argv=(*start, program, *command.argv[1:]), env=env, fds=fds, sandboxed=True)

    def _record_guarded(self, view: SandboxView) -> None:
        """Record what must not appear while the next process runs."""
        record = self._record
        record.watched, record.linkless, record.linkless_trees = {}, {}, {}
        for guarded in guarded_folders(view):
            for path in (f"{guarded.folder}/{name}" for name in guarded.absent):
                record.watched[path] = os.readlink(path) if os.path.islink(path) else None
            for path in (f"{guarded.folder}/{name}".rstrip("/") for name in guarded.linkless):
                record.linkless[path] = links_in(path)
            for path in (f"{guarded.folder}/{name}".rstrip("/") for name in guarded.linkless_trees):
                record.linkless_trees[path] = links_below(path)
        self._cleanup_file.write(record)

    def settle(self) -> list[str]:
        """Move away what the last process planted; return messages about that and about refused connections."""
        told = [
            f"what the agent left at {path} was taken away; it is kept in {kept}"
            for path, kept in move_planted(self._record, f"{self._folder}/planted")
        ]
        return told + self.refused_connections()

    def refused_connections(self) -> list[str]:
        return self._network.refused() if self._network else []

    def close(self) -> list[str]:
        """Clean up; return the last messages, like `settle`."""
        told = self.settle()
        if self._network:
            self._network.close()
        with suppress(KeeperLost):
            self._keeper.set_cleanup((), key=self._record.tmp)
        remove_folder(self._record.tmp)
        self._cleanup_file.close()
        return told


def open_sandbox(
    request: SandboxRequest, folder: str, run_id: str, hosts: Sequence[Reachable] | None, keeper: Keeper
) -> Sandbox:
    """Create a sandbox and test it. Raises if there cannot be one."""
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
    sandbox = Sandbox(bubblewrap, request, view, folder=folder, cleanup_file=cleanup_file, net=net, keeper=keeper)
    # If ralph is killed, the keeper executes this.
    cleanup = "import sys; from ralph.sandbox.cleanup import clean_up_killed_runs as clean; clean(sys.argv[1])"
    cleanup_env = {**os.environ, "PYTHONPATH": PACKAGE_ROOT}
    keeper.set_cleanup((sys.executable, "-P", "-c", cleanup, folder), cleanup_env, key=request.private_tmp)
    try:
        _probe(sandbox, f"{folder}/canary-{run_id}", request, keeper)
    except BaseException:
        sandbox.close()
        raise
    return sandbox


def _probe(sandbox: Sandbox, canary: str, request: SandboxRequest, keeper: Keeper) -> None:
    """Start a process in the sandbox, and check that it cannot write outside."""
    with open(canary, "wb") as file:
        file.write(_UNTOUCHED)
    command = Command(argv=("/bin/sh", "-c", _PROBE, "sh", canary), cwd=request.workspace, env=request.env)
    for _ in range(2):  # a socket may disappear just before it is blanked out
        probe = Process(sandbox.command(command), keeper=keeper, limits=Limits(turn=_PROBE_TIMEOUT))
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
        raise explain_failure(output.head, find_restrictions(request.env))


def _unlink_on_mount_paths(view: SandboxView, mounts: Sequence[Mount]) -> None:
    """Remove links in the private home and /tmp that are on the path of a mount: they would redirect it."""
    private_folders = {view.home: view.private_home, "/tmp": view.private_tmp}
    for mount in mounts:
        for outer, private in private_folders.items():
            if mount.path != outer and is_inside(mount.path, (outer,)):
                _unlink_links(private, mount.path[len(outer) + 1 :])


def _unlink_links(folder: str, path: str) -> None:
    for name in path.split("/"):
        folder = f"{folder}/{name}"
        if os.path.islink(folder):
            os.unlink(folder)
        if not os.path.isdir(folder):
            return
