"""How is a loop run from Python? A configuration, a factory that makes a fresh agent per iteration, and a result.

The loop is the same as the command's: the same rules, checks, worktree and progress file.
"""

import inspect
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.core import events
from ralph.core.claims import Claim, Reading, stated
from ralph.core.model import Check, Failure, Iteration, Outcome, Run, Stop, Turn, Usage
from ralph.errors import UserError

if TYPE_CHECKING:
    from threading import Event

    from ralph.core.model import Rule
    from ralph.run.context import Context


@dataclass
class RalphConfig:
    """What to achieve, how it is verified, and what it may cost."""

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


@dataclass
class LoopIteration:
    """One iteration as the caller sees it."""

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
    name of another outcome."""

    iterations: list[LoopIteration] = field(default_factory=list)
    total_cost: float = 0.0
    total_duration: float = 0.0
    success: bool = False
    stop_reason: str = ""
    worktree_path: str = ""

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

    Instead of a factory, `agent` names an agent as `--agent` does: "claude", say. `rules` are asked beside ralph's own;
    `cancel` ends the loop when it is set, and signals are left to you then.
    """

    def __init__(
        self,
        config: RalphConfig,
        agent_factory: Callable[..., Any] | None = None,
        workspace_root: str | os.PathLike[str] | None = None,
        *,
        agent: str = "",
        rules: "Sequence[Rule]" = (),
        cancel: "Event | None" = None,
    ) -> None:
        if (agent_factory is None) == (not agent):
            raise UserError("one agent is needed", "give an agent_factory, or name an agent: agent='claude'")
        self.config = config
        self.agent_factory = agent_factory
        self.workspace_root = Path(workspace_root or ".").resolve()
        self._agent, self._rules, self._cancel = agent, rules, cancel
        self._session: Any = None

    def run(self) -> RalphLoopResult:
        from ralph.processes.interrupt import Cancellation
        from ralph.processes.spawning import occupy_standard_streams
        from ralph.run.order import Order
        from ralph.run.session import Session
        from ralph.settings import load

        occupy_standard_streams()
        settings = load(self.workspace_root, self._said(), env=os.environ, source="RalphConfig").settings
        if not self.config.task.strip() and not self.config.spec_file:
            raise UserError("the task is empty", "say what to achieve, or give a spec_file")
        spec = str(self.workspace_root / self.config.spec_file) if self.config.spec_file else ""
        order = Order(settings=settings, workspace=str(self.workspace_root), goal_text=self.config.task, goal_file=spec)
        order.goal()  # a specification that cannot be read is said before anything is made
        interrupt = Cancellation(self._cancel) if self._cancel else None
        self._session = Session(
            order,
            agent=self._factory_agent if self.agent_factory else None,
            rules=self._rules,
            interrupt=interrupt,
            listeners=[lambda *happened: interrupt.ask()] if interrupt else (),
            tick=interrupt.tick if interrupt else None,
        )
        with interrupt or nullcontext():
            run, stop = self._session.play()
        return self._result(run, stop)

    def _said(self) -> dict[str, Any]:
        """The configuration as settings."""
        config = self.config
        if isinstance(config.checks, str):
            raise UserError(f"checks: expected a list of commands, got {config.checks!r}", "put it into a list")
        said: dict[str, Any] = {
            "preset": "checks",
            "guardrails": [{"command": command} for command in config.checks],
            "until": [f"tag:{config.completion_tag}"],
            "maximumIterations": config.max_iterations,
            "maxCost": config.max_cost,
            "maxTime": config.max_time,
            "worktree": config.use_worktree,
        }
        if self._agent:
            said["agent"] = {"command": self._agent, **({"model": config.model} if config.model else {})}
        return said

    def _factory_agent(self, context: "Context") -> "PythonAgent":
        """An agent that is made anew for each turn, so that no context is carried over."""
        factory = self.agent_factory
        assert factory is not None
        offered = {"agent": self.config.agent, "model": self.config.model, "workspace_root": str(context.root)}
        arguments = _accepted(factory, offered)

        def call(prompt: str, run: Run) -> Turn:
            try:
                with context.interrupt.breaking():
                    return _turn(factory(**arguments).run(prompt))
            except Exception as error:  # noqa: BLE001 - the caller's agent may fail in any way: that is a failed turn
                return Turn(text="", exit_code=None, failure=Failure("ordinary", f"{type(error).__name__}: {error}"))

        return PythonAgent(call, context)

    def _result(self, run: Run, stop: Stop) -> RalphLoopResult:
        tag = Claim("tag", self.config.completion_tag)
        return RalphLoopResult(
            iterations=[_seen_by_caller(iteration, tag) for iteration in run.iterations],
            total_cost=run.usage.cost_usd or 0.0,
            total_duration=run.seen.elapsed,
            success=stop.outcome is Outcome.DONE,
            stop_reason=STOP_REASONS.get(stop.outcome, stop.outcome.value),
            worktree_path=self._session.worktree.path if self._session.worktree else "",
        )

    def cleanup_worktree(self) -> bool:
        """Removes the worktree; False if there is none, or if it holds work that is nowhere else."""
        return self._session is not None and bool(self._session.remove_worktree())

    def cleanup_progress(self) -> None:
        worktree = self._session.worktree if self._session else None
        for place in (self.workspace_root, *([Path(worktree.workspace)] if worktree else [])):
            (place / ".ralph" / "progress.md").unlink(missing_ok=True)


