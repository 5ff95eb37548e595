"""What does a supervisor say on its task's bus, and when? Every sentence, with the type of its message."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.model import Turn
from ralph.core.text import one_line

WAIT_EXIT_CODE = 42
WAIT_TYPE = "wait_without_restart"
WAIT_FILE = "WAIT_WITHOUT_RESTART"


class Remark(Struct, frozen=True):
    """One message of the supervisor: `type` and `body` as they stand on the bus."""

    type: str
    body: str


DONE_ALONE = Remark("INFO", "task completed (DONE marker present, no active children)")
DONE_TOGETHER = Remark("INFO", "task completed (all children finished)")


def starting(attempt: int, cap: int) -> Remark:
    """Before an attempt. Attempts count from 1."""
    return Remark("INFO", f"{'Starting' if attempt == 1 else 'Restarting'} agent (attempt {attempt}/{cap})")


def run_started(attempt: int, agent: str, pid: int) -> Remark:
    return Remark("RUN_START", f"attempt {attempt}: {agent} started as process {pid}")


def run_stopped(attempt: int, turn: Turn) -> Remark:
    return Remark("RUN_STOP", f"attempt {attempt}: {how_ended(turn)} after {go_duration(turn.duration)}")


def after(attempt: int, cap: int, turn: Turn, timeout: float | None = None) -> tuple[Remark, ...]:
    """After an attempt that did not complete the task. `timeout`: the limit that ended it, if one did."""
    if not has_failed(turn):
        return (Remark("INFO", f"Attempt {attempt}: Agent succeeded, but there is no DONE marker"),)
    remarks = []
    if timeout is not None:
        remarks.append(Remark("WARNING", f"Agent timeout after {go_duration(timeout)}, killing process group"))
        remarks.append(Remark("WARNING", "Process group killed, treating as failure"))
    remarks.append(Remark("WARNING", f"agent failed on restart #{attempt - 1}: {how_ended(turn)}"))
    if turn.failure and turn.failure.kind == "transient":
        remarks.append(Remark("WARNING", f"Transient error: {one_line(turn.failure.reason)}"))
    if attempt < cap:
        code = turn.exit_code
        said = f"Agent failed with exit code {code}" if code is not None else "Agent failed"
        remarks.append(Remark("INFO", f"{said}, restarting (attempt {attempt + 1}/{cap})"))
    return tuple(remarks)


def attempt_line(attempt: int, turn: Turn, restarting: bool = True) -> str:
    """An attempt in one line for the log."""
    if not has_failed(turn):
        return f"Attempt {attempt}: Agent succeeded"
    code = f" (exit {turn.exit_code})" if turn.exit_code is not None else ""
    return f"Attempt {attempt}: Agent failed{code}{', restarting...' if restarting else ''}"


def exhausted(cap: int) -> Remark:
    return Remark("ERROR", f"max restarts exceeded, stopping: no DONE marker after {_attempts(cap)}")


def exhausted_line(cap: int) -> str:
    return f"Attempt {cap}: Max restarts exceeded, stopping" if cap else "Max restarts exceeded, stopping"


def waiting_requested(reason: str = "") -> Remark:
    """The agent waits for somebody, and wants no restart."""
    return Remark("INFO", f"Wait-without-restart signal detected{': ' + one_line(reason) if reason else ''}")


def fatal(reason: str) -> Remark:
    return Remark("ERROR", f"Fatal error: {one_line(reason, 1000)}")


def cancelled(reason: str) -> Remark:
    return Remark("INFO", f"task cancelled: {one_line(reason)}")


def awaiting(children: Sequence[str]) -> Remark:
    return Remark("INFO", f"waiting for {len(children)} child runs to complete: {', '.join(children)}")


def not_awaited(children: Sequence[str], timeout: float) -> Remark:
    """The children took too long: the task is done all the same."""
    return Remark("WARNING", f"timeout waiting for children after {go_duration(timeout)}: {', '.join(children)}")


def child_died(run_id: str, why: str) -> Remark:
    return Remark("WARNING", f"child run {run_id} marked as failed: {one_line(why)}")


def blocked(tasks: Sequence[str]) -> Remark:
    return Remark("INFO", f"waiting for other tasks to be done: {', '.join(tasks)}")


def unblocked() -> Remark:
    return Remark("INFO", "the tasks that this one depends on are done")


def completion(name: str, done_at: str, run_id: str, attempts: int) -> Remark:
    """For the project's bus. Two completions never have the same words: `done_at` tells them apart."""
    last = f", last run {run_id}" if run_id else ""
    return Remark("FACT", f"task {name} completed: DONE at {done_at}, {_attempts(attempts)}{last}")


def _attempts(number: int) -> str:
    return f"{number} attempt" if number == 1 else f"{number} attempts"


def not_told(reason: str) -> Remark:
    return Remark("WARNING", f"the project's bus could not be told of the completion: {one_line(reason)}")


def has_failed(turn: Turn) -> bool:
    return turn.exit_code != 0 or bool(turn.ended_by) or turn.failure is not None


def how_ended(turn: Turn) -> str:
    """`exit code 1`, with the reason where it is known."""
    code = f"exit code {turn.exit_code}" if turn.exit_code is not None else "no exit code"
    why = turn.ended_by or (turn.failure.reason if turn.failure else "")
    return f"{code} ({one_line(why)})" if why else code


def go_duration(seconds: float) -> str:
    """`5m0s`, `1h0m0s`, `1.5s`, `500ms`."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    small = f"{rest:.9g}s"
    if hours:
        return f"{hours}h{minutes}m{small}"
    return f"{minutes}m{small}" if minutes else small
