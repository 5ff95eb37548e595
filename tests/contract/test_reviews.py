"""Issue 2 and seed 001's program: cycles in which the agent reviews its own work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Git = Callable[..., str]
Prompts = Callable[..., list[str]]

WORK = "echo $N > work; echo '<response>DONE</response>'"


def configure(workspace: Path, agent: str, reviews: Any, **more: Any) -> None:
    (workspace / ".ralph").mkdir(exist_ok=True)
    said = {"agent": {"command": agent}, "guardrails": [{"command": "test ! -f bad"}], "reviews": reviews, **more}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("reviews", "names"),
    [
        ({"reviewAfter": 1}, ["detailed", "architecture", "security", "codeHealth"]),
        ({"reviewAfter": 1, "prompts": []}, []),
        ({"reviewAfter": 0}, []),
        ({}, []),
        (None, []),
        ({"reviewAfter": 1, "prompts": [{"name": "mine", "prompt": "REVIEW"}]}, ["mine"]),
    ],
)
def test_which_reviews_there_are(ralph: Ralph, agent: Agent, workspace: Path, reviews: Any, names: list[str]) -> None:
    configure(workspace, agent(WORK), reviews)
    result = ralph("run", "-p", "x", "--json")
    assert result.code == 0
    assert [started["name"] for started in result.all("review_started")] == names
    assert result.one("run_finished")["iterations"] == 1, "reviews do not count as iterations"


def test_a_review_comes_after_every_so_many_iterations(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    configure(workspace, agent("echo $N"), {"reviewAfter": 2, "prompts": [{"name": "mine", "prompt": "REVIEW"}]})
    ralph("run", "-p", "x", "-m", "4")
    asked = [prompt.partition("\n")[0] for prompt in prompts()]  # the second is reminded how to claim
    assert asked == ["x", "x", "REVIEW", "x", "x", "REVIEW"]


@pytest.mark.parametrize(
    ("script", "gate", "prompted"),
    [
        ("touch bad", "checks", ["REVIEW", 'REVIEW\n\nGuardrail "test ! -f bad" failed with exit code 1.']),
        ("exit 3", "reviews", ["REVIEW"]),
        ("echo fine; kill -9 $$", "reviews", ["REVIEW"]),
    ],
    ids=["red", "failed", "killed"],
)
def test_a_review_that_does_not_end_well_is_neither_committed_nor_done(
    ralph: Ralph,
    agent: Agent,
    repository: Path,
    git: Git,
    prompts: Prompts,
    script: str,
    gate: str,
    prompted: list[str],
) -> None:
    fake = agent(f'case "$PROMPT" in *REVIEW*) {script};; *) {WORK};; esac')
    reviews = {"reviewAfter": 1, "guardrailRetryLimit": 1, "prompts": [{"name": "mine", "prompt": "REVIEW"}]}
    configure(repository, fake, reviews, scm={"command": "git", "tasks": ["commit"]}, maximumIterations=1)
    result = ralph("run", "-p", "x", "--json")
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "exhausted")
    assert result.one("claim_rejected")["gate"] == gate
    assert result.one("review_finished") == {"name": "mine", "passed": False}
    assert git("log", "--format=%s").split() == ["first"]
    assert len(prompts()) == 1 + len(prompted)
    assert all(prompt.startswith(expected) for prompt, expected in zip(prompts()[1:], prompted, strict=True))
