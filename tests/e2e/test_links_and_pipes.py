"""An agent replaces files of ralph with links and pipes: ralph writes nothing outside, and never blocks."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]

DONE = "echo '<response>DONE</response>'"
RUN = 'run=$(echo "$PWD"/.ralph/runs/*)'


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of the user outside the workspace."""
    file = tmp_path / "precious"
    file.write_text("precious\n")
    return file


PLACES = {
    "the prompt of the next turn": "mkdir -p $run/iterations/002; ln -s {0} $run/iterations/002/prompt.md",
    "the output of this turn": "ln -s {0} $run/iterations/001/output.md",
    "the log of the next turn": "mkdir -p $run/iterations/002; ln -s {0} $run/iterations/002/stdout.log",
    "the log of a check": "ln -s {0} .ralph/guardrail_001_true.log",
    "progress.md": "rm -f .ralph/progress.md; ln -s {0} .ralph/progress.md",
    "state.json": "rm $run/state.json; ln -s {0} $run/state.json",
    "the report": "ln -s {0} $run/report.html",
    ".gitignore": "rm .ralph/.gitignore; ln -s {0} .ralph/.gitignore",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_file_outside_is_not_written_to_through_a_link(agent: Agent, ralph: Ralph, outside: Path, place: str) -> None:
    plant = f"{RUN}\n{PLACES[place].format(outside)}\n"
    done = ralph("run", "g", "--check", "true", "-m", "2", "--agent", agent(f"{plant} 2> /dev/null; echo more"))
    assert done.code == 1, done.err
    assert outside.read_text() == "precious\n"


PIPES = {
    "the tasks file": ("mkfifo t.md.new; mv t.md.new t.md", ("--tasks", "t.md")),
    "the prompt": ("mkfifo p.new; mv p.new PROMPT.md", ()),
    "the log of a check": ("mkfifo .ralph/guardrail_001_true.log", ()),
    "the journal": (f"{RUN}; rm $run/journal.ndjson; mkfifo $run/journal.ndjson", ()),
    "state.json": (f"{RUN}; rm $run/state.json; mkfifo $run/state.json", ()),
    "progress.md": ("mkfifo .ralph/progress.md", ()),
    "what was seen red": ("rm -f .ralph/proofs.json; mkfifo .ralph/proofs.json", ()),
    "a protected file": (f"{RUN}; rm -f $run/protected.json; mkfifo $run/protected.json", ("--protect", "t.md")),
    "a note": (f"{RUN}; mkdir -p $run/mailbox; mkfifo $run/mailbox/1.note", ()),
}


@pytest.mark.parametrize("place", PIPES)
def test_ralph_never_blocks_on_a_pipe(agent: Agent, ralph: Ralph, repository: Path, place: str) -> None:
    plant, options = PIPES[place]
    (repository / "t.md").write_text("- [ ] a task\n")
    (repository / "PROMPT.md").write_text("the goal\n")
    began = time.monotonic()
    fake = agent(f"[ -e planted ] || {{ {plant}; touch planted; }} 2> /dev/null; {DONE}")
    done = ralph("run", "-f", "PROMPT.md", "--check", "true", "-m", "2", *options, "--agent", fake)
    assert "internal error" not in done.err
    for words in (("ps", "-a"), ("show",), ("logs",)):
        assert ralph(*words).code in (0, 2)
    assert time.monotonic() - began < 600


@pytest.mark.parametrize("words", [("-f", "pipe"), ("g", "--tasks", "pipe"), ("g", "--spec", "pipe")])
def test_a_pipe_as_an_argument_is_refused_in_one_line(
    agent: Agent, ralph: Ralph, workspace: Path, words: tuple[str, ...]
) -> None:
    os.mkfifo(workspace / "pipe")
    done = ralph("run", *words, "--agent", agent(DONE))
    assert done.code == 2
    assert "it is not a regular file" in done.err


def test_a_prompt_file_of_three_gigabytes_is_refused_and_not_read(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    with open(workspace / "PROMPT.md", "wb") as file:
        file.truncate(3 << 30)  # a sparse file
    began = time.monotonic()
    done = ralph("run", "-f", "PROMPT.md", "--agent", agent(DONE))
    assert done.code == 2
    assert "PROMPT.md: it is larger than 64 MB" in done.err
    assert time.monotonic() - began < 60


def test_a_path_that_is_too_long_is_refused_in_one_line(agent: Agent, ralph: Ralph) -> None:
    for words in (("-f", "x" * 5000), ("g", "--tasks", "y" * 300), ("-C", "z" * 5000, "g")):
        done = ralph("run", *words, "--agent", agent(DONE))
        assert done.code == 2, done.err
        assert "internal error" not in done.err
