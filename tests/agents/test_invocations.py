"""The command line of each agent, and how it gets the prompt."""

from typing import Any

import pytest

from ralph.agents import known_names, module
from ralph.agents.protocol import Invocation, TurnRequest

CLAUDE = "claude -p --output-format stream-json --verbose"
BYPASS_CLAUDE = "--dangerously-skip-permissions"
BYPASS_CODEX = "--dangerously-bypass-approvals-and-sandbox"


def start(agent: str, **request: Any) -> Invocation:
    asked = {"prompt": "- do it", "prompt_file": "/tmp/p.md", "command": (agent,), **request}
    return module(agent).invocation(TurnRequest(**asked))


@pytest.mark.parametrize(
    ("agent", "request_", "line"),
    [
        ("claude", {}, "claude -p --output-format stream-json --verbose --permission-mode acceptEdits"),
        ("claude", {"stream": False, "yolo": True}, f"claude -p --output-format text {BYPASS_CLAUDE}"),
        (
            "claude",
            {"model": "opus", "max_turns": 3, "session": "S", "yolo": True, "flags": ("--add-dir", "x")},
            "claude -p --output-format stream-json --verbose --model opus --max-turns 3 --resume S "
            f"{BYPASS_CLAUDE} --add-dir x",
        ),
        (
            "claude",
            {"yolo": True, "budget": 1.5},
            f"{CLAUDE} --max-budget-usd 1.5000 {BYPASS_CLAUDE}",
        ),
        ("codex", {}, "codex exec --sandbox workspace-write --skip-git-repo-check --json -"),
        ("codex", {"yolo": True}, f"codex exec {BYPASS_CODEX} --skip-git-repo-check --json -"),
        (
            "codex",
            {"model": "m", "session": "S", "flags": ("-c", "a=b")},
            "codex exec --sandbox workspace-write --skip-git-repo-check --json -m m -c a=b resume S -",
        ),
        (
            "codex",
            {"stream": False, "scratch": "/run"},
            "codex exec --sandbox workspace-write --skip-git-repo-check -o /run/answer.md -",
        ),
        (
            "codex",
            {"flags": ("exec", "--json", "--full-auto")},
            "codex exec --skip-git-repo-check --json --full-auto -",
        ),
        ("amp", {}, "amp --stream-json --dangerously-allow-all -x"),
        ("amp", {"stream": False, "flags": ("--no-ide",)}, "amp --dangerously-allow-all --no-ide -x"),
        ("amp", {"session": "T-1"}, "amp threads continue T-1 --stream-json --dangerously-allow-all -x"),
        ("gemini", {}, "gemini -o stream-json --approval-mode auto_edit"),
        ("gemini", {"yolo": True, "model": "pro", "session": "S"}, "gemini -o stream-json -y -m pro --resume S"),
        ("gemini", {"yolo": True, "flags": ("--approval-mode=plan",)}, "gemini -o stream-json --approval-mode=plan"),
        ("qwen", {}, "qwen -o stream-json --approval-mode auto-edit"),
        (
            "qwen",
            {"yolo": True, "max_turns": 9, "session": "S", "stream": False},
            "qwen -o text -y --max-session-turns 9 --resume S",
        ),
        ("opencode", {}, "opencode run --format json"),
        (
            "opencode",
            {"yolo": True, "model": "p/m", "session": "s"},
            "opencode run --format json --auto -m p/m --session s",
        ),
        ("pi", {}, "pi -p --mode json"),
        ("pi", {"stream": False, "model": "m", "session": "S"}, "pi -p --mode text --model m --session S"),
        ("copilot", {}, "copilot --no-auto-update --output-format json --allow-all-tools"),
        (
            "copilot",
            {"stream": False, "yolo": True, "session": "S"},
            "copilot --no-auto-update -s --allow-all --resume=S",
        ),
        (
            "copilot",
            {"scratch": "/run"},
            "copilot --no-auto-update --output-format json --allow-all-tools "
            "--usage-output-file /run/copilot-usage.json",
        ),
    ],
)
def test_an_agent_is_started_without_a_terminal(agent: str, request_: dict[str, Any], line: str) -> None:
    made = start(agent, **request_)
    assert " ".join(made.argv) == line
    assert made.stdin == "prompt"


def test_cline_gets_an_argument_and_the_prompt_on_stdin() -> None:
    made = start("cline", model="m", flags=("--json", "--thinking"))
    assert made.argv[:-1] == ("cline", "--json", "-m", "m", "--thinking")
    assert len(made.argv[-1].split()) > 1
    assert made.stdin == "prompt"


@pytest.mark.parametrize("agent", known_names())
def test_no_known_agent_gets_the_prompt_as_an_argument(agent: str) -> None:
    made = start(agent, prompt="- the secret prompt\n" * 300_000)
    assert not any("secret" in word for word in made.argv)


def test_claude_as_root_gets_is_sandbox_only_if_it_bypasses_permissions() -> None:
    assert start("claude", yolo=True, root=True).env == {"IS_SANDBOX": "1"}
    assert start("claude", root=True, flags=(BYPASS_CLAUDE,)).env == {"IS_SANDBOX": "1"}
    assert start("claude", root=True).env == {}
    assert start("claude", yolo=True).env == {}


def test_gemini_is_told_that_the_folder_is_trusted() -> None:
    assert start("gemini").env == {"GEMINI_CLI_TRUST_WORKSPACE": "true"}


@pytest.mark.parametrize(
    ("agent", "flag"), [("claude", "--model"), ("codex", "-m"), ("gemini", "--model"), ("pi", "--model")]
)
def test_a_model_in_the_users_flags_is_not_repeated(agent: str, flag: str) -> None:
    argv = start(agent, model="one", flags=(flag, "two")).argv
    assert "one" not in argv
    assert argv.count(flag) == 1


def test_the_path_of_a_known_agent_is_kept() -> None:
    assert start("claude", command=("/opt/my tools/claude",)).argv[0] == "/opt/my tools/claude"


def test_codex_writes_its_answer_to_a_file_in_text_mode() -> None:
    assert start("codex", stream=False, scratch="/run").answer_file == "/run/answer.md"
    assert start("codex", scratch="/run").answer_file == ""


def test_the_tokens_of_copilot_are_read_from_its_usage_file(tmp_path) -> None:
    from ralph.core.model import Exit

    (tmp_path / "copilot-usage.json").write_text(
        '{"modelMetrics":{"a":{"usage":{"inputTokens":1000,"outputTokens":50,"cacheReadTokens":200}},"b":{"usage":{"inputTokens":5}}}}'
    )
    usage = (
        module("copilot")
        .parser(TurnRequest(prompt="p", prompt_file="", command=("copilot",), scratch=str(tmp_path)))
        .turn(Exit(code=0, at=0.0, duration=0.0))
        .usage
    )
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (805, 50, 200)


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
