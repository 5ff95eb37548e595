"""One whole run as its events: two refused attempts, a wait, then done."""

import pytest

from ralph.core import events as e
from ralph.core.model import Check, Failure, Iteration, Turn, Usage

GOAL = "Make the parser accept empty input. All tests must pass; do not change the tests."
LOG = ".ralph/guardrail_001_make_test.log"
FAILURE = "....F\nFAILED tests/test_parser.py::test_empty - IndexError: string index out of range\n1 failed, 4 passed\n"


def red(number: int) -> Iteration:
    checks = (Check("make test", False, 1, log=LOG, duration=1.24), Check("make lint", True, duration=0.31))
    turn = Turn("COMPLETE", tool_calls=3, usage=Usage(1200, 450, cost_usd=0.1234), duration=62.0)
    return Iteration(number, turn, checks)


def first_iteration() -> list[e.Event]:
    return [
        e.IterationStarted(1, 10, GOAL),
        e.AgentStarted("claude", ("claude", "-p", "--model", "opus 4"), pid=42),
        e.AgentProgress("session 5f2c started"),
        e.AgentText("I'll look at the parser first, then at the test that fails.\n\n- read `parser.py`\n- fix it"),
        e.ToolStarted("t1", "Read", "/work/repo/src/parser.py"),
        e.ToolFinished("t1", "Read", True, "def parse(text):\n\treturn text[0]\n\n# more\n", 45, 1234),
        e.TodoUpdated(
            (e.TodoItem("Read the file", "done"), e.TodoItem("Edit the code", "active"), e.TodoItem("Run tests")),
        ),
        e.ToolStarted("t2", "Edit", "/work/repo/src/parser.py"),
        e.ToolStarted("t3", "Bash", "pytest -q\n  tests"),
        e.ToolFinished("t2", "Edit", True, "", 0, 0),
        e.ToolFinished("t3", "Bash", False, "E   IndexError: string index out of range\n1 failed", 2, 51),
        e.AgentText("Everything works now. COMPLETE"),
        e.AgentResult(0.1234, 12_000, 4_500, 850_000, 300_000),
        e.AgentFinished(0, 62.0, tool_calls=3, tool_errors=1, skipped_lines=2, leftovers=1),
        e.CheckStarted("make test"),
        e.CheckFinished("make test", False, 1, 1.24, LOG, FAILURE, "APPEND"),
        e.CheckStarted("make lint"),
        e.CheckFinished("make lint", True, 0, 0.31),
        e.IterationFinished(1, red(1)),
        e.ClaimRejected("COMPLETE", "checks", 'Guardrail "make test" failed with exit code 1.'),
    ]


def second_iteration() -> list[e.Event]:
    limit = Turn("", 1, failure=Failure("limit", "usage limit reached"))
    failed = Turn("", 1, tool_calls=0, failure=Failure("ordinary", "the agent exited with 1"), duration=2.5)
    return [
        e.IterationStarted(2, 10, GOAL),
        e.AgentStarted("claude"),
        e.AgentFinished(1, 0.8, failure="limit", reason="usage limit reached, resets 7:17am (UTC)"),
        e.TurnNotCounted(limit),
        e.Waiting(720.0, "usage limit reached", 0.0),
        e.AgentStarted("claude"),
        e.AgentFinished(1, 2.0, failure="ordinary", reason="the agent exited with 1"),
        e.IterationFinished(2, Iteration(2, failed, checked=False)),
        e.Notice("the turn failed; 2 more in a row end the run"),
    ]


def third_iteration() -> list[e.Event]:
    checks = (Check("make test", True, duration=1.1), Check("make lint", True, duration=0.3))
    turn = Turn("COMPLETE", tool_calls=1, usage=Usage(1, 2, cost_usd=0.04), duration=8.1)
    return [
        e.IterationStarted(3, 10, GOAL),
        e.AgentStarted("claude"),
        e.ToolStarted("t1", "Edit", "src/parser.py"),
        e.ToolFinished("t1", "Edit", True, "ok", 1, 2),
        e.AgentText("COMPLETE"),
        e.AgentResult(0.04, 1000, 200),
        e.AgentFinished(0, 8.0, tool_calls=1),
        e.CheckStarted("make test"),
        e.CheckFinished("make test", True, 0, 1.1),
        e.CheckStarted("make lint"),
        e.CheckFinished("make lint", True, 0, 0.3),
        e.ReviewStarted("security"),
        e.AgentStarted("claude", purpose="review-security"),
        e.AgentFinished(0, 3.0, tool_calls=0),
        e.ReviewFinished("security", True),
        e.IterationFinished(3, Iteration(3, turn, checks)),
        e.ScmFinished(3, "commit", True, "Accept empty input"),
        e.ScmFinished(3, "push", False, "no remote named origin"),
        e.Converged(3, "COMPLETE"),
        e.RunFinished(
            "done",
            "the agent said COMPLETE and 2 checks passed",
            3,
            0.1634,
            800.0,
            0,
            worktree="/home/user/.cache/ralph/3f2a",
            branch="ralph/3f2a",
        ),
    ]


@pytest.fixture
def run() -> list[e.Event]:
    started = e.RunStarted(
        GOAL, "checks", "claude", "/work/repo", 10, ("make test", "make lint"), ("tag:COMPLETE",), ("checks", "tasks")
    )
    debug = e.Notice("Loading settings from .ralph/settings.json", "debug")
    return [debug, started, *first_iteration(), *second_iteration(), *third_iteration()]
