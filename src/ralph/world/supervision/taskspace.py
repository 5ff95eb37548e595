"""What is true around a task right now? Besides its workspace: children, requests on the bus, tasks that come first."""

import time

from msgspec.structs import replace

from ralph.core.model import Check, Run, Snapshot
from ralph.core.supervision import WAIT_TYPE
from ralph.core.text import one_line
from ralph.loop import Workspace
from ralph.world.supervision.bus import Reader
from ralph.world.supervision.children import active_children
from ralph.world.supervision.dependencies import unmet
from ralph.world.supervision.taskfolder import TaskFolder


class TaskSpace:
    """A workspace, seen by the supervisor of a task. Requests that were on the bus before it count no more.

    `speaks`: the agent may also say that it is done, so that children matter where no done file is.
    """

    def __init__(self, inner: Workspace, task: TaskFolder, speaks: bool = False) -> None:
        self._inner, self._task, self._speaks = inner, task, speaks
        self._requests = Reader(task.bus, types=[WAIT_TYPE])
        self._requests.skip()
        self._request = ""
        self._claimed: tuple[object, float] = (None, 0.0)

    def look(self, run: Run) -> Snapshot:
        seen = self._inner.look(run)
        is_first = not run.iterations and not run.retries
        matter = seen.done_file or self._speaks
        return replace(
            seen,
            wait_requested=seen.wait_requested or self._requested(),
            done_for=self._seconds_since((len(run.iterations), len(run.retries), seen.done_file)),
            children=tuple(child.run_id for child in active_children(self._task)) if matter else (),
            waits_for=tuple(unmet(self._task)) if is_first and not seen.done_file else (),
        )

    def guard(self) -> tuple[str, ...]:
        return self._inner.guard()

    def check(self, number: int) -> tuple[Check, ...] | None:
        return self._inner.check(number)

    def tree(self, number: int) -> str | None:
        return self._inner.tree(number)

    def _requested(self) -> str:
        for message in self._requests.messages():
            self._request = f"a message asks to wait: {one_line(message.body) or message.type}"
        return self._request

    def _seconds_since(self, claim: object) -> float:
        """For how long the turns and the done file have been what they are."""
        if self._claimed[0] != claim:
            self._claimed = claim, time.monotonic()
        return time.monotonic() - self._claimed[1]
