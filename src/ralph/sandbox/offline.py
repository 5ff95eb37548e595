"""Start a program without network where bubblewrap can do that, for a run that has no sandbox."""

import os

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.process.keeper import Keeper
from ralph.process.process import Limits, Process
from ralph.process.program import Command, find_program
from ralph.sandbox.bubblewrap import find_bubblewrap

_PROBE_TIMEOUT = 60.0  # seconds


def without_network(command: Command, read_only: str, keeper: Keeper) -> Command:
    """Return the command so that it has no network and cannot write to the folder `read_only`.

    On a machine without user namespaces, the command is returned unchanged.
    """
    try:
        bubblewrap = find_bubblewrap(command.env, read_only)
    except UserError:
        return command
    mounts = ("--dev-bind", "/", "/", "--ro-bind", read_only, read_only, "--bind", command.cwd, command.cwd)
    start = (bubblewrap, "--unshare-net", "--die-with-parent", *mounts, "--chdir", command.cwd, "--")
    probe = replace(command, argv=(*start, "/bin/sh", "-c", "echo inside"))
    output = Process(probe, keeper=keeper, limits=Limits(turn=_PROBE_TIMEOUT)).capture(head=100, tail=0)
    if output.head != "inside\n":
        return command
    program = find_program(command.argv[0], command.env, os.path.realpath(command.cwd))
    return replace(command, argv=(*start, program, *command.argv[1:]))
