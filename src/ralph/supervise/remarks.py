"""What does a supervisor say on its task's bus, and when? Every sentence, with the type of its message."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ralph.core import events
from ralph.core.model import Turn
from ralph.core.rules import WAIT_EXIT_CODE
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.supervise import bus
from ralph.supervise.task_folder import TaskFolder

WAIT_TYPE = "wait_without_restart"


def about_the_task(task: TaskFolder, prompt: str, done: str) -> Iterator[str]:
    """What the agent of a task has to know, of which its prompt says nothing; `done` is the file that it leaves, if one
    is asked for. Paths are written out: an agent may write there, and not be allowed to expand a variable."""
    if done and done in prompt and str(task.path) not in prompt:
        yield f"\nThe folder of the task, $TASK_FOLDER, is {task.path}: write its name out."
    if done and done not in prompt:
        file = task.path / done
        yield f"\nWhen all of it is done, create the file {file}; until it is there, you are started again."
    if "bus" not in prompt.lower():
        yield "\nThe task has a message bus: `ralph bus read`, `ralph bus post --type FACT --body TEXT`."
    if "ralph job" not in prompt:
        yield "\nAnother agent does a part of it for `ralph job --prompt TEXT`, with & beside you; DONE waits for all."


class Remark(Struct, frozen=True):
    """One message of the supervisor: `type` and `body` as they stand on the bus (without a type: in the log alone), and
    how loudly the log tells it."""

    type: str
    body: str
    level: Literal["warning", "info", "debug"] = "debug"


DONE_ALONE = Remark("INFO", "task completed (DONE marker present, no active children)")
DONE_TOGETHER = Remark("INFO", "task completed (all children finished)")
DONE_AHEAD = Remark("INFO", "task completed (DONE marker present, children not finished)")


def starting(attempt: int, cap: int) -> Remark:
    """Before an attempt. Attempts count from 1."""
    return Remark("INFO", f"{'Starting' if attempt == 1 else 'Restarting'} agent (attempt {attempt}/{cap})")


def run_started(what: str, agent: str, pid: int) -> Remark:
    return Remark("RUN_START", f"{what}: {agent} started as process {pid}")


def run_stopped(what: str, turn: Turn) -> Remark:
    return Remark("RUN_STOP", f"{what}: {how_ended(turn)} after {go_duration(round(turn.duration, 3))}")


def troubles(attempt: int, turn: Turn, timeout: float | None = None) -> Iterator[Remark]:
    """What went wrong in an attempt. `timeout`: the limit that ended it, if one did."""
    if timeout is not None:
        yield Remark("WARNING", f"Agent timeout after {go_duration(timeout)}, killing process group", "warning")
        yield Remark("WARNING", "Process group killed, treating as failure")
    if has_failed(turn) and turn.ended_by != "interrupt":
        yield Remark("WARNING", f"agent failed on restart #{attempt - 1}: {how_ended(turn)}")
    if turn.failure and turn.failure.kind == "transient":
        yield Remark("WARNING", f"Transient error: {one_line(turn.failure.reason)}")


def restarting(attempt: int, cap: int, turn: Turn) -> Iterator[Remark]:
    """Once it is known that another attempt follows this one."""
    if not has_failed(turn):
        yield Remark("INFO", f"Attempt {attempt}: Agent succeeded, but there is no DONE marker, restarting...", "info")
        return
    code = turn.exit_code
    yield Remark(
        "", f"Attempt {attempt}: Agent failed{'' if code is None else f' (exit {code})'}, restarting...", "info"
    )
    said = f"Agent failed with exit code {code}" if code is not None else "Agent failed"
    yield Remark("INFO", f"{said}, restarting (attempt {attempt + 1}/{cap})")


def succeeded(attempt: int) -> Remark:
    """Of the attempt that was the last one needed."""
    return Remark("INFO", f"Attempt {attempt}: Agent succeeded", "info")


def exhausted(cap: int, was_refused: bool = False) -> Iterator[Remark]:
    """`was_refused`: there is a DONE, and a gate does not believe it."""
    said = "Max restarts exceeded, stopping"
    yield Remark("", f"Attempt {cap}: {said}" if cap else said, "warning")
    missing = "the DONE marker is not accepted" if was_refused else "no DONE marker"
    yield Remark("ERROR", f"max restarts exceeded, stopping: {missing} after {plural(cap, 'attempt')}")


def unfinished(outcome: str, reason: str) -> Remark:
    """Another limit ended the run."""
    return Remark("ERROR", f"task not completed ({outcome}): {one_line(reason, 1000)}")


def waiting_requested(reason: str = "") -> Remark:
    """The agent waits for somebody, and wants no restart."""
    return Remark("INFO", f"Wait-without-restart signal detected{': ' + one_line(reason) if reason else ''}")


def fatal(reason: str) -> Remark:
    return Remark("ERROR", f"Fatal error: {one_line(reason, 1000)}")


def cancelled(reason: str) -> Remark:
    return Remark("INFO", f"task cancelled: {one_line(reason)}")


def awaiting(children: Sequence[str]) -> Remark:
    return Remark("INFO", f"waiting for {plural(len(children), 'child run')} to complete: {', '.join(children)}")


def not_awaited(children: Sequence[str], timeout: float) -> Remark:
    """The children took too long: the task is done all the same."""
    text = f"timeout waiting for children after {go_duration(timeout)}: {', '.join(children)}"
    return Remark("WARNING", text, "warning")


def child_died(run_id: str, why: str) -> Remark:
    return Remark("WARNING", f"child run {run_id} marked as failed: {one_line(why)}", "warning")


def blocked(tasks: Sequence[str]) -> Remark:
    return Remark("INFO", f"waiting for other tasks to be done: {', '.join(tasks)}", "info")


def completion(name: str, done_at: str, run_id: str, attempts: int) -> Remark:
    """For the project's bus. Two completions never have the same words: `done_at` tells them apart."""
    last = f", last run {run_id}" if run_id else ""
    return Remark("FACT", f"task {name} completed: DONE at {done_at}, {plural(attempts, 'attempt')}{last}")


def not_told(reason: str) -> Remark:
    return Remark("WARNING", f"the project's bus could not be told of the completion: {one_line(reason)}", "warning")


def has_failed(turn: Turn) -> bool:
    if turn.exit_code == WAIT_EXIT_CODE:
        return False
    return turn.exit_code != 0 or bool(turn.ended_by) or turn.failure is not None


def how_ended(turn: Turn) -> str:
    """`exit code 1`, with the reason where it is known."""
    code = f"exit code {turn.exit_code}" if turn.exit_code is not None else "no exit code"
    why = one_line(turn.ended_by or (turn.failure.reason if turn.failure else ""))
    return why if why.startswith(code) else f"{code} ({why})" if why else code


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


class Announcer:
    """`run` is the run that the next remarks are about. A bus that cannot be written to is no reason to stop."""

    def __init__(self, task: TaskFolder) -> None:
        self.task, self.run = task, ""
        self.tell: events.Tell = lambda event: None
        self._trouble = ""

    def say(self, remarks: Remark | Iterable[Remark]) -> None:
        task = self.task
        for remark in (remarks,) if isinstance(remarks, Remark) else remarks:
            if remark.type:
                try:
                    bus.post(task.bus, remark.type, remark.body, project=task.project, task=task.task, run=self.run)
                except UserError as error:
                    self.trouble(error.message)
            self.tell(events.Notice(remark.body, remark.level))

    def trouble(self, text: str) -> None:
        """Warns of what cannot be written down, once."""
        if text != self._trouble:
            self._trouble = text
            self.tell(events.Notice(text))
