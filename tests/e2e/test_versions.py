"""Agents change their options from one version to the next. Does the run continue?"""

from collections.abc import Callable
from pathlib import Path

import pytest

DONE = '{"type":"item.completed","item":{"id":"1","type":"agent_message","text":"<response>DONE</response>"}}'
WORKING = DONE.replace("<response>DONE</response>", "not yet")
USED = '{"type":"turn.completed","usage":{"input_tokens":5,"output_tokens":1}}'


def codex(*refused: str, lists: str, answer: str = f"echo '{DONE}'") -> str:
    """A version of Codex that refuses some options, and lists others in its help."""
    return f"""
        for word in "$@"; do case $word in
            --help) echo "Usage: codex exec [OPTIONS]"; echo "  {lists}"; exit 0 ;;
            {"|".join(refused)})
                echo "error: unexpected argument '$word' found" >&2
                echo "For more information, try '--help'." >&2
                exit 2 ;;
        esac; done
        {answer}
        echo '{USED}'
    """


@pytest.fixture
def argvs(environment: dict[str, str]) -> Callable[[str], list[list[str]]]:
    """The words that an agent was started with, call by call."""

    def read(name: str) -> list[list[str]]:
        files = Path(environment["HOME"]).glob(f"{name}.argv.*")
        return [file.read_text().split() for file in sorted(files, key=lambda file: int(file.suffix[1:]))]

    return read


def test_a_flag_that_an_agent_no_longer_has_does_not_break_the_run(ralph, agent, argvs) -> None:
    agent(codex("--sandbox", lists="--full-auto --skip-git-repo-check --json"), "codex")
    result = ralph("run", "do it", "--agent", "codex", "--json")
    assert result.code == 0
    refused, asked, worked = argvs("codex")
    assert "--sandbox" in refused
    assert asked == ["exec", "--help"]
    assert worked == ["exec", "--full-auto", "--skip-git-repo-check", "--json", "-"]
    assert result.one("run_finished")["iterations"] == 1
    assert "codex refused an option, and is started without it" in [told["text"] for told in result.all("notice")]


def test_later_turns_of_the_run_leave_out_a_refused_option(ralph, agent, argvs) -> None:
    answer = f"[ $N = 3 ] && echo '{WORKING}' || echo '{DONE}'"
    agent(codex("--skip-git-repo-check", lists="--sandbox --json", answer=answer), "codex")
    assert ralph("run", "do it", "--agent", "codex").code == 0
    assert len(argvs("codex")) == 4  # refused, asked, worked, worked


def test_a_refused_option_of_the_user_ends_the_run(ralph, agent, argvs) -> None:
    agent(codex("--frobnicate", lists="--sandbox --skip-git-repo-check --json"), "codex")
    result = ralph("run", "do it", "--agent", "codex --frobnicate")
    assert result.code == 2
    assert "unexpected argument '--frobnicate'" in result.last_line
    assert len(argvs("codex")) == 2  # ralph asked for its options, and found no other way to start it


def test_an_agent_without_a_list_of_its_options_ends_the_run(ralph, agent, argvs) -> None:
    agent("echo \"error: unknown option '--sandbox'\" >&2; exit 1", "codex")
    result = ralph("run", "do it", "--agent", "codex")
    assert result.code == 2
    assert len(argvs("codex")) == 2


REFUSALS = {
    "gemini": "Unknown arguments: approval-mode, approvalMode\nUsage: gemini [options]\n  -h, --help  Show help",
    "qwen": "Unknown arguments: approval-mode, approvalMode\nUsage: qwen [options]\n  -h, --help  Show help  [boolean]",
    "claude": "error: unknown option '--permission-mode'",
    "copilot": "error: unexpected argument '--no-auto-update' found\n\nUsage: copilot [OPTIONS] [COMMAND]",
    "opencode": "opencode run [message..]\n\nOptions:\n  -h, --help  show help  [boolean]",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_the_refusal_of_every_agent_is_recognised(name: str, ralph, agent, argvs) -> None:
    page = REFUSALS[name]
    padding = "\n".join(f"      --option-{number}  does something" for number in range(20)) if "-h," in page else ""
    agent(
        f"""
        case "$*" in
            *--help*) echo "--output-format -o --json -y --allow-all-tools --format --resume --model" ;;
            *--permission-mode*|*--approval-mode*|*--no-auto-update*|*--auto*) cat >&2 <<'PAGE'
{page}
{padding}
PAGE
            exit 1 ;;
            *) echo '<response>DONE</response>' ;;
        esac
        """,
        name,
    )
    yolo = ("--yolo",) if name == "opencode" else ()
    result = ralph("run", "do it", "--agent", name, *yolo)
    assert result.code == 0, result.err
    assert len(argvs(name)) == 3


@pytest.mark.parametrize(("code", "outcome"), [(1, "failed"), (0, "done")])
def test_the_answer_file_of_a_failed_turn_is_ignored(code: int, outcome: str, ralph, agent) -> None:
    agent(
        f"""
        while [ "$1" != -o ]; do shift; done
        echo '<response>DONE</response>' > "$2"
        exit {code}
        """,
        "codex",
    )
    result = ralph(*("run", "do it", "--agent", "codex", "--no-stream-agent-output", "--max-failures", "1", "--json"))
    assert result.one("run_finished")["outcome"] == outcome
