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


def configure(workspace: Path, command: str, reviews: Any, **more: Any) -> None:
    (workspace / ".ralph").mkdir(exist_ok=True)
    said = {"agent": {"command": command}, "guardrails": [{"command": "test ! -f bad"}], "reviews": reviews, **more}
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


REVIEWS = [
    {"name": "one", "prompt": "REVIEW one"},
    {"name": "two", "prompt": "REVIEW two", "agent": "third"},
    {"name": "three", "prompt": "REVIEW three", "model": "small"},
]


def test_each_review_and_the_message_have_the_agent_that_is_named_for_them(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    fake, second, third = agent(WORK), agent("echo fine", "second"), agent("echo fine", "third")
    writer = agent("echo A message", "writer")
    own = {"prompt": "stdin", "model": ["--model", "{model}"]}
    configure(
        repository,
        "first",
        {"reviewAfter": 1, "prompts": REVIEWS},
        agent={"command": "first", "flags": ["--model large"], "model": "large"},
        scm={"command": "git", "tasks": ["commit"], "agent": writer},
        agents={
            "first": {"argv": [fake], **own},
            "second": {"argv": [second], **own},
            "third": {"argv": [third], **own},
        },
    )
    result = ralph("run", "-p", "x", "--json", "--review-agent", "second")
    assert result.code == 0, result.err
    turns = [(told["agent"], told.get("purpose", "work"), told["argv"][1:]) for told in result.all("agent_started")]
    assert turns == [
        ("first", "work", ["--model", "large", "--model", "large"]),
        ("second", "review-one", []),
        ("third", "review-two", []),
        ("second", "review-three", ["--model", "small"]),
        (writer, "message", []),
    ]
    assert (prompts("second"), prompts("third")) == (["REVIEW one", "REVIEW three"], ["REVIEW two"])


def test_a_model_alone_is_another_one_of_the_agent_that_works(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    own = {"argv": [agent(WORK)], "model": ["--model", "{model}"]}
    reviews = {"reviewAfter": 1, "prompts": REVIEWS[2:]}
    flags = {"command": "first", "flags": ["--careful --model large", "--model=large"]}
    configure(workspace, "first", reviews, agent=flags, agents={"first": own})
    result = ralph("run", "-p", "x", "--json")
    assert [told["argv"][1:] for told in result.all("agent_started")] == [
        ["--careful", "--model", "large", "--model=large"],
        ["--model", "small", "--careful"],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"reviews": {"agent": "nobody"}}, "the agent for reviews: command not found: nobody"),
        ({"reviews": {"prompts": [{"name": "a", "prompt": "b", "agent": "cdex"}]}}, "the agent for reviews: command"),
        ({"reviews": {"agent": "cdex"}}, "hint: did you mean codex?"),
        ({"scm": {"tasks": ["commit"], "agent": "nobody"}}, "the agent for messages: command not found: nobody"),
    ],
)
def test_an_agent_for_another_purpose_that_is_not_there_is_said_before_anything_is_spent(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts, words: Any, said: str
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({"agent": {"command": agent(WORK)}, **words}))
    result = ralph("run", "-p", "x")
    assert result.code == 2
    assert said in result.err
    assert prompts() == []


def test_a_review_agent_alone_reviews_every_fifth_iteration(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    ralph("run", "-p", "x", "-m", "5", "--agent", agent("echo $N"), "--review-agent", agent("echo fine", "second"))
    assert len(prompts("second")) == 4
