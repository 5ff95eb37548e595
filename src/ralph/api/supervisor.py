"""How is a task supervised from Python? The same loop as the command's, around an agent or a function of your own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph import __version__
from ralph.api.python_loop import PythonAgent
from ralph.core.model import Failure, Run, Turn
from ralph.errors import UserError
from ralph.processes.interrupt import Cancellation
from ralph.processes.keeper import Keeper
from ralph.processes.spawning import occupy_standard_streams
from ralph.run.context import Context
from ralph.run.order import Order
from ralph.run.session import Session
from ralph.settings import load
from ralph.supervise.bus import MessageBus
from ralph.supervise.supervision import TaskPlace
from ralph.supervise.task_folder import TaskFolder, keep_prompt

if TYPE_CHECKING:
    from threading import Event


RunRoot = Callable[[int], Any]


class Supervision(Struct, frozen=True):
    """How the supervision of a task ended. `outcome`: done, stopped, exhausted, fatal, interrupted, ..."""

    outcome: str
    reason: str
    attempts: int
    exit_code: int

    @property
    def success(self) -> bool:
        return self.exit_code == 0


class Supervisor:
    """Starts a root agent again and again until the file DONE is in `run_dir`.

    `run_root(attempt)` is one attempt, counted from 0: it succeeds if it returns None, 0 or text; another number is an
    exit code; what it raises is a failure, and FileNotFoundError, PermissionError and UserError are fatal. Without
    it, `agent` is started as `ralph task` would, with `prompt` or the task's TASK.md. What happens is told on `bus`,
    in `run_dir` unless you have one. `cancel` ends the supervision; signals are left to you.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        bus: MessageBus | None = None,
        *,
        run_root: RunRoot | None = None,
        agent: str = "",
        prompt: str | None = None,
        max_restarts: int = 100,
        wait_timeout: float = 300.0,
        poll_interval: float = 1.0,
        restart_delay: float = 1.0,
        turn_timeout: float | None = None,
        idle_timeout: float | None = None,
        project_id: str = "",
        task_id: str = "",
        workspace: str | os.PathLike[str] = ".",
        cancel: "Event | None" = None,
    ) -> None:
        path = Path(os.path.abspath(run_dir))
        self.task = TaskFolder(
            root=path.parent.parent,
            project=project_id or path.parent.name,
            task=task_id or path.name,
            at=path,
            bus_at=Path(bus.path) if bus else None,
        )
        self._run_root, self._prompt, self._cancel = run_root, prompt, cancel
        self._workspace = Path(workspace).resolve()
        said: dict[str, Any] = {
            "preset": "supervise",
            "maximumIterations": max_restarts,
            "waitTimeout": wait_timeout,
            "pollInterval": poll_interval,
            "restartDelay": restart_delay,
            "turnTimeout": turn_timeout,
            "idleTimeout": idle_timeout,
        }
        self._said = {**said, "agent": {"command": agent}} if agent else said
        self._context: Context | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What the processes of the current attempt should find in their environment: pass it on to what you start."""
        env = dict(self._context.folder.env) if self._context else {}
        return {**os.environ, **env}

    def run(self) -> Supervision:
        occupy_standard_streams()
        settings = load(self._workspace, self._said, env=os.environ, source="Supervisor").settings
        needs_prompt = self._prompt is not None or self._run_root is None
        goal = keep_prompt(self.task, self._prompt) if needs_prompt else ""
        self.task.path.mkdir(parents=True, exist_ok=True)
        order = Order(
            settings=settings,
            workspace=str(self._workspace),
            goal_text=goal,
            version=__version__,
            task=str(self.task.path),
        )
        with Keeper.start() as keeper, Cancellation(self._cancel) as interrupt:
            place = TaskPlace(order, task=self.task)
            session = Session(
                order,
                place=place,
                agent=self._caller if self._run_root else None,
                keeper=keeper,
                interrupt=interrupt,
                listeners=[lambda *happened: interrupt.ask()],
                tick=interrupt.tick if self._cancel else None,
            )
            _, stop = session.play()
        return Supervision(stop.outcome.value, stop.reason, place.attempts, stop.outcome.exit_code)

    def _caller(self, context: Context) -> PythonAgent:
        self._context = context
        return PythonAgent(self._call, context)

    def _call(self, prompt: str, run: Run) -> Turn:
        assert self._run_root is not None
        return _attempt(self._run_root, run.number - 1)


def _attempt(run_root: RunRoot, number: int) -> Turn:
    """What one call of the function was, as the loop knows it."""
    try:
        said = run_root(number)
    except (FileNotFoundError, PermissionError, UserError) as error:
        reason = error.advice if isinstance(error, UserError) else str(error)
        return Turn(text="", exit_code=None, failure=Failure("fatal", reason))
    except Exception as error:  # noqa: BLE001 - the caller's function may fail in any way: that is a failed attempt
        code = getattr(error, "returncode", None)
        failure = Failure("ordinary", f"{type(error).__name__}: {error}")
        return Turn(text="", exit_code=code if isinstance(code, int) else None, failure=failure)
    if isinstance(said, str):
        return Turn(text=said, exit_code=0)
    code = getattr(said, "returncode", 0 if said is None or said is True else said)
    code = code if isinstance(code, int) and said is not False else 1
    return Turn(text="", exit_code=code, failure=Failure("ordinary", f"exit code {code}") if code else None)
