"""Which agent a command line names, and which environment variables it gets."""

import pytest

from ralph.agents import find, foreign_keys, known_names, module, words
from ralph.errors import UserError
from ralph.testing import agent_contract

ALL = (*known_names(), "command")


@pytest.mark.parametrize("name", ALL)
def test_every_module_keeps_the_contract(name: str) -> None:
    agent_contract(module(name))


@pytest.mark.parametrize("name", known_names())
def test_every_module_has_the_name_of_its_row(name: str) -> None:
    assert name == module(name).NAME
    assert name in module(name).INSTALL


@pytest.mark.parametrize(
    ("command", "name", "program", "flags"),
    [
        ("claude", "claude", ("claude",), ()),
        ("  codex ", "codex", ("codex",), ()),
        ("/opt/bin/claude", "claude", ("/opt/bin/claude",), ()),
        ("claude.exe", "claude", ("claude.exe",), ()),
        ("claude --model opus", "claude", ("claude",), ("--model", "opus")),
        ("./bin/gemini -m 'a b'", "gemini", ("./bin/gemini",), ("-m", "a b")),
        ("claude -p {prompt}", "command", ("claude -p {prompt}",), ()),
        ("claude -p < {prompt_file}", "command", ("claude -p < {prompt_file}",), ()),
        ("claude -p | tee log", "command", ("claude -p | tee log",), ()),
        ("bash /opt/bin/claude", "command", ("bash /opt/bin/claude",), ()),
        ("cat notes | /opt/bin/claude", "command", ("cat notes | /opt/bin/claude",), ()),
        ("my-agent --fast", "command", ("my-agent --fast",), ()),
        ("claude-wrapper", "command", ("claude-wrapper",), ()),
    ],
)
def test_an_agent_is_found_by_name_path_or_command_line(
    command: str, name: str, program: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    assert name == find(command).NAME
    assert words(command) == (program, flags)


def test_a_path_with_a_space_in_it_is_one_word(tmp_path) -> None:
    program = tmp_path / "my tools" / "claude"
    program.parent.mkdir()
    program.touch()
    assert find(str(program)).NAME == "claude"
    assert words(str(program)) == ((str(program),), ())


def test_a_tilde_is_expanded_to_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert words("~/bin/claude") == (("/home/me/bin/claude",), ())
    assert words("~/bin/claude --fast") == (("/home/me/bin/claude",), ("--fast",))


@pytest.mark.parametrize("command", ["", "  "])
def test_an_empty_command_is_an_error(command: str) -> None:
    with pytest.raises(UserError, match="empty"):
        find(command)


def test_an_agent_does_not_see_the_keys_of_the_others() -> None:
    hidden = foreign_keys(module("claude"))
    assert {"OPENAI_API_KEY", "GEMINI_API_KEY", "AMP_API_KEY", "CLAUDECODE"} <= hidden
    assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "PATH"} & hidden


@pytest.mark.parametrize("name", ["opencode", "pi", "qwen", "cline"])
def test_an_agent_for_many_providers_keeps_their_keys(name: str) -> None:
    assert not {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"} & foreign_keys(module(name))


def test_the_users_own_command_gets_every_variable_but_claudecode() -> None:
    assert foreign_keys(module("command")) == {"CLAUDECODE"}
