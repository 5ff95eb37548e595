"""Where does a run live? In a workspace, or in a task's folder (supervise/supervision.py). Which folder is its own,
what else it looks after there, and who learns of its end."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core.model import Run, Stop
from ralph.errors import UserError
from ralph.records.folder import RunFolder, prepare, workspace_lock

if TYPE_CHECKING:
    from ralph.loop import Parts
    from ralph.repository.worktrees import Worktree
    from ralph.run.context import Context

Tick = Callable[[], bool | None]
"""Called now and then while nothing happens; whether it wants to be called again soon."""


class Place:
    """A workspace in which no other run works; the run keeps its things in `home`. `takes_questions`: an agent may
    leave some in the workspace, as a file."""

    takes_questions = True
    run_id = ""  # where it is known before the run begins
    lends: tuple[str, ...] = ()  # folders outside the workspace where its agent is to write

    def __init__(self, workspace: Path, home: Path | None = None, in_worktree: bool = False) -> None:
        self.workspace, self.home, self._in_worktree = workspace, home or workspace, in_worktree
        self._occupied: list[tuple[Path, Callable[[], None]]] = []

    def open(self, run_id: str, stack: ExitStack) -> RunFolder:
        """The run's folder, in a place that is the run's alone; a run in a worktree occupies only that."""
        ralph = prepare(self.home)
        if not self._in_worktree:
            self.occupy(self.home, run_id, stack)
        return RunFolder(ralph, run_id)

    def occupy(self, folder: Path, run_id: str, stack: ExitStack) -> None:
        """No other run works in this folder until the stack is left."""
        self._occupied.append((folder, stack.enter_context(workspace_lock(prepare(folder), run_id))))

    def move_to_worktree(self, context: "Context", resumed: Run | None, stack: ExitStack) -> "Worktree":
        """Where the work is done that must not touch the workspace."""
        from ralph.run.parts import move_to_worktree

        return move_to_worktree(context, resumed, lambda folder: self.occupy(folder, context.folder.id, stack))

    def restore(self) -> None:
        """Makes the place anew where an agent that cleans up has removed it."""
        prepare(self.home)
        for folder, lock_again in self._occupied:
            prepare(folder)
            lock_again()

    def enter(self, context: "Context") -> None:
        """The run has all that it needs, and is about to begin."""

    def ticks(self, context: "Context") -> Sequence[Tick]:
        """What else to look after while the run goes on."""
        return ()

    def equip(self, parts: "Parts", context: "Context") -> None:
        """Gives the parts of the run what they need to know here."""

    def refuse_box(self) -> None:
        """Raises where runs of this kind cannot be put into a box."""

    def refuse(self, error: UserError) -> None:
        """Learns that the run cannot begin."""

    def end(self, run: Run, stop: Stop, context: "Context") -> None:
        """Learns how the run ended, before anybody else is told."""
