"""The events of one whole run: two refused iterations, a wait, then done."""

import pytest

from ralph.core import events as e
from ralph.core.model import Check, Failure, Iteration, Outcome, Turn, Usage

GOAL = "Make the parser accept empty input. All tests must pass; do not change the tests."
LOG = ".ralph/guardrail_001_make_test.log"
FAILURE = "....F\nFAILED tests/test_parser.py::test_empty - IndexError: string index out of range\n1 failed, 4 passed\n"


def red(number: int) -> Iteration:
    checks = (
        Check(name="make test", passed=False, exit_code=1, log=LOG, duration=1.24),
        Check(name="make lint", passed=True, duration=0.31),
    )
    turn = Turn(
        text="COMPLETE", tool_calls=3, usage=Usage(input_tokens=1200, output_tokens=450, cost_usd=0.1234), duration=62.0
    )
    return Iteration(number=number, turn=turn, checks=checks)


def first_iteration() -> list[e.Event]:
    return [
        e.IterationStarted(1, 10, GOAL),
        e.AgentStarted("claude", ("claude", "-p", "--model", "opus 4"), pid=42),
        e.AgentProgress("session 5f2c started"),
        e.AgentText("I'll look at the parser first, then at the test that fails.\n\n- read `parser.py`\n- fix it"),
        e.ToolStarted("t1", "Read", "/work/repo/src/parser.py"),
        e.ToolFinished(
            id="t1", name="Read", ok=True, output="def parse(text):\n\treturn text[0]\n\n# more\n", lines=45, chars=1234
        ),
        e.TodoUpdated(
            (e.TodoItem("Read the file", "done"), e.TodoItem("Edit the code", "active"), e.TodoItem("Run tests")),
        ),
        e.ToolStarted("t2", "Edit", "/work/repo/src/parser.py"),
        e.ToolStarted("t3", "Bash", "pytest -q\n  tests"),
        e.ToolFinished(id="t2", name="Edit", ok=True, output="", lines=0, chars=0),
        e.ToolFinished(
            id="t3",
            name="Bash",
            ok=False,
            output="E   IndexError: string index out of range\n1 failed",
            lines=2,
            chars=51,
        ),
        e.AgentText("Everything works now. COMPLETE"),
        e.AgentResult(
            cost_usd=0.1234,
            input_tokens=12_000,
            output_tokens=4_500,
            cache_read_tokens=850_000,
            cache_write_tokens=300_000,
        ),
        e.AgentFinished(exit_code=0, duration_s=62.0, tool_calls=3, tool_errors=1, skipped_lines=2, leftovers=1),
        e.CheckStarted("make test"),
        e.CheckFinished(
            name="make test", passed=False, exit_code=1, duration_s=1.24, log=LOG, output=FAILURE, action="APPEND"
        ),
        e.CheckStarted("make lint"),
        e.CheckFinished(name="make lint", passed=True, exit_code=0, duration_s=0.31),
        e.IterationFinished(1, red(1)),
        e.ClaimRejected("COMPLETE", "checks", 'Guardrail "make test" failed with exit code 1.'),
    ]


def second_iteration() -> list[e.Event]:
    limit = Turn(text="", exit_code=1, failure=Failure("limit", "usage limit reached"))
    failed = Turn(
        text="", exit_code=1, tool_calls=0, failure=Failure("ordinary", "the agent exited with 1"), duration=2.5
    )
    return [
        e.IterationStarted(2, 10, GOAL),
        e.AgentStarted("claude"),
        e.AgentFinished(
            exit_code=1, duration_s=0.8, failure="limit", reason="usage limit reached, resets 7:17am (UTC)"
        ),
        e.TurnNotCounted(limit),
        e.Waiting(720.0, "usage limit reached", 0.0),
        e.AgentStarted("claude"),
        e.AgentFinished(exit_code=1, duration_s=2.0, failure="ordinary", reason="the agent exited with 1"),
        e.IterationFinished(2, Iteration(number=2, turn=failed, checked=False)),
        e.Notice("the turn failed; 2 more in a row end the run"),
    ]


def third_iteration() -> list[e.Event]:
    checks = (Check(name="make test", passed=True, duration=1.1), Check(name="make lint", passed=True, duration=0.3))
    turn = Turn(
        text="COMPLETE", tool_calls=1, usage=Usage(input_tokens=1, output_tokens=2, cost_usd=0.04), duration=8.1
    )
    return [
        e.IterationStarted(3, 10, GOAL),
        e.AgentStarted("claude"),
        e.ToolStarted("t1", "Edit", "src/parser.py"),
        e.ToolFinished(id="t1", name="Edit", ok=True, output="ok", lines=1, chars=2),
        e.AgentText("COMPLETE"),
        e.AgentResult(cost_usd=0.04, input_tokens=1000, output_tokens=200),
        e.AgentFinished(exit_code=0, duration_s=8.0, tool_calls=1),
        e.CheckStarted("make test"),
        e.CheckFinished(name="make test", passed=True, exit_code=0, duration_s=1.1),
        e.CheckStarted("make lint"),
        e.CheckFinished(name="make lint", passed=True, exit_code=0, duration_s=0.3),
        e.ReviewStarted("security"),
        e.AgentStarted("claude", purpose="review-security"),
        e.AgentFinished(exit_code=0, duration_s=3.0, tool_calls=0),
        e.ReviewFinished("security", True),
        e.IterationFinished(3, Iteration(number=3, turn=turn, checks=checks)),
        e.ScmFinished(3, "commit", True, "Accept empty input"),
        e.ScmFinished(3, "push", False, "no remote named origin"),
        e.Converged(3, "COMPLETE"),
        e.RunFinished(
            outcome=Outcome.DONE,
            reason="the agent said COMPLETE and 2 checks passed",
            iterations=3,
            cost_usd=0.1634,
            duration_s=800.0,
            exit_code=0,
            worktree="/home/user/.cache/ralph/3f2a",
            branch="ralph/3f2a",
        ),
    ]


@pytest.fixture
def run() -> list[e.Event]:
    started = e.RunStarted(
        goal=GOAL,
        preset="checks",
        agent="claude",
        workspace="/work/repo",
        max_iterations=10,
        checks=("make test", "make lint"),
        claims=("tag:COMPLETE",),
        gates=("checks", "tasks"),
    )
    debug = e.Notice("Loading settings from .ralph/settings.json", "debug")
    return [debug, started, *first_iteration(), *second_iteration(), *third_iteration()]
