"""An exam is a check that the agent doesn't see: it decides about a claim, and nothing of it reaches the agent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFUSED = (
    "The checks pass, but the hidden exam does not (refusal {} of 3). What it asks follows from the goal. Read the "
    "goal again and look for cases that no check shows; do not look for the exam."
)
TOKEN = "zq-exam-token-7431"
HONEST = 'echo "x * 2" > double; echo "<response>DONE</response>"'
OVERFIT = 'echo "$N" >> double; echo "<response>DONE</response>"'


@pytest.fixture
def exam(environment: dict[str, str]) -> Callable[..., str]:
    """Write an exam outside of the repository; it prints a token, and passes for honest work only."""

    def write(script: str = f"echo {TOKEN}; grep -q 'x .* 2' double\n", name: str = "double.sh") -> str:
        path = Path(environment["HOME"], "exams", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        return f"sh {path}"

    return write


def loop(ralph: Callable[..., Any], agent: str, *words: str) -> Any:
    return ralph("run", "Double x", "--agent", agent, "--check", "test -f double", "--json", *words)


def test_a_claim_counts_once_the_exam_passes(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    done = loop(ralph, agent(f"if [ $N = 1 ]; then {OVERFIT}; else {HONEST}; fi"), "--exam", exam())
    assert done.code == 0, done.err
    second = prompts()[1]
    assert REFUSED.format(1) in second
    assert [one["passed"] for one in done.all("exam_finished")] == [False, False, True]  # the first is the baseline
    assert done.one("claim_rejected")["gate"] == "exam"


def test_three_refused_claims_need_a_person(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    command = exam()
    (repository / ".ralph").mkdir()
    settings = {"exams": [{"command": command, "hint": "think of zero"}]}
    (repository / ".ralph/settings.json").write_text(json.dumps(settings))
    blocked = loop(ralph, agent(OVERFIT))
    assert blocked.code == 1
    finished = blocked.one("run_finished")
    assert finished["outcome"] == "blocked"
    assert finished["reason"] == "the exam refused 3 claims: a person should look"
    assert f"{REFUSED.format(2)}\nthink of zero" in prompts()[2]
    assert len(blocked.all("claim_rejected")) == 3
