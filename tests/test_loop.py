"""How the parts of a run work together, with fakes for the agent and the workspace."""

from collections.abc import Callable
from typing import get_args

from msgspec.structs import replace

from ralph.core import events, rules
from ralph.core.claims import Claim
from ralph.core.model import Check, Failure, Iteration, Note, Outcome, Run, Snapshot, Turn, Usage, Wait
from ralph.errors import UserError
from ralph.loop import Parts, run_loop
from ralph.run.policy import make_policy
from ralph.settings import CheckCommand, Settings
from ralph.testing import FakeWorkspace, ScriptedAgent

RED, GREEN = Check(name="test", passed=False, exit_code=1, head="boom"), Check(name="test", passed=True)
LIMIT = Turn(text="", failure=Failure("limit", "limit reached"))


def parts(agent: ScriptedAgent, workspace: FakeWorkspace | None = None, **more: object) -> Parts:
    check = rules.failing_checks()
    asked = [
        rules.interrupted,
        rules.fatal_trouble,
        check,
        rules.completed([Claim("word", "STOP")], [check]),
        rules.at_most(iterations=5),
    ]
    given: dict[str, object] = {"rules": asked, "compose": _compose, **more}
    return Parts(agent=agent, workspace=workspace or FakeWorkspace(), **given)  # type: ignore[arg-type]


def kinds(heard: list[events.Event]) -> list[str]:
    return [type(event).__name__ for event in heard]


def _compose(run: Run, notes: tuple[Note, ...]) -> str:
    return " | ".join([run.goal, *(note.text + note.output for note in notes)])


def test_a_run_continues_until_the_agent_claims_and_every_check_passes() -> None:
    agent, heard = ScriptedAgent("working", "STOP", "STOP"), list[events.Event]()
    run, stop = run_loop(
        parts(agent, FakeWorkspace([(RED,), (RED,), (GREEN,)]), tell=heard.append), Run(id="r", goal="g")
    )
    assert stop.outcome is Outcome.DONE
    assert len(run.iterations) == 3
    assert "boom" in agent.prompts[1]
    assert kinds(heard) == ["IterationStarted", "IterationFinished"] * 2 + [
        "ClaimRejected",
        "IterationStarted",
        "IterationFinished",
    ]


def test_a_turn_that_hits_a_limit_is_not_an_iteration() -> None:
    agent, heard = ScriptedAgent(LIMIT, "STOP"), list[events.Event]()
    run, stop = run_loop(parts(agent, tell=heard.append), Run(id="r", goal="g"))
    assert (stop.outcome, len(run.iterations)) == (Outcome.DONE, 1)
    assert kinds(heard) == ["IterationStarted", "TurnNotCounted", "IterationFinished"]


def test_the_rules_are_asked_again_after_a_wait() -> None:
    slept: list[float] = []
    looks = [Snapshot(at=0.0), Snapshot(at=1.0)]

    def until_one(run: Run) -> list[Wait]:
        return [Wait(1.0, "early")] if run.seen.at < 1.0 else []

    made = parts(ScriptedAgent("STOP"), FakeWorkspace(looks=looks), wait=lambda wait, run: slept.append(wait.seconds))
    made.rules = [*made.rules, until_one]
    _, stop = run_loop(made, Run(id="r"))
    assert (stop.outcome, slept) == (Outcome.DONE, [1.0])


def test_an_interrupted_turn_is_not_recorded_as_an_iteration() -> None:
    looks = [Snapshot(), Snapshot(interrupted="SIGINT")]
    run, stop = run_loop(
        parts(ScriptedAgent(Turn(text="STOP", ended_by="interrupt")), FakeWorkspace(looks=looks)), Run(id="r")
    )
    assert (stop.outcome, len(run.iterations)) == (Outcome.INTERRUPTED, 0)


def test_checks_cut_short_by_an_interruption_never_count_as_green() -> None:
    looks = [Snapshot(), Snapshot(interrupted="SIGINT")]
    run, stop = run_loop(parts(ScriptedAgent("STOP"), FakeWorkspace([None], looks=looks)), Run(id="r"))
    assert (stop.outcome, len(run.iterations)) == (Outcome.INTERRUPTED, 0)


def test_the_cost_of_a_turn_counts_even_if_a_later_step_fails() -> None:
    class Broken(FakeWorkspace):
        def guard(self) -> tuple[str, ...]:
            raise UserError("cannot restore protected files", "restore them by hand")

    agent, heard = ScriptedAgent(Turn(text="STOP", usage=Usage(cost_usd=0.31))), list[events.Event]()
    run, stop = run_loop(parts(agent, Broken(), tell=heard.append), Run(id="r"))
    assert (stop.outcome, len(run.iterations), run.usage.cost_usd) == (Outcome.FATAL, 0, 0.31)
    assert "restore them by hand" in stop.reason
    assert kinds(heard) == ["IterationStarted", "TurnNotCounted"]


def test_followups_see_each_iteration_once() -> None:
    seen: list[int] = []
    made = parts(ScriptedAgent("a", "b", "STOP"), followups=[lambda run, iteration: seen.append(iteration.number)])
    run_loop(made, Run(id="r"))
    assert seen == [1, 2, 3]


def test_each_event_has_its_own_name() -> None:
    assert set(get_args(events.Event)) - set(events.NAMES) == {events.AgentUnknown}, "it is never written"


def test_referees_are_asked_only_about_a_claim_that_every_gate_accepts() -> None:
    asked: list[int] = []

    def referee(run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        asked.append(iteration.number)
        return iteration

    policy = make_policy(Settings(until=("word:STOP",), checks=(CheckCommand("test"),)))
    agent, workspace = ScriptedAgent("working", "STOP", "STOP"), FakeWorkspace([(GREEN,), (RED,), (GREEN,)])
    made = parts(agent, workspace, rules=policy.rules, referees=[referee], is_claimed=policy.is_claimed)
    _, stop = run_loop(made, Run(id="r"))
    assert (stop.outcome, asked) == (Outcome.DONE, [3])


def test_no_referee_runs_after_one_that_refuses() -> None:
    asked: list[str] = []

    def make(name: str, *results: Check) -> Callable[[Run, Iteration, Parts], Iteration]:
        def referee(run: Run, iteration: Iteration, parts: Parts) -> Iteration:
            asked.append(name)
            return replace(iteration, checks=(*iteration.checks, results[iteration.number - 1]))

        return referee

    policy = make_policy(Settings(until=("word:STOP",), checks=(CheckCommand("test"),)))
    referees = [make("first", RED, GREEN), make("second", GREEN, GREEN)]
    agent, heard = ScriptedAgent("STOP"), list[events.Event]()
    made = parts(
        agent,
        FakeWorkspace([(GREEN,)]),
        rules=policy.rules,
        referees=referees,
        is_claimed=policy.is_claimed,
        tell=heard.append,
    )
    run, stop = run_loop(made, Run(id="r"))
    assert asked == ["first", "first", "second"]
    assert (stop.outcome, len(run.iterations)) == (Outcome.DONE, 2)
    stored = [event.record for event in heard if isinstance(event, events.IterationFinished)]
    assert [len(iteration.checks) for iteration in stored] == [2, 3], "the results are part of the recorded iteration"
