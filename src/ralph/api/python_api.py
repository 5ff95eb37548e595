"""The Python API: `RalphLoop` runs a loop with a fresh agent per iteration, `Supervisor` restarts a function until a
task is done. It is the same loop as the command's, with the same rules, checks, worktree and progress file."""

import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.followers import FOLLOWERS
from ralph.core import events
from ralph.core.claims import Claim, Reading, makes_claim
from ralph.core.model import Failure, Iteration, Outcome, Rule, Run, Turn, Usage
from ralph.errors import UserError
from ralph.process.signals import Cancellation
from ralph.process.streams import open_standard_streams
from ralph.run.plan import RunPlan, prepare
from ralph.run.play import Played, play
from ralph.run.request import RunRequest
from ralph.settings import PRESET_OF, load
from ralph.store.folder import write
from ralph.supervise.bus import MessageBus
from ralph.supervise.supervision import SupervisedRun
from ralph.supervise.task import TaskFolder
from ralph.verdict.context import Context


@dataclass
class RalphConfig:
    """The task, the checks that verify it, and the limits.

    - `baseline`: run the checks before the first turn.
    - `green_is_enough`: green checks count as the tag once the agent has nothing to add.
    - `stuck`: end after this many iterations without progress; 0: never.
    - `yolo`: let a named agent use its tools without asking.
    - `sandbox`: run a named agent and the checks in a sandbox, which implies `yolo`. The agent of a factory runs in
      your program.
    - `protect`: globs of files that the agent must not change.
    """

    task: str
    checks: list[str]
    spec_file: str | None = None
    completion_tag: str = "COMPLETE"
    max_iterations: int = 25
    max_cost: float | None = None
    max_time: int | None = None
    agent: str = "build"
    model: str | None = None
    use_worktree: bool = False
    baseline: bool = False
    green_is_enough: bool = False
    stuck: int = 0
    yolo: bool = False
    sandbox: bool = False
    protect: list[str] = field(default_factory=list)


@dataclass
class LoopIteration:
    """One iteration, as the caller sees it."""

    iteration: int
    steps_taken: int
    cost: float
    duration: float
    check_results: list[dict[str, Any]]
    all_checks_passed: bool
    completion_tag_found: bool
    error: str | None = None


@dataclass
class RalphLoopResult:
    """How the loop ended. `stop_reason` is `all_checks_passed`, `max_iterations`, `budget_exhausted`, `timeout`, or the
    name of another outcome. `reason` says more, in one line; it may be empty."""

    iterations: list[LoopIteration] = field(default_factory=list)
    total_cost: float = 0.0
    total_duration: float = 0.0
    success: bool = False
    stop_reason: str = ""
    worktree_path: str = ""
    reason: str = ""

    @property
    def total_iterations(self) -> int:
        return len(self.iterations)


NAME = "python"
STOP_REASONS = {
    Outcome.DONE: "all_checks_passed",
    Outcome.EXHAUSTED: "max_iterations",
    Outcome.BUDGET: "budget_exhausted",
}


