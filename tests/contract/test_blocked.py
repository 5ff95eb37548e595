"""§2, §3 and §5: an agent that cannot continue answers BLOCKED; the run ends and reports the reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core import rules
from ralph.core.claims import Reading
from ralph.core.model import Iteration, Outcome, Run, Stop, Turn

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
BLOCKED = "<response>BLOCKED: the database is down</response>"


def opinion(text: str, verified: bool = False, word: str = "BLOCKED") -> Stop | None:
    run = Run(id="r", goal="g", iterations=(Iteration(number=1, turn=Turn(text=text)),))
    return next((one for one in rules.blocked(word, Reading(verified=verified))(run) if isinstance(one, Stop)), None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BLOCKED, "the database is down"),
        (f"I tried everything.\n\n**{BLOCKED}**", "the database is down"),
        ("I cannot log in. <response>blocked: no key\nin the vault</response>", "no key in the vault"),
        ("<response>BLOCKED</response>", "the agent said that it cannot continue, but not why"),
        ("<response> BLOCKED - no key </response>", "no key"),
        (f"<response>STUCK: no</response>\n\n{BLOCKED}", "the database is down"),
    ],
)
def test_an_agent_can_report_that_it_is_blocked(text: str, why: str) -> None:
    assert opinion(text) == opinion(text, verified=True) == Stop(Outcome.BLOCKED, why)


@pytest.mark.parametrize(
    "text",
    [
        "BLOCKED: the database is down",
        "<response>UNBLOCKED: it is up</response>",
        "<response>BLOCKEDNESS</response>",
        "<response>DONE</response>",
        f"If the database stays away I will answer {BLOCKED}",
        f'The instructions say "{BLOCKED}"',
        f"I will not write {BLOCKED} yet.",
    ],
)
def test_talking_about_being_blocked_does_not_end_the_run(text: str) -> None:
    assert opinion(text) is opinion(text, verified=True) is None


def test_the_blocked_response_can_be_changed_or_turned_off() -> None:
    assert opinion("<response>HELP: me</response>", word="HELP") == Stop(Outcome.BLOCKED, "me")
    assert opinion(BLOCKED, word="HELP") is opinion("<response></response>", word="") is None


def test_the_run_ends_and_says_what_it_needs(ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts) -> None:
    fake = agent(f"if test -e up; then echo '<response>DONE</response>'; else echo '{BLOCKED}'; fi")
    result = ralph("run", "goal", "--json", "--agent", fake, "--check", "true")
    finished = result.one("run_finished")
    assert (result.code, finished["outcome"], finished["reason"]) == (1, "blocked", "the database is down")
    assert result.last_line.startswith("ralph: blocked after 1 iteration: the database is down (")
    shown = ralph("show").out
    needs = (
        "The agent is blocked: the database is down. Remove the obstacle or tell it how to continue, then resume it."
    )
    assert needs in shown
    assert "blocked" in ralph("ps", "--all").out
    assert ralph("resume", "--json").one("run_finished")["outcome"] == "blocked", "it is asked again"
    (workspace / "up").touch()
    assert ralph("resume").code == 0
    assert len(prompts()) == 3


def test_a_report_of_blocked_wins_over_a_claim(ralph: Ralph, agent: Agent) -> None:
    both = agent(f"touch DONE; echo '{BLOCKED}'")
    result = ralph("run", "goal", "--agent", both, "--done-file", "DONE", "--json")
    assert result.one("run_finished")["outcome"] == "blocked"


def test_a_report_in_the_wrong_place_is_answered(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    doubtful = agent(f"echo '{BLOCKED}'; echo 'Please fix it.'", "doubtful")
    result = ralph("run", "goal", "--agent", doubtful, "-m", "2", "--json")
    assert result.one("run_finished")["outcome"] == "exhausted"
    assert {refused["gate"] for refused in result.all("claim_rejected")} == {"wording"}
    reminder = f'You wrote "{BLOCKED}", which does not count: it is not on the last line. If you cannot continue, put '
    assert reminder in prompts("doubtful")[1]


@pytest.mark.parametrize("preset", ["guardrails", "goal", "checks", "promise"])
def test_an_agent_can_report_blocked_in_every_preset(ralph: Ralph, agent: Agent, preset: str) -> None:
    fake = agent(f"echo '{BLOCKED}'")
    result = ralph("run", "goal", "--preset", preset, "--check", "true", "--json", "--agent", fake)
    assert result.one("run_finished")["outcome"] == "blocked"


def test_blocked_reports_can_be_turned_off(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({"blockedResponse": ""}))
    result = ralph("run", "goal", "-m", "1", "--json", "--agent", agent(f"echo '{BLOCKED}'"))
    assert result.one("run_finished")["outcome"] == "exhausted"
