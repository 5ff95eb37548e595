"""§6: the prompts, for every kind of claim."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("until", "deed"),
    [
        ("word:STOP", "STOP"),
        ("response:YES", "<response>YES</response>"),
        ("promise:YES", "<promise>YES</promise>"),
        ("file:YES", "create the file"),
    ],
)
def test_the_agent_is_told_how_to_claim(ralph: Ralph, agent: Agent, prompts: Prompts, until: str, deed: str) -> None:
    fake = agent("echo $N")
    ralph("run", "-p", "x", "--ralph", "2", "--until", until, "--agent", fake)
    ending = "create the file `YES`" if "file" in until else f"emit `{deed}` on a line by itself"
    assert prompts()[1].endswith(f"When the goal is\ncomplete, {ending} to end the loop.")
    result = ralph("loop", "x", "--check", "true", "-m", "1", "--until", until, "--agent", fake)
    ending = "create the file YES" if "file" in until else f"write {deed} alone on the last line"
    place = "" if "file" in until else ", after an empty line"
    assert f"When the task is finished, {ending}{place}. If it is not, do not." in prompts()[2]
    assert f"but the agent did not {ending}" in result.last_line


def test_with_ultrawork_every_continuation_starts_with_it(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    ralph("run", "-p", "the task", "--preset", "promise", "--ultrawork", "-m", "2", "--agent", agent("echo $N"))
    first, second, third = prompts()
    assert first.startswith("the task\n\n")
    assert second == third
    assert second == (
        "ultrawork\n\nYou attempted to end the loop, but you did not output the completion promise "
        "<promise>DONE</promise>. Continue working on the original task below. Only output the promise when the task "
        "is fully complete.\n\nOriginal task:\nthe task"
    )


def test_a_fresh_prompt_has_the_whole_diff_and_only_failed_checks(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    (repository / "mine").write_text("the user's own, not committed\n")
    fake = agent("printf 'a \\033[31mred\\n' > new; printf '\\000' > binary; rm -f README; echo $N")
    noisy = 'python3 -c \'print("x" * 3000 + "END")\'; false'
    ralph("loop", "do it", "--check", noisy, "--check", "echo fine", "-m", "2", "--agent", fake)
    first, second = prompts()
    assert "# Changes so far" not in first
    assert "+a red\n" in second
    assert "b/binary" in second
    assert "-hello\n" in second
    assert "the user's own" not in second
    errors = second.partition("# Errors of the previous iteration\n")[2].partition("# Progress\n")[0]
    assert "x" * 1996 + "END\n" in errors
    assert "x" * 1998 not in errors
    assert "fine" not in errors
    assert second.count("## Iteration 1 — FAIL") == 1