class RalphLoop:
    """Runs `agent_factory(...).run(prompt)` in a loop until every check passes and the agent says the tag.

    Instead of a factory, `agent` names an agent as `--agent` does, for example "claude". `rules` are added to ralph's
    own. `cancel` ends the loop when it is set; the caller then handles signals itself.
    """

    def __init__(
        self,
        config: RalphConfig,
        agent_factory: Callable[..., Any] | None = None,
        workspace_root: str | os.PathLike[str] | None = None,
        *,
        agent: str = "",
        rules: Sequence[Rule] = (),
        cancel: "Event | None" = None,
    ) -> None:
        if (agent_factory is None) == (not agent):
            raise UserError("expected either agent_factory or agent", "for example: agent='claude'")
        self.config = config
        self.agent_factory = agent_factory
        self.workspace_root = Path(workspace_root or ".").resolve()
        self._agent, self._rules, self._cancel = agent, rules, cancel
        self._played: Played | None = None

    def run(self) -> RalphLoopResult:
        """Run the loop to its end. Raise a `UserError` if it cannot start."""
        open_standard_streams()
        settings = load(self.workspace_root, self._settings_values(), env=os.environ, source="RalphConfig").settings
        if not self.config.task.strip() and not self.config.spec_file:
            raise UserError("the task is empty", "say what to achieve, or give a spec_file")
        spec = str(self.workspace_root / self.config.spec_file) if self.config.spec_file else ""
        request = RunRequest(
            settings=settings,
            workspace=str(self.workspace_root),
            goal_text=self.config.task,
            goal_file=spec,
            green_is_enough=self.config.green_is_enough,
        )
        request.goal()  # report a specification that can't be read before anything is created
        plan = prepare(request, make_agent=self._factory_agent if self.agent_factory else None, rules=self._rules)
        self._played = _play_until(self._cancel, plan) if self._cancel else play(plan, followers=FOLLOWERS)
        return self._result(self._played)

    def _settings_values(self) -> dict[str, Any]:
        """Return the configuration as settings."""
        config = self.config
        for name in ("checks", "protect"):
            if isinstance(value := getattr(config, name), str):
                raise UserError(f"{name}: expected a list, got {value!r}", "put it into a list")
        values: dict[str, Any] = {
            "preset": PRESET_OF["loop"],
            "checks": [{"command": command} for command in config.checks],
            "until": [f"tag:{config.completion_tag}"],
            "maximumIterations": config.max_iterations,
            "maxCost": config.max_cost,
            "maxTime": config.max_time,
            "worktree": config.use_worktree,
            "baseline": config.baseline,
            "stuck": config.stuck,
        }
        # Unset values leave those of the settings files in force.
        values |= {"yolo": True} if config.yolo else {}
        values |= {"sandbox": {"enabled": True}} if config.sandbox else {}
        values |= {"protect": config.protect} if config.protect else {}
        if self._agent:
            values["agent"] = {"command": self._agent, **({"model": config.model} if config.model else {})}
        return values

    def _factory_agent(self, context: Context) -> "PythonAgent":
        """Return an agent that calls the factory for each turn, so that no context is carried over."""
        factory = self.agent_factory
        assert factory is not None
        offered = {"agent": self.config.agent, "model": self.config.model, "workspace_root": str(context.root)}
        arguments = _supported_arguments(factory, offered)

        def call(prompt: str, run: Run) -> Turn:
            try:
                with context.interrupt.raise_on_repeat():
                    return _turn(factory(**arguments).run(prompt))
            except Exception as error:  # noqa: BLE001 - the caller's agent may fail in any way: that is a failed turn
                return Turn(text="", exit_code=None, failure=Failure("ordinary", f"{type(error).__name__}: {error}"))

        return PythonAgent(call, context)

    def _result(self, played: Played) -> RalphLoopResult:
        tag, run, stop = Claim("tag", self.config.completion_tag), played.run, played.stop
        return RalphLoopResult(
            iterations=[_seen_by_caller(iteration, tag) for iteration in run.iterations],
            total_cost=run.usage.cost_usd or 0.0,
            total_duration=run.seen.elapsed,
            success=stop.outcome is Outcome.DONE,
            stop_reason=STOP_REASONS.get(stop.outcome, stop.outcome.value),
            worktree_path=played.worktree.path if played.worktree else "",
            reason=stop.reason,
        )

    def cleanup_worktree(self) -> bool:
        """Remove the worktree; return False if there is none, or if it contains work that exists nowhere else."""
        return self._played is not None and self._played.remove_worktree()

    def cleanup_progress(self) -> None:
        worktree = self._played.worktree if self._played else None
        for folder in (self.workspace_root, *([Path(worktree.workspace)] if worktree else [])):
            (folder / ".ralph" / "progress.md").unlink(missing_ok=True)


def _play_until(cancel: Event, plan: RunPlan) -> Played:
    """Play a run that ends when the event is set. Leave the signals to the caller."""
    with Cancellation(cancel) as interrupt:
        listeners = [lambda *happened: interrupt.check()]
        return play(plan, followers=FOLLOWERS, interrupt=interrupt, listeners=listeners, ticks=[interrupt.tick])


def _seen_by_caller(iteration: Iteration, tag: Claim) -> LoopIteration:
    return LoopIteration(
        iteration=iteration.number,
        steps_taken=iteration.turn.steps or 0,
        cost=iteration.usage.cost_usd or 0.0,
        duration=iteration.duration,
        check_results=[
            {"name": check.name, "passed": check.passed, "output": check.tail + (check.ending if check.timeout else "")}
            for check in iteration.checks
        ],
        all_checks_passed=iteration.is_green,
        completion_tag_found=makes_claim(tag, iteration.turn.text, Reading(verified=True)),
        error=iteration.turn.failure.reason if iteration.turn.failure else None,
    )


class PythonAgent:
    """An agent whose turns are calls of a function."""

    def __init__(self, call: Callable[[str, Run], Turn], context: Context) -> None:
        self._call, self._context = call, context

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        context, folder = self._context, self._context.folder.turn(run.number, purpose, NAME)
        write(folder.prompt, context.redact(prompt.encode("utf-8", "surrogateescape")))
        context.tell(events.AgentStarted(NAME, purpose=purpose))
        began = time.monotonic()
        turn = self._call(prompt, run)
        text, took = context.redact.text(turn.text), time.monotonic() - began
        turn = replace(turn, text=text, ended_at=time.time(), duration=took, agent=NAME)
        folder.record_end(turn, text.encode("utf-8", "replace"))
        kind, reason = (turn.failure.kind, turn.failure.reason) if turn.failure else ("", "")
        context.tell(events.AgentFinished(exit_code=turn.exit_code, duration_s=took, failure=kind, reason=reason))
        return turn


