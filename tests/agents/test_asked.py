"""Is a CLI asked once, and only once, what it understands?"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ralph.agents.asked import understood, worth_asking
from ralph.core.model import Failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a CLI that counts how often it is called."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (tmp_path / "bin").mkdir()

    def write(body: str) -> Path:
        path = tmp_path / "bin" / "tool"
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{body}\n')
        path.chmod(0o755)
        return path

    return write


def calls(tmp_path: Path) -> int:
    file = tmp_path / "calls"
    return len(file.read_text().split("\n")) - 1 if file.exists() else 0


HELP = """cat <<'X'
Usage: tool run [OPTIONS]
  -m, --model <M>   a model (see --sandbox-mode=x)
  --[no-]color      well-known
X"""


def test_the_options_in_the_help_are_what_it_understands(program, tmp_path: Path) -> None:
    program(HELP)
    options = understood("tool", ("run", "--help"))
    assert options is not None
    assert {"-m", "--model", "--sandbox-mode"} <= options
    assert "-known" not in options
    assert (tmp_path / "calls").read_text() == "run --help\n"


def test_it_is_asked_once_until_it_changes(program, tmp_path: Path) -> None:
    path = program(HELP)
    first = understood("tool", ("--help",))
    assert understood(str(path), ("--help",)) == first
    assert calls(tmp_path) == 1
    program("echo '--other'")
    assert understood("tool", ("--help",)) == {"--other"}
    assert calls(tmp_path) == 2


def test_another_question_is_asked_anew(program, tmp_path: Path) -> None:
    program(HELP)
    understood("tool", ("--help",))
    understood("tool", ("run", "--help"))
    assert calls(tmp_path) == 2


@pytest.mark.parametrize("body", ["exit 1", "echo no options here", "kill -9 $$"])
def test_a_cli_that_does_not_answer_leaves_it_open(body: str, program) -> None:
    program(body)
    assert understood("tool", ("--help",)) is None


def test_a_cli_that_hangs_leaves_it_open_and_nothing_behind(program, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralph.agents.asked.PATIENCE", 0.5)
    os.mkfifo(tmp_path / "alive")
    program(f"sleep 600 > {tmp_path}/alive & wait")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    assert understood("tool", ("--help",)) is None
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end of the file comes when the last process that holds it is gone
    os.close(reader)


def test_a_cli_that_is_not_there_leaves_it_open(program) -> None:
    assert understood("no-such-tool", ("--help",)) is None


def test_a_broken_or_forbidden_memory_is_no_trouble(program, tmp_path: Path) -> None:
    program(HELP)
    cache = tmp_path / "cache" / "ralph"
    cache.mkdir(parents=True)
    (cache / "options-tool.json").write_bytes(b"\xff{")
    assert understood("tool", ("--help",))
    assert understood("tool", ("--help",))
    assert calls(tmp_path) == 1


def test_a_memory_that_cannot_be_written_is_done_without(program, tmp_path: Path) -> None:
    program(HELP)
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert understood("tool", ("--help",))


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("error: unexpected argument '--full-auto' found", True),
        ("error: unknown option '--auto'", True),
        ("invalid key", False),
    ],
)
def test_asking_is_worth_it_after_a_bad_flag(reason: str, expected: bool) -> None:
    assert worth_asking(Failure("fatal", reason)) is expected
    assert not worth_asking(None)
