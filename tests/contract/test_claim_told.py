"""Whoever gives a goal need not know how an agent says that it is done. A prompt of one's own is sent to the letter."""

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


def test_the_first_example_of_the_guide_ends_done(
    ralph: Ralph, agent: Agent, environment: dict[str, str], workspace: Path
) -> None:
    (workspace / "Makefile").write_text("test:\n\ttrue\n")
    result = ralph("run", "Fix the build", "--check", "make test", "--agent", agent(OBEDIENT))
    assert result.code == 0
    assert prompt_of(environment) == (
        "Fix the build\n\nWhen all of it is done, write <response>DONE</response> alone on the last line."
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
def test_a_prompt_of_ones_own_is_sent_to_the_letter(
    words: tuple[str, ...], ralph: Ralph, agent: Agent, environment: dict[str, str]
) -> None:
    ralph("run", *words, "-m", "1", "--agent", agent("echo working"))
    assert "When all of it is done" not in prompt_of(environment)


def test_another_claim_is_told_in_its_own_words(ralph: Ralph, agent: Agent, environment: dict[str, str]) -> None:
    ralph("run", "Fix it", "-m", "1", "--until", "file:READY", "--agent", agent("echo working"))
    assert prompt_of(environment).endswith("When all of it is done, create the file READY.")
