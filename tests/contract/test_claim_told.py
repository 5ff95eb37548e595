"""A goal need not say how the agent claims to be done: ralph adds it. Your own prompt (-p, -f) is sent verbatim."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]

OBEDIENT = (
    'case "$PROMPT" in *"<response>DONE</response> alone on the last line"*) echo "<response>DONE</response>";; esac'
)


def prompt_of(environment: dict[str, str]) -> str:
    return (Path(environment["HOME"]) / "fake-agent.prompt.1").read_text()


def test_the_first_example_of_the_guide_ends_as_done(
    ralph: Ralph, agent: Agent, environment: dict[str, str], workspace: Path
) -> None:
    (workspace / "Makefile").write_text("test:\n\ttrue\n")
    result = ralph("run", "Fix the build", "--check", "make test", "--agent", agent(OBEDIENT))
    assert result.code == 0
    assert prompt_of(environment) == (
        "Fix the build\n\nWhen all of it is done, write <response>DONE</response> alone on the last line, after an "
        "empty line."
    )


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "Fix the build"),
        ("Fix it; then answer <response>DONE</response>",),
        ("--print", "Fix the build"),
        ("Fix the build", "--ralph", "2"),
    ],
)
def test_the_users_own_prompt_is_sent_verbatim(
    words: tuple[str, ...], ralph: Ralph, agent: Agent, environment: dict[str, str]
) -> None:
    ralph("run", *words, "-m", "1", "--agent", agent("echo working"))
    assert "When all of it is done" not in prompt_of(environment)


def test_the_prompt_explains_each_kind_of_claim(ralph: Ralph, agent: Agent, environment: dict[str, str]) -> None:
    ralph("run", "Fix it", "-m", "1", "--until", "file:READY", "--agent", agent("echo working"))
    assert prompt_of(environment).endswith("When all of it is done, create the file READY.")


FORGETFUL = "echo working"


def test_a_prompt_without_the_marker_is_reported_before_the_first_turn(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "-p", "Fix it", "-m", "1", "--agent", agent(FORGETFUL))
    said = " ".join(result.err.split())
    assert "the prompt does not say how the agent ends this run: it has to write <response>DONE</response>" in said


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "Fix it, then say <response>DONE</response>"),
        ("-p", "Fix it", "--check", "true"),  # a reminder follows the first green check
        ("-p", "Fix it", "--preset", "promise"),
        ("-p", "Fix it", "--ralph", "0"),
        ("Fix it",),
    ],
)
def test_nothing_is_reported_if_the_agent_is_told_how_to_claim_or_need_not(
    words: tuple[str, ...], ralph: Ralph, agent: Agent
) -> None:
    result = ralph("run", *words, "-m", "1", "--agent", agent(FORGETFUL))
    assert "the prompt does not say" not in " ".join(result.err.split())


def test_an_agent_that_forgets_to_claim_is_reminded_once_it_is_green(
    ralph: Ralph, agent: Agent, environment: dict[str, str]
) -> None:
    obeys = 'case "$PROMPT" in *"Every check passes now"*) echo "<response>DONE</response>";; *) echo working;; esac'
    result = ralph("run", "-p", "Fix it", "--check", "true", "--agent", agent(obeys), "--json")
    assert result.code == 0
    assert [e["data"]["iteration"] for e in result.events if e["type"] == "ralph_converged"] == [2]
    assert (Path(environment["HOME"]) / "fake-agent.prompt.2").read_text() == (
        "Fix it\n\nEvery check passes now. If all of the work is done, write <response>DONE</response> alone on the "
        "last line, after an empty line; if it is not, continue with it."
    )


def test_the_reminder_is_in_one_prompt_only(ralph: Ralph, agent: Agent, environment: dict[str, str]) -> None:
    ralph("run", "-p", "Fix it", "--check", "true", "-m", "3", "--agent", agent(FORGETFUL))
    assert (Path(environment["HOME"]) / "fake-agent.prompt.3").read_text() == "Fix it"


def test_green_work_without_a_claim_is_done_when_green_checks_suffice(
    ralph: Ralph, agent: Agent, workspace: Path
) -> None:
    result = ralph("run", "-p", "Fix it", "--check", "true", "-m", "2", "--agent", agent(FORGETFUL))
    assert result.code == 1
    shown = " ".join(ralph("show").out.split())
    assert "Every check passes, but the agent did not write <response>DONE</response> alone on the last line." in shown
    assert "--until checks" in shown
    assert "Give it more" not in shown
    result = ralph("resume", "--until", "checks", "--json")
    assert result.code == 0
    assert [e["type"] for e in result.events].count("agent_started") == 0


@pytest.mark.parametrize("checks", [(), ("--check", "true")])
@pytest.mark.parametrize(
    "answer",
    [
        "<response>DONE</response>",
        "I fixed the parser and ran the tests. They pass.\n\n<response>DONE</response>",
        "All tests pass.\n<response>DONE</response>",
    ],
)
@pytest.mark.parametrize(
    "prompt",
    [
        "Fix the parser.\n\nWhen finished, output:\n\n<response>DONE</response>\n",
        "Fix the parser.\nWhen finished, output: <response>DONE</response>",
        "<response>DONE</response>\n\nis what you output when you are finished.",
    ],
)
def test_a_prompt_that_shows_the_marker_on_its_own_line_can_be_finished(
    ralph: Ralph, agent: Agent, workspace: Path, prompt: str, answer: str, checks: tuple[str, ...]
) -> None:
    (workspace / "PROMPT.md").write_text(prompt)
    (workspace / "answer").write_text(answer)
    result = ralph("run", "-f", "PROMPT.md", "-m", "1", *checks, "--agent", agent("cat answer"))
    assert result.code == 0, result.err


@pytest.mark.parametrize("checks", [(), ("--check", "true")])
def test_a_prompt_that_shows_a_whole_answer_can_be_finished_in_two_turns(
    ralph: Ralph, agent: Agent, workspace: Path, checks: tuple[str, ...]
) -> None:
    (workspace / "PROMPT.md").write_text("When finished, output:\n\nAll tests pass.\n<response>DONE</response>\n")
    obeys = agent("if [ $N = 1 ]; then echo All tests pass.; fi; echo '<response>DONE</response>'")
    result = ralph("run", "-f", "PROMPT.md", "--json", *checks, "--agent", obeys)
    assert result.code == 0
    assert "it repeats the prompt" in result.one("claim_rejected")["reason"]
