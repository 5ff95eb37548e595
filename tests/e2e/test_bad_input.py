"""Bad input gets one clear line that says what to do, the right exit code, and nothing is lost."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]


def complaint(result: Any) -> str:
    """The one line that a person reads first."""
    assert result.code == 2, result.err
    assert "Traceback" not in result.err
    return str(result.err.splitlines()[0])


def test_no_agent_installed_says_what_to_install_and_what_to_try(ralph: Ralph) -> None:
    result = ralph("run", "goal", PATH="/usr/bin:/bin")
    assert complaint(result) == "ralph: no coding agent is installed"
    assert "ralph demo" in result.err


def test_an_unknown_agent_is_named_before_anything_is_made(ralph: Ralph, workspace: Path) -> None:
    assert "nosuch" in complaint(ralph("run", "goal", "--agent", "nosuch"))
    assert not (workspace / ".ralph").exists()


@pytest.mark.parametrize(
    ("agent", "hint"),
    [
        ("codex", "install it: npm install -g @openai/codex"),
        ("bin/codex", "check the path"),
        ("cluade", "did you mean --agent claude?"),
    ],
)
def test_a_known_agent_that_is_missing_comes_with_what_to_do(ralph: Ralph, agent: str, hint: str) -> None:
    result = ralph("run", "goal", "--agent", agent, PATH="/usr/bin:/bin")
    assert agent in complaint(result)
    assert f"hint: {hint}" in result.err


def test_an_agent_that_is_not_executable_has_its_own_message(ralph: Ralph, workspace: Path) -> None:
    (workspace / "agent").write_text("#!/bin/sh\n")
    assert "not executable" in complaint(ralph("run", "goal", "--agent", "./agent"))


@pytest.mark.parametrize("words", [("--no-such-option", "x"), ("x", "--chekc", "true"), ("x", "-Z")])
def test_an_unknown_option_is_an_error_never_prompt_text(ralph: Ralph, agent: Agent, words: tuple[str, ...]) -> None:
    assert "no such option" in complaint(ralph("run", *words, "--agent", agent("echo")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no goal"),
        (("",), "the goal is empty"),
        (("-p", " \n"), "the goal is empty"),
        (("-p", "a", "-f", "b"), "two goals"),
        (("-p", "a", "-p", "b"), "two goals: --prompt is given more than once"),
        (("-Vp", "a", "-p", "b"), "two goals"),
        (("-f", "a", "--prompt-file=b"), "two goals"),
        (("--spec", "a", "--spec=b"), "two goals"),
        (("--issue", "1", "--issue", "2"), "two goals"),
        (("x", "--agent", ""), "--agent is empty"),
        (("x", "--tasks", ""), "--tasks is empty"),
        (("x", "--spec="), "--spec is empty"),
        (("x", "-C", ""), "--directory is empty"),
        (("a", "b", "c"), "too many words"),
        (("-p", "a", "not-a-folder"), "two goals"),
        (("-f", "missing.md"), "cannot read"),
        (("x", "--spec", "missing.md"), "cannot read"),
        (("x", "--tasks", "missing.md"), "tasks file not found: missing.md"),
        (("x", "-C", "/no/such/folder"), "folder not found"),
        (("x", "-m", "many"), "expected a whole number, got 'many'"),
        (("x", "-m", "0"), "--max-iterations"),
        (("x", "--max-cost", "-1"), "--max-cost"),
        (("x", "--max-time", "soon"), "--max-time"),
        (("x", "--max-time", "\udcff"), "--max-time"),
        (("x", "--until", "bogus:1"), "KIND:TEXT"),
        (("x", "--until", "word:"), "until"),
        (("x", "--until", "checks"), "needs a check"),
        (("x", "--preset", "nonsense"), "nonsense"),
        (("x", "--on-limit", "switch"), "then"),
        (("x", "--stuck", "-1"), "--stuck"),
        (("x", "--then", "nobody"), "not found: nobody"),
        (("x", "--worktree"), "not in a git repository"),
    ],
)
def test_wrong_arguments_are_a_one_line_error(ralph: Ralph, agent: Agent, words: tuple[str, ...], said: str) -> None:
    assert said in complaint(ralph("run", "--agent", agent("echo"), *words))


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            ("schema",),
            "ralph: no schema named",
            "hint: ralph schema settings, ralph schema events, or ralph schema judgement",
        ),
        (("bus",), "ralph: ralph bus needs a command", "hint: `ralph bus -h` lists the commands"),
        (("hook",), "ralph: ralph hook needs a command", "hint: `ralph hook -h` lists the commands"),
    ],
)
def test_a_command_that_lacks_a_word_says_so_in_one_line(
    ralph: Ralph, words: tuple[str, ...], said: str, hint: str
) -> None:
    result = ralph(*words)
    assert complaint(result) == said
    assert result.err.splitlines()[1:] == [hint]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "settings.json:1: not valid JSON"),
        ('{\n  "guardrials": []\n}', 'settings.json:2: guardrials: unknown key; did you mean "checks"?'),
        ('{"maximumIterations": "ten"}', "settings.json:1: maximumIterations"),
        ('{"guardrails": [{"command": "x", "failAction": "EXPLODE"}]}', "settings.json:1: guardrails[0].failAction"),
        ("", "empty"),
    ],
)
def test_broken_settings_name_file_line_and_field(
    ralph: Ralph, agent: Agent, workspace: Path, text: str, said: str
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(text)
    assert said in complaint(ralph("run", "x", "--agent", agent("echo")))


def test_an_option_without_its_value_is_refused(ralph: Ralph) -> None:
    assert "requires an argument" in complaint(ralph("run", "x", "--check"))


def test_a_check_may_begin_with_dashes(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "x", "-m", "1", "--check", "--strict", "--json", "--agent", agent("echo"))
    assert result.one("check_finished")["name"] == "--strict"


def test_a_prompt_of_five_megabytes_arrives_complete(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "goal.md").write_text("x" * 5_000_000 + " END")
    fake = agent('printf "%s" "${#PROMPT}" > size; echo "<response>DONE</response>"')
    assert ralph("run", "-f", "goal.md", "--agent", fake).code == 0
    assert (workspace / "size").read_text() == str(5_000_004)


def test_an_agent_that_wants_its_prompt_as_an_argument_is_refused_a_prompt_that_cannot_fit(
    ralph: Ralph, workspace: Path
) -> None:
    (workspace / "goal.md").write_text("x" * 5_000_000)
    result = ralph("run", "-f", "goal.md", "--agent", "echo {prompt}")
    assert result.code == 2
    assert "too long" in result.last_line


def test_binary_output_of_an_agent_is_harmless(ralph: Ralph, agent: Agent) -> None:
    fake = agent("head -c 100000 /dev/urandom; printf '\\n<response>DONE</response>\\n'")
    check = "head -c 10000 /dev/urandom; exit 0"
    assert ralph("run", "x", "--check", check, "--agent", fake).code == 0


def test_binary_output_of_a_failing_check_reaches_the_next_prompt_without_control_bytes(
    ralph: Ralph, agent: Agent, prompts: Callable[..., list[str]]
) -> None:
    ralph(
        "run",
        "x",
        "-m",
        "2",
        "--check",
        r"printf 'caf\351 \033[31mred\033[0m\007'; exit 1",
        "--agent",
        agent("echo $N"),
    )
    assert "caf� red" in prompts()[1]
    assert "\x1b" not in prompts()[1]
    assert "\x07" not in prompts()[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_workspace_is_reported(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    workspace.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert "cannot write" in complaint(ralph("run", "x", "--agent", agent("echo")))
    finally:
        workspace.chmod(stat.S_IRWXU)


def test_a_file_at_the_path_of_a_folder_is_reported(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / ".ralph").write_text("")
    assert ".ralph" in complaint(ralph("run", "x", "--agent", agent("echo")))


def test_a_second_run_in_the_same_workspace_names_the_first(
    ralph: Ralph, agent: Agent, workspace: Path, environment: dict[str, str]
) -> None:
    os.mkfifo(workspace / "started")
    fake = agent("echo > started; sleep 60", "slow-agent")
    words = [sys.executable, "-m", "ralph", "run", "x", "--agent", fake]
    first = subprocess.Popen(words, cwd=workspace, env=environment, stderr=subprocess.DEVNULL)
    try:
        (workspace / "started").read_text()
        result = ralph("run", "x", "--agent", agent("echo"))
        assert f"process {first.pid}" in complaint(result)
    finally:
        first.terminate()
        first.terminate()
        first.kill()
        first.wait()


def test_a_reader_that_goes_away_does_not_end_the_run(
    agent: Agent, workspace: Path, environment: dict[str, str]
) -> None:
    fake = agent('seq 5000; echo done > finished; echo "<response>DONE</response>"')
    line = f'"{sys.executable}" -m ralph run x --json --agent "{fake}" | head -n 1'
    subprocess.run(["sh", "-c", line], cwd=workspace, env=environment, capture_output=True, check=True)
    assert (workspace / "finished").exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_not_a_bug_and_stdout_is_only_for_data(
    repository: Path, environment: dict[str, str], closed: str
) -> None:
    commands = ("run x -m 1 --agent true", "show", "report -o -", "diff", "bus post --bus b", "clean", "show none")
    for words in commands if " " in closed else commands[:3]:
        line = f'"{sys.executable}" -m ralph {words} {closed}'
        done = subprocess.run(["sh", "-c", line], cwd=repository, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, 1, 2), (words, done.stderr)
        assert not done.stdout.startswith("ralph: "), words


def test_a_missing_temporary_folder_is_reported(ralph: Ralph, workspace: Path, environment: dict[str, str]) -> None:
    line = f'ulimit -f 0; exec "{sys.executable}" -m ralph demo'
    done = subprocess.run(["sh", "-c", line], cwd=workspace, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("ralph: cannot make a temporary file: ")


def test_completion_scripts_are_printed_for_every_shell(ralph: Ralph) -> None:
    for shell in ("bash", "zsh", "fish"):
        result = ralph("completion", shell)
        assert result.code == 0
        assert "_RALPH_COMPLETE" in result.out


def test_completion_knows_commands_and_options(ralph: Ralph) -> None:
    asked = {"_RALPH_COMPLETE": "bash_complete", "COMP_WORDS": "ralph run --max-", "COMP_CWORD": "2"}
    result = ralph(**asked)
    assert "plain,--max-cost" in result.out


def test_a_dry_run_shows_what_would_happen_and_makes_nothing(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    result = ralph("run", "the goal", "--check", "make test", "--dry-run", "--agent", agent("touch made"))
    assert result.code == 0
    assert "the goal" in result.out
    assert "make test" in result.out
    assert list(workspace.iterdir()) == []


def test_help_is_grouped_and_has_examples(ralph: Ralph) -> None:
    result = ralph("run", "--help")
    assert result.code == 0
    for title in ("Goal:", "Agent:", "When is it done:", "Limits:", "Workspace:", "Output:", "Examples:"):
        assert title in result.out


# Each command in the same process: to start one takes longer than to answer.
EXPLAIN = """
import contextlib, io, sys
from ralph.__main__ import main
from ralph.cli.table import SUMMARIES
for name in SUMMARIES:
    for option, code in (("--help", 0), ("--nonsense", 2)):
        sys.argv[1:] = [name, option]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            assert main() == code, (name, option)
        assert code or f"ralph {name}" in out.getvalue(), name
        assert not code or len(err.getvalue().splitlines()) == 2, (name, err.getvalue())
"""


def test_every_command_explains_itself_and_refuses_nonsense_in_a_line_and_a_hint(
    environment: dict[str, str], workspace: Path
) -> None:
    subprocess.run([sys.executable, "-c", EXPLAIN], cwd=workspace, env=environment, check=True)


def test_the_short_help_has_one_line_for_each_command(ralph: Ralph) -> None:
    from ralph.cli.table import SUMMARIES

    lines = [" ".join(line.split()) for line in ralph("--help").out.splitlines()]
    assert [f"{name} {summary}" for name, summary in SUMMARIES.items() if f"{name} {summary}" not in lines] == []
