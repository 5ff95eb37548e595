"""Child processes of the backlog coordinator: `ralph run-gate` and `ralph run-task`.

They are hidden commands that only the coordinator starts. Each prints its result as one JSON line and ends when the
coordinator dies.
"""

import os

import msgspec

from ralph.backlog.gate import run_gate
from ralph.backlog.task_loop import play
from ralph.errors import UserError
from ralph.git.client import killed_commands
from ralph.process.keeper import Keeper
from ralph.process.ralph_child import hang_up_with_parent
from ralph.process.signals import Interrupt

FATAL, RETRY = 2, 75  # 75: EX_TEMPFAIL of sysexits.h
ARGUMENT_COUNTS = {"run-gate": 1, "run-task": 2}


def run_child(command: str, words: list[str]) -> int:
    """Run one of the hidden commands; return its exit code."""
    if len(words) != ARGUMENT_COUNTS[command] or not hang_up_with_parent():
        raise UserError(f"`ralph {command}` cannot be started by hand", "`ralph work` starts it")
    with Keeper.start() as keeper, Interrupt(lambda: None) as interrupt:
        if command == "run-gate":
            return _merge(*words, keeper=keeper, interrupt=interrupt)
        return _run_task(*words, keeper=keeper, interrupt=interrupt)


def _merge(folder: str, *, keeper: Keeper, interrupt: Interrupt) -> int:
    try:
        verdict = run_gate(folder, keeper, interrupt)
    except KeyboardInterrupt:
        return 130
    if verdict.stuck and _was_git_killed():
        return RETRY
    _print_result(verdict)
    return 0


def _run_task(folder: str, key: str, *, keeper: Keeper, interrupt: Interrupt) -> int:
    try:
        looped = play(folder, key, keeper, interrupt)
    except UserError:
        if _was_git_killed():
            return RETRY
        raise
    if looped.exit_code == FATAL and _was_git_killed():
        return RETRY
    _print_result(looped)
    return looped.exit_code


def _was_git_killed() -> bool:
    """Return whether a git command of this process was killed. Then the task is not at fault, and is started again."""
    return bool(killed_commands)


def _print_result(value: object) -> None:
    data = msgspec.json.encode(value) + b"\n"
    while data:
        data = data[os.write(1, data) :]