def _seen_by_caller(iteration: Iteration, tag: Claim) -> LoopIteration:
    return LoopIteration(
        iteration=iteration.number,
        steps_taken=iteration.turn.steps or 0,
        cost=iteration.usage.cost_usd or 0.0,
        duration=iteration.duration,
        check_results=[
            {"name": check.name, "passed": check.passed, "output": _output(check)} for check in iteration.checks
        ],
        all_checks_passed=iteration.is_green,
        completion_tag_found=stated(tag, iteration.turn.text, Reading(verified=True)),
        error=iteration.turn.failure.reason if iteration.turn.failure else None,
    )


def _output(check: Check) -> str:
    return check.tail + (check.ending if check.timeout else "")


class PythonAgent:
    """An agent whose turns are calls of a function."""

    def __init__(self, call: Callable[[str, Run], Turn], context: "Context") -> None:
        self._call, self._context = call, context

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        from ralph.records.folder import write

        context, folder = self._context, self._context.folder.turn(run.number, purpose, NAME)
        write(folder.prompt, context.redact(prompt.encode("utf-8", "surrogateescape")))
        context.tell(events.AgentStarted(NAME, purpose=purpose))
        began = time.monotonic()
        turn = self._call(prompt, run)
        text, took = context.redact.text(turn.text), time.monotonic() - began
        turn = replace(turn, text=text, ended_at=time.time(), duration=took, agent=NAME)
        folder.ended(turn, text.encode("utf-8", "replace"))
        kind, reason = (turn.failure.kind, turn.failure.reason) if turn.failure else ("", "")
        context.tell(events.AgentFinished(exit_code=turn.exit_code, duration_s=took, failure=kind, reason=reason))
        return turn


def _turn(answer: Any) -> Turn:
    """What the agent's `run` returned, as the loop knows it."""
    if isinstance(answer, str):
        return Turn(text=answer)
    if not hasattr(answer, "final_output"):
        raise TypeError(f"run() returned {type(answer).__name__}, neither text nor an object with final_output")
    # Programs that keep accounts of their own say it there.
    cost = getattr(answer, "cost", getattr(getattr(answer, "cost_tracker", None), "total_cost_usd", None))
    return Turn(
        text=str(answer.final_output or ""),
        steps=_count(getattr(answer, "steps", getattr(answer, "current_step", None))),
        usage=Usage(cost_usd=float(cost) if isinstance(cost, int | float) else None),
    )


def _accepted(factory: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that the factory takes by name."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in offered.items() if name in named}


def _count(steps: Any) -> int | None:
    if isinstance(steps, int):
        return steps
    return len(steps) if hasattr(steps, "__len__") else None
