"""An agent puts links and pipes where ralph keeps its things: nothing outside is written to, and nobody waits."""

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
    """A file of the user's that is none of the agent's business."""
    file = tmp_path / "precious"
    file.write_text("precious\n")
    return file


PLACES = {
    "the prompt of the next turn": "mkdir -p $run/iterations/002; {link} {0} $run/iterations/002/prompt.md",
    "the output of this turn": "{link} {0} $run/iterations/001/output.md",
    "the log of the next turn": "mkdir -p $run/iterations/002; {link} {0} $run/iterations/002/stdout.log",
    "the log of a check": "{link} {0} .ralph/guardrail_001_true.log",
    "progress.md": "rm -f .ralph/progress.md; {link} {0} .ralph/progress.md",
    "state.json": "rm $run/state.json; {link} {0} $run/state.json",
    "the report": "{link} {0} $run/report.html",
    ".gitignore": "rm .ralph/.gitignore; {link} {0} .ralph/.gitignore",
}


@pytest.mark.parametrize("link", ["ln -s", "ln"])
@pytest.mark.parametrize("place", PLACES)
def test_a_file_outside_is_not_written_to_through_a_link(
    agent: Agent, ralph: Ralph, outside: Path, place: str, link: str
) -> None:
    plant = f"{RUN}\n{PLACES[place].format(outside, link=link)}\n"
    done = ralph("run", "g", "--check", "true", "-m", "2", "--agent", agent(f"{plant} 2> /dev/null; echo more"))
    assert done.code == 1, done.err
    assert outside.read_text() == "precious\n"


def test_a_folder_on_the_way_that_is_a_link_is_not_followed(
    agent: Agent, ralph: Ralph, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "002").mkdir()
    (tmp_path / "002" / "prompt.md").write_text("precious\n")
    plant = f"{RUN}\nrm -rf $run/iterations; ln -s {tmp_path} $run/iterations"
    done = ralph("run", "g", "-m", "3", "--agent", agent(f"{plant}; echo more"))
    assert done.code == 2
    assert "a folder on the way to it is a link" in done.err
    assert (tmp_path / "002" / "prompt.md").read_text() == "precious\n"
    assert not (tmp_path / "001").exists()


@pytest.mark.parametrize("folder", ["$PWD/.ralph", "$PWD/.ralph/runs", "$run", "$run/iterations/001"])
@pytest.mark.parametrize("name", ["else", "${folder#$PWD/}"])
def test_nothing_is_made_where_a_folder_of_ralphs_was_linked_to(
    agent: Agent, ralph: Ralph, tmp_path: Path, folder: str, name: str
) -> None:
    """Not even where the folder there is called the same, such as that of another workspace."""
    plant = f"{RUN}\nfolder={folder}; to={tmp_path}/there/{name}; mkdir -p $to; echo $to > {tmp_path}/to"
    done = ralph("run", "g", "-m", "3", "--agent", agent(f"{plant}; mv $folder {tmp_path}/was; ln -s $to $folder"))
    assert done.code == 2
    assert "a folder on the way to it is a link" in done.err
    assert [*Path((tmp_path / "to").read_text().strip()).iterdir()] == []


@pytest.mark.parametrize("name", ["index.git", "index.git/refs", "index.git/info", "index.git/config", "index"])
def test_what_git_looks_by_is_not_written_where_it_was_linked_to(
    agent: Agent, ralph: Ralph, repository: Path, tmp_path: Path, name: str
) -> None:
    there = tmp_path / "there"
    for inside in ("config", "HEAD", "exclude"):
        there.mkdir(exist_ok=True)
        (there / inside).write_text("precious\n")
    to = there if name.endswith(("git", "refs", "info")) else there / ("config" if name != "index" else "new")
    before = sorted(there.iterdir())
    plant = f"{RUN}\nrm -rf $run/{name}; ln -s {to} $run/{name}; echo $RALPH_ITERATION > changed"
    done = ralph("run", "g", "-m", "2", "--agent", agent(f"{plant}; echo more"))
    assert done.code == 1, done.err
    assert sorted(there.iterdir()) == before
    assert {file.read_text() for file in before} == {"precious\n"}


def test_a_journal_that_was_linked_elsewhere_is_not_added_to(agent: Agent, ralph: Ralph, outside: Path) -> None:
    plant = f"{RUN}\nrm $run/journal.ndjson; ln -s {outside} $run/journal.ndjson"
    done = ralph("run", "g", "-m", "2", "--agent", agent(f"{plant}; echo more"))
    assert done.code == 2
    assert "it is a link, which is not followed" in done.err
    assert outside.read_text() == "precious\n"
    looked = ralph("diff")
    assert (looked.code, looked.err.count("\n")) == (2, 2), looked.err