def _turn(answer: Any) -> Turn:
    """Convert what the agent's `run` returned."""
    if isinstance(answer, str):
        return Turn(text=answer)
    if not hasattr(answer, "final_output"):
        raise TypeError(f"run() returned {type(answer).__name__}, neither text nor an object with final_output")
    # Some agents keep track of their cost and steps in these attributes.
    cost = getattr(answer, "cost", getattr(getattr(answer, "cost_tracker", None), "total_cost_usd", None))
    steps: Any = getattr(answer, "steps", getattr(answer, "current_step", None))
    if not isinstance(steps, int):
        steps = len(steps) if hasattr(steps, "__len__") else None
    return Turn(
        text=str(answer.final_output or ""),
        steps=steps,
        usage=Usage(cost_usd=float(cost) if isinstance(cost, int | float) else None),
    )


def _supported_arguments(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the offered arguments that the factory accepts by name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in offered.items() if name in named}


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
    """Restarts a root agent until the file DONE is in `run_dir`.

    `run_root(attempt)` runs one attempt, counted from 0. It succeeds if it returns None, 0 or text; another number is
    an exit code. An exception is a failure; FileNotFoundError, PermissionError and UserError are fatal.

    - `agent` is used without `run_root`, and started as `ralph task` would start it, with `prompt` or the task's
      TASK.md.
    - `bus` receives the messages; by default it is the bus in `run_dir`.
    - `cancel` ends the supervision when it is set; the caller then handles signals itself.
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
        self.task = TaskFolder(path, project_id or path.parent.name, task_id or path.name, bus=bus)
        self._run_root, self._prompt, self._cancel = run_root, prompt, cancel
        self._workspace = Path(workspace).resolve()
        values: dict[str, Any] = {
            "preset": PRESET_OF["task"],
            "maximumIterations": max_restarts,
            "waitTimeout": wait_timeout,
            "pollInterval": poll_interval,
            "restartDelay": restart_delay,
            "turnTimeout": turn_timeout,
            "idleTimeout": idle_timeout,
        }
        self._settings_values = {**values, "agent": {"command": agent}} if agent else values
        self._context: Context | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment for the processes of the current attempt: pass it to what you start."""
        env = dict(self._context.folder.env) if self._context else {}
        return {**os.environ, **env}

    def run(self) -> Supervision:
        """Start the agent again and again until it is done; return how that ended."""
        open_standard_streams()
        settings = load(self._workspace, self._settings_values, env=os.environ, source="Supervisor").settings
        needs_prompt = self._prompt is not None or self._run_root is None
        goal = self.task.save_prompt(self._prompt) if needs_prompt else ""
        self.task.path.mkdir(parents=True, exist_ok=True)
        request = RunRequest(
            settings=settings,
            workspace=str(self._workspace),
            goal_text=goal,
            task=str(self.task.path),
        )
        supervised = SupervisedRun(request, self.task)
        plan = prepare(request, place=supervised.place, make_agent=self._agent if self._run_root else None)
        stop = _play_until(self._cancel or Event(), plan).stop
        return Supervision(stop.outcome.value, stop.reason, supervised.attempts, stop.outcome.exit_code)

    def _agent(self, context: Context) -> PythonAgent:
        run_root, self._context = self._run_root, context
        assert run_root is not None
        return PythonAgent(lambda prompt, run: _attempt(run_root, run.number - 1), context)


def _attempt(run_root: RunRoot, number: int) -> Turn:
    """Call the function and convert its result."""
    try:
        result = run_root(number)
    except (FileNotFoundError, PermissionError, UserError) as error:
        reason = error.advice if isinstance(error, UserError) else str(error)
        return Turn(text="", exit_code=None, failure=Failure("fatal", reason))
    except Exception as error:  # noqa: BLE001 - the caller's function may fail in any way: that is a failed attempt
        code = getattr(error, "returncode", None)
        failure = Failure("ordinary", f"{type(error).__name__}: {error}")
        return Turn(text="", exit_code=code if isinstance(code, int) else None, failure=failure)
    if isinstance(result, str):
        return Turn(text=result, exit_code=0)
    code = getattr(result, "returncode", 0 if result is None or result is True else result)
    code = code if isinstance(code, int) and result is not False else 1
    return Turn(text="", exit_code=code, failure=Failure("ordinary", f"exit code {code}") if code else None)
