"""What a run learns is a short note, kept once, carried as data, and never more than 8 KB of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core.claims import Claim
from ralph.run.learning import LARGEST_NOTES, add_note, parse_note, read_notes, write_notes

Start = Callable[..., Any]
WORKS = 'case "$PROMPT" in *"change nothing: what"*) echo "- The tests need make db first.";; *) echo COMPLETE;; esac'


@pytest.mark.parametrize(
    "again", ["The tests need `make db`.", "- the tests need MAKE DB", "tests need make db", "NOTHING", "", " - "]
)
def test_a_known_note_is_not_added_again(again: str) -> None:
    assert add_note(["The tests need make db"], again) == ["The tests need make db"]


@pytest.mark.parametrize(
    "answer",
    [
        "Done.",
        "All of it works. COMPLETE",
        "Sure! Here is what would have helped:\n\n- make db\n- make seed",
        "## Summary\nI fixed the parser.",
    ],
)
def test_an_answer_that_is_not_one_sentence_is_not_a_note(answer: str) -> None:
    assert parse_note(answer, [Claim("tag", "COMPLETE")]) == ""


@pytest.mark.parametrize("answer", ["The COMPLETE list of commands is in `make help`.", "```\n先跑 make db\n```"])
def test_one_sentence_is_a_note(answer: str) -> None:
    assert parse_note(answer, [Claim("tag", "COMPLETE")]) == answer.strip("`\n")


def test_the_oldest_notes_are_dropped_if_there_are_too_many(tmp_path: Path) -> None:
    notes: list[str] = []
    for number in range(100):
        notes = add_note(notes, f"note {number:03d} " + "ü" * 140)
        write_notes(tmp_path / "learned.md", notes)
        assert (tmp_path / "learned.md").stat().st_size <= LARGEST_NOTES
    assert notes[-1].startswith("note 099")
    assert not notes[0].startswith("note 000")
    assert read_notes(tmp_path / "learned.md") == notes


def test_a_done_run_leaves_a_note_for_later_prompts(
    ralph: Start, agent: Start, repository: Path, prompts: Start
) -> None:
    words = ("loop", "x", "--check", "true", "--learn", "--agent", agent(WORKS))
    done = ralph(*words)
    assert done.code == 0, done.err
    assert ralph("learn").out == "- The tests need make db first.\n"
    assert ralph(*words).code == 0
    assert "The tests need make db first" not in prompts()[0]
    assert " notes>\n- The tests need make db first.\n</" in prompts()[2]
    assert ralph("learn").out == "- The tests need make db first.\n"


def test_without_learn_there_is_no_note(ralph: Start, agent: Start, repository: Path, prompts: Start) -> None:
    assert ralph("loop", "x", "--check", "true", "--agent", agent(WORKS)).code == 0
    assert len(prompts()) == 1
    assert not (repository / ".ralph" / "learned.md").exists()


def test_a_run_that_is_not_done_learns_nothing(ralph: Start, agent: Start, repository: Path, prompts: Start) -> None:
    assert ralph("loop", "x", "--check", "false", "--learn", "-m", "1", "--agent", agent(WORKS)).code == 1
    assert len(prompts()) == 1


def test_changes_made_while_writing_a_note_are_undone(ralph: Start, agent: Start, repository: Path) -> None:
    fake = agent(f"[ $N = 1 ] || echo sly > README; {WORKS}")
    done = ralph("loop", "x", "--check", "true", "--learn", "--agent", fake)
    assert done.code == 0, done.err
    assert (repository / "README").read_text() == "hello\n"
    assert "changed files while it wrote a note" in done.err


def test_an_answer_that_is_not_a_note_is_reported(ralph: Start, agent: Start, repository: Path) -> None:
    done = ralph("loop", "x", "--check", "true", "--learn", "--agent", agent("echo COMPLETE"))
    assert done.code == 0, done.err
    assert "no note is written: the agent's answer is not one sentence" in done.err
    assert not (repository / ".ralph" / "learned.md").exists()


def test_a_person_can_add_a_note_and_see_them_all(ralph: Start, repository: Path) -> None:
    assert "no notes yet" in ralph("learn").err
    assert ralph("learn", "Use", "the", "Makefile").out == "- Use the Makefile\n"
    assert ralph("learn", "use the makefile").out == "- Use the Makefile\n"
    assert ralph("learn", "--edit").code == 2
    (repository / ".ralph" / "settings.json").write_text('{"learn": "NOTES.md"}')
    assert ralph("learn", "elsewhere").out == "- elsewhere\n"
    assert (repository / "NOTES.md").exists()
