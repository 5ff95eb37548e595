"""Is a CLI asked once, and only once, what it understands?"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ralph.agents.protocol import ask_options, cached_options, is_unknown_option
from ralph.core.model import Failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a CLI that counts how often it is called."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(body: str) -> str:
        path = tmp_path / "tool"
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{body}\n')
        path.chmod(0o755)
        return str(path)

    return write


def printed(argv: tuple[str, ...]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def calls(tmp_path: Path) -> int:
    file = tmp_path / "calls"
    return len(file.read_text().split("\n")) - 1 if file.exists() else 0


HELP = """cat <<'X'
Usage: tool run [OPTIONS]
  -m, --model <M>   a model (see --sandbox-mode=x)
  --[no-]color      well-known
X"""


def test_the_options_in_the_help_are_what_it_understands(program, tmp_path: Path) -> None:
    options = ask_options(program(HELP), ("run", "--help"), printed)
    assert options is not None
    assert {"-m", "--model", "--sandbox-mode"} <= options
    assert "-known" not in options
    assert (tmp_path / "calls").read_text() == "run --help\n"


def test_it_is_asked_once_until_it_changes(program, tmp_path: Path) -> None:
    path = program(HELP)
    assert cached_options(path, ("--help",)) is None
    first = ask_options(path, ("--help",), printed)
    assert ask_options(path, ("--help",), printed) == cached_options(path, ("--help",)) == first
    assert calls(tmp_path) == 1
    program("echo '--other'")
    assert cached_options(path, ("--help",)) is None
    assert ask_options(path, ("--help",), printed) == {"--other"}
    assert calls(tmp_path) == 2


def test_a_version_of_the_same_size_and_date_is_another_one(program, tmp_path: Path) -> None:
    path = program("echo '--first'")
    assert ask_options(path, ("--help",), printed) == {"--first"}
    Path(path).unlink()
    program("echo '--other'")
    subprocess.run(["touch", "-d", "1985-10-26", path], check=True)
    assert ask_options(path, ("--help",), printed) == {"--other"}


def test_another_question_is_asked_anew(program, tmp_path: Path) -> None:
    path = program(HELP)
    ask_options(path, ("--help",), printed)
    ask_options(path, ("run", "--help"), printed)
    assert calls(tmp_path) == 2


@pytest.mark.parametrize("body", ["exit 1", "echo no options here", "kill -9 $$"])
def test_a_cli_that_does_not_answer_leaves_it_open(body: str, program) -> None:
    path = program(body)
    assert ask_options(path, ("--help",), printed) is None
    assert cached_options(path, ("--help",)) is None


def test_a_broken_memory_is_no_trouble(program, tmp_path: Path) -> None:
    path = program(HELP)
    cache = tmp_path / "cache" / "ralph"
    cache.mkdir(parents=True)
    (cache / "options-tool.json").write_bytes(b"\xff{")
    assert ask_options(path, ("--help",), printed)
    assert ask_options(path, ("--help",), printed)
    assert calls(tmp_path) == 1


def test_a_memory_that_cannot_be_written_is_done_without(program, tmp_path: Path) -> None:
    path = program(HELP)
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert ask_options(path, ("--help",), printed)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("error: unexpected argument '--full-auto' found", True),
        ("error: unknown option '--auto'", True),
        ("Unknown arguments: approval-mode, approvalMode", True),
        ("unknown option: it printed its help", True),
        ("invalid key", False),
    ],
)
def test_asking_is_worth_it_after_a_bad_flag(reason: str, expected: bool) -> None:
    assert is_unknown_option(Failure("fatal", reason)) is expected
    assert not is_unknown_option(None)