PIPES = {
    "the tasks file": ("mkfifo t.md.new; mv t.md.new t.md", ("--tasks", "t.md")),
    "the prompt": ("mkfifo p.new; mv p.new PROMPT.md", ()),
    "the log of a check": ("mkfifo .ralph/guardrail_001_true.log", ()),
    ".gitignore": ("rm .ralph/.gitignore; mkfifo .ralph/.gitignore", ()),
    "the journal": (f"{RUN}; rm $run/journal.ndjson; mkfifo $run/journal.ndjson", ()),
    "state.json": (f"{RUN}; rm $run/state.json; mkfifo $run/state.json", ()),
    "progress.md": ("mkfifo .ralph/progress.md", ()),
    "what was seen red": ("rm -f .ralph/proofs.json; mkfifo .ralph/proofs.json", ()),
    "the options of an agent": ("mkdir -p ~/.cache/ralph; mkfifo ~/.cache/ralph/options-claude.json", ()),
    "a protected file": (f"{RUN}; rm -f $run/protected.json; mkfifo $run/protected.json", ("--protect", "t.md")),
    "a note": (f"{RUN}; mkdir -p $run/mailbox; mkfifo $run/mailbox/1.note", ()),
}


@pytest.mark.parametrize("place", PIPES)
def test_nobody_waits_for_a_pipe(agent: Agent, ralph: Ralph, repository: Path, place: str) -> None:
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
def test_a_pipe_that_a_person_names_is_refused_in_one_line(
    agent: Agent, ralph: Ralph, workspace: Path, words: tuple[str, ...]
) -> None:
    os.mkfifo(workspace / "pipe")
    done = ralph("run", *words, "--agent", agent(DONE))
    assert done.code == 2
    assert "it is not a regular file" in done.err


def test_a_pipe_among_the_notes_of_earlier_runs_is_refused_in_one_line(ralph: Ralph, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    os.mkfifo(workspace / ".ralph" / "learned.md")
    done = ralph("learn")
    assert done.code == 2
    assert "it is not a regular file" in done.err


def test_the_lock_of_the_worktrees_is_not_made_where_a_link_leads(
    agent: Agent, ralph: Ralph, repository: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    worktrees = Path(environment["HOME"], ".local/state/ralph/worktrees")
    worktrees.mkdir(parents=True)
    (worktrees / ".lock").symlink_to(tmp_path / "new")
    done = ralph("run", "g", "--worktree", "-m", "1", "--agent", agent("echo more"))
    assert (done.code, "it is a link, which is not followed" in done.err) == (2, True), done.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", [".git", "$own/commondir", "$own/HEAD"])
def test_a_file_of_gits_that_names_what_no_file_can_be_called_is_no_bug(
    agent: Agent, ralph: Ralph, repository: Path, place: str
) -> None:
    plant = f"own=$(git rev-parse --git-dir); printf 'ref: refs/heads/\\0\\0' > {place}; echo more >> work"
    done = ralph("run", "g", "--worktree", "-m", "2", "--agent", agent(plant))
    assert done.code in (1, 2), done.err
    assert "internal error" not in done.err
    for words in ("diff", "show", "resume -m 1", "rewind 0", "accept", "discard", "clean --older-than 0s --yes"):
        again = ralph(*words.split())
        assert again.code in (0, 1, 2), (words, again.err)
        assert "internal error" not in again.err, words


def test_an_index_without_end_is_refused_and_not_read(agent: Agent, ralph: Ralph, repository: Path) -> None:
    plant = "truncate -s 200G .git/index; echo x > new"
    done = ralph("run", "g", "-m", "1", "--agent", agent(plant))
    assert done.code == 1
    assert "internal error" not in done.err
    done = ralph("run", "g", "-m", "1", "--agent", agent("echo hello"))
    assert "is not an index: it is larger than 1024 MB" in done.err


def test_a_prompt_file_of_three_gigabytes_is_refused_and_not_read(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    with open(workspace / "PROMPT.md", "wb") as file:
        file.truncate(3 << 30)  # it takes no room on the disk
    began = time.monotonic()
    done = ralph("run", "-f", "PROMPT.md", "--agent", agent(DONE))
    assert done.code == 2
    assert "PROMPT.md: it is larger than 64 MB" in done.err
    assert time.monotonic() - began < 60


def test_a_path_that_is_too_long_is_said_in_one_line(agent: Agent, ralph: Ralph) -> None:
    for words in (("-f", "x" * 5000), ("g", "--tasks", "y" * 300), ("-C", "z" * 5000, "g")):
        done = ralph("run", *words, "--agent", agent(DONE))
        assert done.code == 2, done.err
        assert "internal error" not in done.err


@pytest.mark.parametrize("place", ["a link", "a pipe"])
def test_a_report_is_not_written_through_what_stands_in_its_place(
    agent: Agent, ralph: Ralph, workspace: Path, outside: Path, place: str
) -> None:
    assert ralph("run", "g", "-m", "1", "--agent", agent("echo hello")).code == 1
    (report,) = workspace.glob(".ralph/runs/*/report.html")
    report.unlink()
    if place == "a link":
        report.symlink_to(outside)
    else:
        os.mkfifo(report)
    before = outside.read_bytes()
    assert ralph("report", "--open", BROWSER="true", timeout=60).code == 0
    assert outside.read_bytes() == before
    assert report.is_file()
    assert not report.is_symlink()
