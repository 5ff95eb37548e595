"""What does a process do that the coordinator starts? `ralph land`, `item` and `reread`: one for each landing, each
loop, and each look at a list that another program keeps; they are copies of `nursery`. No person starts one."""

from __future__ import annotations

import os

from ralph.errors import UserError
from ralph.processes.spawning import import_leanly

# A landing and a loop fork a keeper first: nothing is imported before that its copy need not hold.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ralph.processes.interrupt import Interrupt
    from ralph.processes.keeper import Keeper

# What every loop and every landing imports, sooner or later.
LEARNED = (
    *("ralph.backlog.gate", "ralph.backlog.item_loop", "ralph.run.agents", "ralph.agents.reader"),
    *("ralph.repository.checkpoints", "ralph.show.report", "ralph.core.talk"),
    *("shutil", "tempfile", "textwrap", "_ctypes"),
)
FATAL, AGAIN = 2, 75  # 75: as everybody knows it, "try again"
WORDS = {"land": 3, "item": 4, "reread": 2}


def run_child(command: str, words: list[str]) -> int:
    """Held by a leash; prints what came of it as one line."""
    from ralph.processes.interrupt import tie_to_stdin

    if command == "nursery":
        import_leanly("msgspec", "pathlib")
        from ralph.processes.nursery import next_copy

        if words:  # else somebody starts it by hand, and hears so
            _learn(words[0])
        copied = next_copy()  # what this process is to do, once it is a copy
        if not copied:
            return 0
        command, *words = copied
    if not os.read(0, 1):  # whoever started this does not know of it, and never will
        return AGAIN
    if len(words) != WORDS[command]:
        raise UserError(f"`ralph {command}` is nothing to start by hand", "`ralph work` starts its own")
    tie_to_stdin()
    if command == "reread":
        return _reread(*words)
    from ralph.processes.keeper import Keeper

    with Keeper.start(adopts=True) as keeper:
        keeper.watch(0)
        import_leanly("msgspec", "pathlib")
        from ralph.processes.interrupt import Interrupt
        from ralph.processes.program import Asker, asked_by

        with Interrupt(lambda: None) as interrupt, asked_by(Asker(interrupt)):
            if command == "land":
                return _landed(*words, keeper=keeper, interrupt=interrupt)
            return _looped(*words, keeper=keeper, interrupt=interrupt)


def _learn(work: str) -> None:
    """All that loops and landings of a work would find out, each for itself: modules, the shape of what they read, what
    keys look like. None of it is looked through for garbage later: that would copy its pages for each of them."""
    import gc
    from contextlib import suppress
    from importlib import import_module
    from pathlib import Path

    for name in LEARNED:
        import_module(name)
    import msgspec

    from ralph.backlog.gate import LandingRequest
    from ralph.backlog.work_order import ORDER, Assignment, WorkOrder, folder_of, read
    from ralph.core import events
    from ralph.core.secrets import redact
    from ralph.repository.git import find_repository
    from ralph.run.agents import choices

    for kind in (Assignment, LandingRequest, *events.NAMES):
        msgspec.json.Decoder(kind)
    redact(b"a line")
    with suppress(UserError):  # each of them will say so
        order = read(folder_of(work), ORDER, WorkOrder)
        find_repository(Path(order.workspace))
        choices(order.settings, order.agent_args, os.environ, order.workspace)
    gc.collect()
    gc.freeze()


def _landed(folder: str, order: str, asked: str, *, keeper: Keeper, interrupt: Interrupt) -> int:
    from ralph.backlog.gate import Interrupted, attend

    try:
        verdict, clear = attend(folder, order, asked, keeper, interrupt)
    except Interrupted:
        return 130
    if verdict.stuck and _lost_a_git():
        return AGAIN
    _say(verdict)
    clear()
    return 0


def _looped(folder: str, key: str, order: str, asked: str, *, keeper: Keeper, interrupt: Interrupt) -> int:
    from ralph.backlog.item_loop import Part, play

    try:
        looped = play(Part(folder, key, order, asked), keeper, interrupt)
    except UserError:
        if _lost_a_git():
            return AGAIN
        raise
    if looped.exit_code == FATAL and _lost_a_git():
        return AGAIN
    _say(looped)
    return looped.exit_code


def _reread(folder: str, digest: str) -> int:
    from pathlib import Path

    from ralph.backlog.backlog_source import read_list, read_list_at
    from ralph.backlog.work_order import ORDER, WorkOrder, folder_of, home_of, read

    order = read(folder_of(folder), ORDER, WorkOrder, digest)
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
