"""How is the box of a run made, proven and looked after? A real one is tried before anything is spent; what was planted
in it is put aside after each process; and when the run is over nothing is left of it but caches."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.processes import box, network
from ralph.processes.box import (
    BoxNote,
    BoxNoteFile,
    Mount,
    Surroundings,
    find_bubblewrap,
    is_inside,
    links_in,
    put_aside,
    refusal,
    refusing,
    remove,
    tidy_up,
)
from ralph.processes.keeper import Keeper, KeeperLost
from ralph.processes.network import Network, Reachable
from ralph.processes.process import Limits, run_command
from ralph.processes.program import Command, find_program
from ralph.processes.surroundings import Wanted, as_of_now, look_around

_UNTOUCHED = b"untouched\n"
_PROBE = 'echo inside > /tmp/.probe && cat /tmp/.probe && rm /tmp/.probe; echo touched > "$1"'
_TO_PROBE = 60.0  # seconds


class Sandbox:
    """The box in which everything of a run is started. `folder` is its own, in ralph's state folder, where nothing
    inside can see it."""

    def __init__(
        self,
        bubblewrap: str,
        wanted: Wanted,
        around: Surroundings,
        *,
        folder: str,
        note_file: "BoxNoteFile",
        net: Network | None,
        keeper: Keeper,
    ) -> None:
        self._bubblewrap, self._wanted, self._around = bubblewrap, wanted, around
        self._folder, self._note_file, self._network, self._keeper = folder, note_file, net, keeper
        self._note = BoxNote(wanted.private_tmp)

    def command(self, command: Command, scratch: str = "") -> Command:
        """The same command, to be started in the box. `scratch` is a folder of ralph's that it may write to."""
        program = find_program(command.argv[0], command.env, command.cwd)
        self._around = as_of_now(self._around, self._wanted)
        around = self._around
        if scratch:
            around = replace(around, opened=(*around.opened, os.path.realpath(scratch)))
        places = box.places(around, os.path.isdir)
        _clear_the_way(around, places)
        self._note.watched, self._note.linkless = dict(_watched(around)), dict(_linkless(around))
        self._note_file.write(self._note)
        fds = self._network.attach() if self._network else ()
        words = box.words(self._bubblewrap, places, os.path.realpath(command.cwd), is_online=not fds)
        env = box.environment(command.env, network.environment() if self._network else {})
        return replace(command, argv=(*words, program, *command.argv[1:]), env=env, fds=fds, boxed=True)

    def settle(self) -> list[str]:
        """What there is to tell after a process: what it planted, which is put aside now, and whom it did not reach."""
        told = [
            f"what the agent left at {path} was taken away; it is kept in {kept}"
            for path, kept in put_aside(self._note, f"{self._folder}/planted")
        ]
        return told + (self._network.news() if self._network else [])

    def close(self) -> list[str]:
        """The last of what there is to tell."""
        told = self.settle()
        if self._network:
            self._network.close()
        with suppress(KeeperLost):
            self._keeper.tidy("")
        remove(self._note.tmp)
        self._note_file.close()
        return told


def open_sandbox(
    wanted: Wanted, folder: str, run_id: str, hosts: Sequence[Reachable] | None, keeper: Keeper
) -> Sandbox:
    """A box that was tried: one that cannot be had is an error."""
    bubblewrap = find_bubblewrap(wanted.env, wanted.workspace)
    try:
        tidy_up(folder)
        around = look_around(wanted)
        for path in (*box.folders(around), wanted.private_home, f"{folder}/open", f"{folder}/planted"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        note_file = BoxNoteFile.open(f"{folder}/open/{run_id}")
        note_file.write(BoxNote(wanted.private_tmp))
        os.mkdir(wanted.private_tmp, 0o700)
    except OSError as error:
        raise UserError(
            f"cannot make a box: {error.filename}: {error.strerror}", "free some space, or name another TMPDIR"
        ) from None
    net = None if hosts is None else Network.start(hosts, wanted.env)
    made = Sandbox(bubblewrap, wanted, around, folder=folder, note_file=note_file, net=net, keeper=keeper)
    keeper.tidy(folder)
    try:
        _probe(made, f"{folder}/canary-{run_id}", wanted, keeper)
    except BaseException:
        made.close()
        raise
    return made


def _probe(made: Sandbox, canary: str, wanted: Wanted, keeper: Keeper) -> None:
    """Starts a real box, and sees that what is written inside stays there."""
    with open(canary, "wb") as file:
        file.write(_UNTOUCHED)
    asked = Command(argv=("/bin/sh", "-c", _PROBE, "sh", canary), cwd=wanted.workspace, env=wanted.env)
    for _ in range(2):  # a service may end, and take its socket away, in the moment in which that is covered
        output = run_command(keeper, made.command(asked), head=4000, tail=0, limits=Limits(turn=_TO_PROBE))
        if not output.head.startswith("bwrap: Can't "):
            break
    with open(canary, "rb") as file:
        is_untouched = file.read() == _UNTOUCHED
    os.unlink(canary)
    if trouble := made.settle():
        raise UserError(trouble[0], "use --sandbox-net on, or see docs/guides/sandbox.md")
    if not is_untouched:
        raise UserError("a box was made, but a program in it could write outside", "do not rely on it; report this")
    if not output.head.startswith("inside\n"):
        raise refusal(output.head, refusing(wanted.env))


def _clear_the_way(around: Surroundings, places: Sequence[Mount]) -> None:
    """Inside, anything may be put into the folders that stand in for home and /tmp: a link there would lead the next
    box's places elsewhere."""
    stand_ins = {around.home: around.private_home, "/tmp": around.private_tmp}
    for place in places:
        for outer, stand_in in stand_ins.items():
            if place.path != outer and is_inside(place.path, (outer,)):
                _unlink_links(stand_in, place.path[len(outer) + 1 :])


def _unlink_links(folder: str, path: str) -> None:
    for name in path.split("/"):
        folder = f"{folder}/{name}"
        if os.path.islink(folder):
            os.unlink(folder)
        if not os.path.isdir(folder):
            return


def _watched(around: Surroundings) -> Iterator[tuple[str, str | None]]:
    """Paths at which nothing may appear, or nothing but the link that is there."""
    for kept in box.all_kept(around):
        for name in kept.missing:
            path = f"{kept.folder}/{name}"
            yield path, os.readlink(path) if os.path.islink(path) else None


def _linkless(around: Surroundings) -> Iterator[tuple[str, list[str]]]:
    for kept in box.all_kept(around):
        for name in kept.linkless:
            path = f"{kept.folder}/{name}".rstrip("/")
            yield path, links_in(path)
