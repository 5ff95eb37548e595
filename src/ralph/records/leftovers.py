"""What did a run leave behind that was killed together with its keeper, and who ends it? Every run that goes on has a
file in the state folder, which says whose processes to look for; it goes with the run."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.json import Decoder, encode

from ralph.core.text import one_line
from ralph.files import open_fresh, read_file, state_folder
from ralph.processes.descendants import (
    RunningProcess,
    is_living,
    left_of,
    own_start,
    record_line,
    recorded,
    start_of,
    sweep_marked,
)
from ralph.processes.keeper import Keeper

_MOST_BYTES = 1 << 14
_PLACE = "alive"


class Living(Struct, frozen=True):
    """Who plays a run, and who keeps its processes."""

    pid: int
    start: str
    keeper: int
    keeper_start: str
    workspace: str = ""


class Left(Struct, frozen=True):
    """What lives on of a run that is dead, and so is its keeper; also as `ralph ps --json` prints it."""

    run: str
    workspace: str
    processes: tuple[str, ...]
    state: str = "left behind"
    alive: bool = False


@contextmanager
def on_record(run_id: str, keeper: Keeper, workspace: str, env: Mapping[str, str]) -> Iterator[None]:
    """While entered, whoever comes later can find what the run has started, should nobody be left who knows it. Not for
    runs whose children may live on."""
    path = f"{state_folder(env, _PLACE)}/{run_id}"
    where = os.fsencode(workspace).decode("utf-8", "backslashreplace")  # to be shown: it need not be text
    me = Living(os.getpid(), own_start(), keeper.pid, start_of(keeper.pid) or "", where)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = open_fresh(path)
    except OSError:  # as with the list of runs: who cannot write there is told so when the run is enlisted
        yield
        return
    try:
        with suppress(OSError):  # a full disk
            os.write(fd, record_line(0, "") + encode(me))
            keeper.record(fd)
        yield
    finally:
        os.close(fd)
        with suppress(OSError):
            os.unlink(path)


def left_behind(env: Mapping[str, str] = os.environ) -> list[Left]:
    """What dead runs of this user have left, and still lives."""
    return [_told(run, living, found) for run, living, found in _abandoned(env) if found]


def end_left_behind(env: Mapping[str, str] = os.environ) -> list[Left]:
    """Ends all of it, and says what it was."""
    ended = []
    for run, living, found in _abandoned(env):
        if found:
            ended.append(_told(run, living, found))
            sweep_marked(run, known=found)
        with suppress(OSError):
            os.unlink(f"{state_folder(env, _PLACE)}/{run}")
    return ended


def remark(left: Left, what: str) -> str:
    """One line about it; `what` is done about it, or can be."""
    number = len(left.processes)
    processes = f"{number} process{'' if number == 1 else 'es'} ({one_line(', '.join(left.processes), 120)})"
    return f"run {left.run} was killed together with its keeper; what it had left {what}: {processes}"


def _abandoned(env: Mapping[str, str]) -> Iterator[tuple[str, Living, list[RunningProcess]]]:
    folder = state_folder(env, _PLACE)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        try:
            data = read_file(f"{folder}/{name}", _MOST_BYTES)
            head, _, body = data.partition(b"\n")
            living = _DECODER.decode(body)
        except (OSError, ValueError):  # it went just now, or is being written
            continue
        if not is_living(living.pid, living.start) and not is_living(living.keeper, living.keeper_start):
            first = recorded(head)
            yield name, living, left_of(name, [first] if first else [])


def _told(run: str, living: Living, found: list[RunningProcess]) -> Left:
    names = tuple(f"{process.pid} {process.name.decode('utf-8', 'replace')}" for process in found)
    return Left(run, living.workspace, names)


_DECODER = Decoder(Living)
