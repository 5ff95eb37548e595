"""Hostile names, goals and records never reach a terminal unescaped, whatever prints them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_text import COMMANDS_A_TERMINAL, EVIL, SCRIPT, forge

Agent = Callable[..., str]
Ralph = Callable[..., Any]

OUTLETS = (
    *("ps -a", "ps -a --json", "show", "show --json", "logs", "logs --json", "diff --stat"),
    *(
        "report -o -",
        "doctor",
        "doctor --json",
        "clean",
        "clean --yes",
        "trust",
        "hook status",
        "resume",
        "stop",
        "tell hello",
        "rewind 0",
    ),
)


@pytest.fixture
def hostile(agent: Agent, ralph: Ralph, repository: Path) -> Path:
    """The folder of a run in which everything that an agent can write means harm."""
    done = ralph("run", f"goal {EVIL}", "-m", "2", "--check", f"printf '{EVIL}'; false", "--agent", agent(SCRIPT))
    assert done.code == 1
    assert not COMMANDS_A_TERMINAL.search(done.err)
    (folder,) = repository.glob(".ralph/runs/*")
    return folder


@pytest.mark.parametrize("forged", [False, True])
def test_everything_from_outside_is_cleaned_before_it_is_shown(hostile: Path, ralph: Ralph, forged: bool) -> None:
    if forged:
        forge(hostile)
    for outlet in OUTLETS:
        shown = ralph(*outlet.split())
        for text in (shown.out, shown.err):
            found = COMMANDS_A_TERMINAL.search(text)
            assert not found, f"{outlet}: {text[max(found.start() - 60, 0) : found.end() + 20]!r}"
        assert "internal error" not in shown.err


def test_a_folder_made_by_an_agent_is_not_listed_as_a_run(hostile: Path, ralph: Ralph) -> None:
    """Its name would be shown like that of a run, and it would count as the last run."""
    shutil.copytree(hostile, hostile.with_name(f"99991231-235959-{EVIL.replace('/', '')}\nforged"), symlinks=True)
    for outlet in ("show", "logs", "tell hello", "stop", "ps -a", "diff --stat", "report -o -", "clean"):
        shown = ralph(*outlet.split())
        assert not COMMANDS_A_TERMINAL.search(shown.out + shown.err), outlet
        assert "\nforged" not in shown.out + shown.err


def test_a_newline_in_a_file_name_does_not_add_a_line(hostile: Path, ralph: Ralph) -> None:
    lines = ralph("diff", "--stat").out.splitlines()
    assert not [line for line in lines if line.startswith("D forged")]
    assert [line for line in lines if "plain D forged" in line]


def test_json_has_no_control_characters(agent: Agent, ralph: Ralph, repository: Path) -> None:
    (repository / "said").write_text(EVIL + "\n")
    done = ralph("run", f"goal {EVIL}", "-m", "1", "--json", "--agent", agent("cat said"))
    assert not COMMANDS_A_TERMINAL.search(done.out)
    assert done.one("run_started")["goal"].endswith("\u202ey"), "it is escaped, not lost"


def test_the_tui_shows_no_control_characters_of_a_goal(hostile: Path) -> None:
    pytest.importorskip("textual", reason="pip install 'ralph-until-done[tui]'")
    from ralph.history.overview import runs_now
    from ralph.tui.draw import tui_style
    from ralph.tui.widgets import to_text

    for line in (EVIL, f"\x1b[31m{EVIL}\x1b[0m", "\x1b[999mx", "\x1b[", "a\nb\tc"):
        assert not COMMANDS_A_TERMINAL.search(to_text([line]).plain)
    assert tui_style(None)
    assert runs_now(True) is not None


def test_names_in_error_messages_are_cleaned(ralph: Ralph, workspace: Path) -> None:
    for words in (("run", "-f", f"no{EVIL}"), ("show", f"no{EVIL}"), ("run", "g", "-C", f"no{EVIL}"), (f"no{EVIL}",)):
        done = ralph(*words)
        assert done.code == 2
        assert not COMMANDS_A_TERMINAL.search(done.err), done.err
    assert os.path.isdir(workspace)


def test_control_characters_of_a_backlog_are_not_shown(
    agent: Agent, ralph: Ralph, repository: Path, git: Callable[..., str]
) -> None:
    """Its list, its journal, which any agent can write, and the first prompt of a dry run."""
    (repository / "list.md").write_text(f"- [ ] T1 one {EVIL}\n  check: printf '{EVIL}'; false\n")
    git("add", "-A")
    git("commit", "-q", "-m", "a list")
    words = ("list.md", "-m", "1", "--check", "true", "--agent", agent(SCRIPT))
    outputs = [ralph("work", *words, "--dry-run"), ralph("run", "-p", EVIL, "--dry-run"), ralph("work", *words)]
    (folder,) = (path.parent for path in repository.glob(".ralph/runs/*/work.json"))
    journal = folder / "journal.ndjson"
    said = journal.read_text().replace('"T1"', json.dumps(f"T1{EVIL}\nforged"))
    journal.write_text(said.replace('"target":"', f'"target":"{json.dumps(EVIL)[1:-1]}'))
    for outlet in ("show {}", "show {} --json", "logs {}", "report {} -o -", "ps -a", "work status"):
        outputs.append(ralph(*outlet.format(folder.name).split()))
    for shown in outputs:
        for text in (shown.out, shown.err):
            found = COMMANDS_A_TERMINAL.search(text)
            assert not found, text[max(found.start() - 60, 0) : found.end() + 20]
            is_page = text.startswith("<!doctype html>")  # in which a line break separates nothing
            assert is_page or not [line for line in text.splitlines() if line.startswith("forged")]
        assert "internal error" not in shown.err
