"""Reviews: another look at every claim whose checks are green. A reviewer can refuse it, and changes nothing."""

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


def configure(workspace: Path, **said: Any) -> None:
    (workspace / ".ralph").mkdir(exist_ok=True)
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(said))


def test_a_reviewer_sees_goal_checks_protected_files_and_diff_and_done_names_it(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    (repository / "old.sh").write_text("true\n")
    reviewer = agent("echo 'Looks right.'; echo; echo APPROVE", "second")
    checks = ("--check", "test -e work", "--baseline", "--protect", "old*")
    result = ralph("run", "Make the work", *checks, "--agent", agent(WORK), "--review-agent", reviewer, "--json")
    assert (result.code, result.one("run_finished")["iterations"]) == (0, 1)
    assert result.one("run_finished")["reason"].endswith(f"; reviewed by {reviewer}")
    assert result.one("review_finished") == {"name": "change", "passed": True, "agent": reviewer}
    (asked,) = prompts("second")
    for text in ("Make the work", "- test -e work: passes (failed before the work began)", "old*", "+++ b/work"):
        assert text in asked
    assert "response>DONE" not in asked, "how the agent claims is none of a reviewer's business"


def test_a_long_diff_is_cut_off_and_the_rest_is_in_a_file(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    work = f"seq 100000 > numbers; {WORK}"
    ralph("run", "g", "--agent", agent(work), "--review-agent", agent("echo APPROVE", "second"))
    (asked,) = prompts("second")
    assert len(asked) < 30_000
    assert "all of them are in .ralph/review.diff" in asked
    assert "+100000\n" in (repository / ".ralph" / "review.diff").read_text()


def test_a_refused_claim_goes_back_to_the_agent_and_the_third_refusal_ends_the_run(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    reviewer = agent("echo APPROVE; echo 'CHANGES: zero is not handled'", "second")
    result = ralph("run", "g", "--check", "true", "--agent", agent(WORK), "--review-agent", reviewer, "--json")
    finished = result.one("run_finished")
    assert (result.code, finished["outcome"]) == (1, "blocked")
    assert finished["reason"] == "the review refused 3 claims: a person should look"
    refused = [(one["gate"], one["reason"]) for one in result.all("claim_rejected")]
    assert refused == [("reviews", f"A review by {reviewer} refused your claim: zero is not handled")] * 3
    assert len(prompts()) == 3
    assert "zero is not handled" in prompts()[1]


def test_work_that_a_review_refused_is_not_committed(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    reviewer = agent("test $(cat work) = 2 && echo APPROVE || echo 'CHANGES: it has to be 2'", "second")
    writer = f'case "$PROMPT" in *"commit message"*) echo Message;; *) {WORK};; esac'
    result = ralph("run", "g", "--check", "true", "--commit", "--agent", agent(writer), "--review-agent", reviewer)
    assert result.code == 0, result.err
    assert git("log", "--format=%s").split() == ["Message", "first"]


def test_a_resumed_run_has_three_refusals_again(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    reviewer = agent("test -e fixed && echo APPROVE || echo 'CHANGES: no'", "second")
    ralph("run", "g", "--check", "true", "--agent", agent(WORK), "--review-agent", reviewer)
    (workspace / "fixed").touch()
    result = ralph("resume", "--json")
    assert result.one("run_finished")["outcome"] == "done"


def test_a_reviewer_without_a_verdict_is_asked_once_more_then_reported(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    reviewer = agent("echo 'I do not know what to do with this.'", "second")
    result = ralph("run", "g", "--check", "true", "--agent", agent(WORK), "--review-agent", reviewer)
    said = f"not reviewed by {reviewer}: its answer was neither APPROVE nor CHANGES"
    assert result.code == 0
    assert said in " ".join(result.err.split())
    assert len(prompts("second")) == 2
    assert "Your last answer was neither" in prompts("second")[1]
    assert said in " ".join(ralph("show").out.split())


def test_a_reviewer_that_fails_is_named(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    reviewer = agent("exit 3", "second")
    result = ralph("run", "g", "--agent", agent(WORK), "--review-agent", reviewer, "--json")
    assert "; not reviewed by " in result.one("run_finished")["reason"]


def test_only_a_claim_whose_checks_are_green_is_reviewed(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    reviewer = agent("echo APPROVE", "second")
    check = ("--check", "test $(cat work) = 2")
    ralph("run", "g", *check, "--agent", agent(WORK), "--review-agent", reviewer)
    assert (len(prompts()), len(prompts("second"))) == (2, 1)
    ralph("run", "g", "-m", "2", "--agent", agent("echo $N"), "--review-agent", reviewer)
    assert len(prompts("second")) == 1


@pytest.mark.parametrize("place", ["repository", "workspace"])
def test_changes_by_a_reviewer_are_undone(
    ralph: Ralph, agent: Agent, request: pytest.FixtureRequest, place: str
) -> None:
    folder: Path = request.getfixturevalue(place)
    reviewer = agent("touch bad; echo APPROVE", "second")
    check = ("--check", "test ! -e bad")
    result = ralph("run", "g", *check, "-m", "1", "--agent", agent(WORK), "--review-agent", reviewer, "--json")
    if place == "repository":
        assert (result.code, (folder / "bad").exists()) == (0, False)
        assert any("the reviewer changed files" in notice["text"] for notice in result.all("notice"))
    else:
        assert result.code == 1, "without git the checks run again"


REVIEWS = [
    {"name": "one", "prompt": "REVIEW one"},
    {"name": "two", "prompt": "REVIEW two", "agent": "third"},
    {"name": "three", "prompt": "REVIEW three", "model": "small"},
]


def test_reviews_and_messages_use_the_agents_named_for_them(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    fake, approve = agent(WORK), "echo APPROVE"
    second, third, writer = agent(approve, "second"), agent(approve, "third"), agent("echo A message", "writer")
    own = {"prompt": "stdin", "model": ["--model", "{model}"]}
    configure(
        repository,
        agent={"command": "first", "flags": ["--model large"], "model": "large"},
        checks=["true"],
        reviews={"prompts": REVIEWS},
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
    assert ["REVIEW one" in prompts("second")[0], "REVIEW two" in prompts("third")[0]] == [True, True]
    assert result.one("run_finished")["reason"].endswith("; reviewed by second and third")


def test_a_model_alone_means_the_same_agent_with_that_model(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    own = {"argv": [agent(f'case "$PROMPT" in *REVIEW*) echo APPROVE;; *) {WORK};; esac')]}
    configure(
        workspace,
        agent={"command": "first", "flags": ["--careful --model large", "--model=large"]},
        reviews={"prompts": REVIEWS[2:]},
        agents={"first": {**own, "model": ["--model", "{model}"]}},
    )
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
def test_a_missing_reviewer_is_reported_at_the_start(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts, words: Any, said: str
) -> None:
    configure(workspace, agent={"command": agent(WORK)}, **words)
    result = ralph("run", "-p", "x")
    assert result.code == 2
    assert said in result.err
    assert prompts() == []
