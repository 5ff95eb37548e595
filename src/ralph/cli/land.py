"""`ralph land`, `ralph item`, `ralph reread`: what the coordinator of a backlog starts, one process for each landing,
each loop, and each look at a list that another program keeps. `ralph nursery` is where they come from.

They are not meant for people: each is held by a leash, and prints what came of it as one line."""

from __future__ import annotations

import os

from ralph.processes.lean import import_leanly

# What every loop and every landing imports, sooner or later.
LEARNED = (
    *("ralph.backlog.gate", "ralph.backlog.item_loop", "ralph.run.agents", "ralph.agents.reader"),
    *("ralph.repository.checkpoints", "ralph.show.report"),
    *("shutil", "tempfile", "textwrap"),
)
FATAL, AGAIN = 2, 75  # 75: as everybody knows it, "try again"
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ralph.processes.interrupt import Interrupt
    from ralph.processes.keeper import Keeper


def run_command(command: str, words: list[str]) -> int:
    from ralph.processes.interrupt import tie_to_stdin

    if command == "nursery":
        copied = _nursed()
        if not copied:
            return 0
        command, *words = copied
    if not os.read(0, 1):  # whoever started this does not know of it, and never will
        return AGAIN
    tie_to_stdin()
    if command == "reread":
        return _reread(words[0])
    from ralph.processes.keeper import Keeper

    with Keeper.start(adopts=True) as keeper:
        import_leanly("msgspec", "pathlib")
        from ralph.processes.interrupt import Interrupt
        from ralph.processes.program import Asker, asked_by

        with Interrupt(lambda: None) as interrupt, asked_by(Asker(interrupt)):
            if command == "land":
                return _landed(words[0], keeper, interrupt)
            return _looped(words[0], words[1], keeper, interrupt)


def _nursed() -> list[str]:
    """What this process is to do, once it is a copy of one that has learned what every loop and landing needs."""
    import_leanly("msgspec", "pathlib")
    from importlib import import_module

    for name in LEARNED:
        import_module(name)
    from ralph.processes.nursery import next_copy

    return next_copy()


def _landed(folder: str, keeper: Keeper, interrupt: Interrupt) -> int:
    from ralph.backlog.gate import Interrupted, attend

    try:
        verdict, clear = attend(folder, keeper, interrupt)
    except Interrupted:
        return 130
    if verdict.stuck and _lost_a_git():
        return AGAIN
    _say(verdict)
    clear()
    return 0


def _looped(folder: str, key: str, keeper: Keeper, interrupt: Interrupt) -> int:
    from ralph.backlog.item_loop import play
    from ralph.errors import UserError

    try:
        looped = play(folder, key, keeper, interrupt)
    except UserError:
        if _lost_a_git():
            return AGAIN
        raise
    if looped.exit_code == FATAL and _lost_a_git():
        return AGAIN
    _say(looped)
    return looped.exit_code


def _reread(folder: str) -> int:
    from pathlib import Path

    from ralph.backlog.backlog_source import read_list, read_list_at
    from ralph.backlog.work_order import ORDER, WorkOrder, folder_of, home_of, read

    order = read(folder_of(folder), ORDER, WorkOrder)
    workspace = Path(order.workspace)
    if order.remote is not None and order.source.is_in_files:  # whoever brought the list is elsewhere
        home = home_of(workspace)
        order.remote.fetch(home)
        _say(read_list_at(order.target_ref, order.source, home))
    else:
        _say(read_list(order.source, workspace))
    return 0


def _lost_a_git() -> bool:
    """Whether somebody has killed a git of ours: that is nobody's fault, and passes."""
    from ralph.repository.git import casualties

    return bool(casualties)


def _say(value: object) -> None:
    import msgspec

    data = msgspec.json.encode(value) + b"\n"
    while data:
        data = data[os.write(1, data) :]
