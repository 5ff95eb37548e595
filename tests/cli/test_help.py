"""Help texts, suggestions after a typing error, and shell completion."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

from ralph.options.command_options import COMMANDS

Ralph = Callable[..., Any]


@pytest.mark.parametrize("command", ["run", "loop", "task", "work"])
def test_h_shows_the_common_options_and_help_shows_all(ralph: Ralph, command: str) -> None:
    short, whole = ralph(command, "-h").out, ralph(command, "--help").out
    assert "--check" in short
    assert "--claim-anywhere" not in short
    assert "--claim-anywhere" in whole
    assert f"all of them: ralph {command} --help" in short
    assert short.count("\n  -") <= 20


def test_the_help_of_run_says_what_done_means(ralph: Ralph) -> None:
    said = " ".join(ralph("run", "--help").out.split())
    assert "Done means: the agent claims it, and every gate" in said
    assert "There are five ways to loop" in said


def completions(ralph: Ralph, shell: str, *words: str) -> list[str]:
    """Return the completions of the last word."""
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_RALPH_COMPLETE": f"{shell}_complete"}
    return [value for value in ralph(**asked).out.replace(",", "\n").splitlines() if value not in ("plain", "_", "")]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ralph run --agent co", ["codex", "copilot"]),
        ("ralph run --until che", ["checks"]),
        ("ralph loop --until tag", ["tag:COMPLETE"]),
    ],
)
def test_a_shell_completes_the_values_of_options(ralph: Ralph, shell: str, typed: str, found: list[str]) -> None:
    assert completions(ralph, shell, *typed.split()) == found


def test_tab_in_bash_completes_a_word(environment: dict[str, str]) -> None:
    env = {**environment, "TERM": "dumb", "PS1": "ready> "}
    bash = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], env=env, encoding="utf-8", timeout=120)
    bash.expect_exact("ready> ")
    bash.sendline('eval "$(ralph completion bash)"; echo l""oaded')
    bash.expect_exact("loaded")
    bash.expect_exact("ready> ")
    bash.send("ralph run --agent cop\t")
    bash.expect_exact("copilot ")
    bash.close(force=True)


def test_a_shell_completes_runs_by_name_and_id(ralph: Ralph) -> None:
    ralph("run", "Do it", "-m", "1", "--agent", "true")
    short, whole = completions(ralph, "bash", "ralph", "show", "")
    assert whole.endswith(f"-{short}")


def test_a_run_that_could_not_start_is_not_listed(ralph: Ralph, workspace: Path) -> None:
    assert ralph("run", "Do it", "--worktree", "--agent", "true").code == 2
    assert "killed" not in ralph("ps", "-a").out
    assert ralph("show").code == 2
    assert ralph("resume").code == 2


def test_ralph_alone_lists_the_everyday_commands_on_one_screen(ralph: Ralph) -> None:
    lines = ralph().out.splitlines()
    assert len(lines) <= 25
    listed = [line.split()[0] for line in lines[lines.index("Everyday commands:") + 1 :] if line.startswith("  ")]
    assert listed == [
        "demo",
        "init",
        "doctor",
        "loop",
        "judge",
        "run",
        "plan",
        "work",
        "tune",
        "ps",
        "show",
        "stop",
        "resume",
        "accept",
    ]


def test_help_explains_a_command_and_lists_all_of_them(ralph: Ralph) -> None:
    assert ralph("help", "ps").out == ralph("ps", "--help").out
    assert ralph("help", "hook", "start").out.startswith("Usage: ralph hook start [OPTIONS] TASK")
    assert ralph("help").out == ralph().out
    assert ralph("help", "--all").out == ralph("--help").out


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("status", "ps"), ("list", "ps"), ("cancel", "stop"), ("kill", "stop"), ("merge", "accept")),
        *(("undo", "rewind"), ("continue", "resume"), ("config", "init"), ("resmue", "resume")),
        ("supervise", "task"),
        ("staus", "ps"),
    ],
)
def test_an_unknown_command_suggests_one_with_that_meaning_or_a_similar_spelling(
    ralph: Ralph, word: str, meant: str
) -> None:
    result = ralph(word)
    assert result.code == 2
    message, hint = result.err.splitlines()
    assert message == f"ralph: no such command: {word}"
    assert hint.startswith(f"hint: did you mean `ralph {meant}` (")


@pytest.mark.parametrize("letter", ["-v", "-V"])
def test_v_alone_prints_the_version_and_with_other_words_means_verbose(ralph: Ralph, letter: str) -> None:
    assert ralph(letter).out == ralph("--version").out
    for words in ((letter, "run", "Do it"), ("run", "Do it", letter)):
        assert "Merged configuration" in ralph(*words, "--agent", "true", "-m", "1").err


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("run", "x", "--config", "a.yaml"), "no such option: --config", "it belongs to `ralph loop`"),
        (("loop", "x", "--chekc", "a"), "no such option: --chekc", "did you mean --check?"),
        (("loop", "x", "--yolo=1"), "--yolo takes no value", "`ralph loop -h` lists the options"),
        (("loop", "x", "-c", "DONE"), "-c DONE: not a YAML file", "--completion-response DONE"),
        (("run", "x", "-c", "loop.yaml"), "-c loop.yaml: a YAML file is for `ralph loop`", "ralph loop -c loop.yaml"),
    ],
)
def test_the_error_for_a_wrong_option_names_the_right_one(
    ralph: Ralph, workspace: Path, words: tuple[str, ...], said: str, hint: str
) -> None:
    (workspace / "loop.yaml").write_text("ralph_loop: {max_iterations: 3}\n")
    result = ralph(*words)
    assert result.code == 2
    assert result.err.splitlines()[0] == f"ralph: {said}"
    assert hint in result.err.splitlines()[1]


def test_options_for_compatibility_are_only_in_the_long_help(ralph: Ralph) -> None:
    whole = ralph("loop", "--help").out.partition("Compatibility:")[2]
    names = [
        "--completion-tag",
        "--done-file",
        "--maximum-iterations",
        "--no-stall",
        "--print",
        "--ralph",
        "--ultrawork",
        "--agent-arg",
    ]
    assert [name for name in names if name not in whole] == []
    assert [name for name in names if name in ralph("loop", "-h").out] == []


NO_SETTINGS = {
    *("prompt", "prompt_file", "issue", "comments", "directory", "config"),  # what to do, and where
    *("json", "quiet", "verbose", "dry_run", "detach"),  # how to show it
    *("root", "project", "task"),  # which task
    *("target", "db", "output", "yes", "max_cost", "max_time"),  # of a whole backlog
    *("head", "markdown", "html"),  # what is judged, and how to show it
}
OTHER_SPELLINGS = {
    *("completion_response", "completion_promise", "completion_tag", "done_file"),  # the setting `until`
    *("commit", "push"),  # the setting `scm`
    *("print", "ralph"),  # the settings `preset` and `maximumIterations`
}


def test_every_option_of_a_run_has_a_setting() -> None:
    unset = {option.name for rows in COMMANDS.values() for option in rows if not option.key}
    assert unset == NO_SETTINGS | OTHER_SPELLINGS


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("hook", "instal"), "no such command: ralph hook instal", "did you mean `ralph hook install`?"),
        (("loop", "x", "--max-cost", "$5"), "--max-cost: expected dollars as a plain number", "`ralph loop -h` lists"),
        (("loop", "x", "--until", "DONE", "--check", "true"), "--until: expected", "-h"),
        (("help", "status"), "no such command: status", "did you mean `ralph ps`"),
    ],
)
def test_an_error_is_one_line_and_a_hint(ralph: Ralph, words: tuple[str, ...], said: str, hint: str) -> None:
    result = ralph(*words)
    assert result.code == 2
    message, second = result.err.splitlines()
    assert message.startswith(f"ralph: {said}")
    assert hint in second


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_an_option_twice(command: str) -> None:
    names = [name for option in COMMANDS[command] for name in option.names]
    assert len(names) == len(set(names))
