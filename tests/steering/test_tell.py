"""A note of a person is in the next prompt exactly once, whatever happens in between."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core.model import Iteration, Question, Run, Turn
from ralph.errors import UserError
from ralph.store.mailbox import Mail, Mailbox, untold

Ralph = Callable[..., Any]


def test_notes_queue_up_for_the_next_prompt_and_are_given_once(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    assert ralph("tell", "use the new API").code == 0
    assert "carries it" in ralph("tell", run.id, "and --be quick; $(really) {{x}}").out
    assert "2 notes for the next prompt" in ralph("ps").out
    run.let()
    run.until("person_told")
    run.in_turn()
    assert "notes for the next prompt" not in ralph("ps").out
    run.let()
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    first, second, third = run.prompts()
    assert first == third == "the goal"
    assert second == (
        "the goal\n\nA note from the person who started this run:\nuse the new API\n\n"
        "A note from the person who started this run:\nand --be quick; $(really) {{x}}"
    )
    (told,) = run.all("person_told")
    assert [note["text"] for note in told["notes"]] == ["use the new API", "and --be quick; $(really) {{x}}"]


def test_a_note_in_the_current_prompt_is_not_pending(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("tell", "use the new API")
    run.let()
    run.until("person_told")
    run.in_turn()
    assert ralph("tell", "and tabs").out == f"the next prompt of run {run.id} carries it\n"
    run.let("<response>DONE</response>")
    assert run.finish() == 0


def test_a_killed_turn_does_not_use_up_its_notes(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    ralph("tell", "mind the gap")
    run.let()
    run.until("person_told")
    run.in_turn()
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    again = start(command="resume")
    again.in_turn()
    again.let()
    again.in_turn()
    again.let("<response>DONE</response>")
    assert again.finish() == 0
    assert ["mind the gap" in prompt for prompt in again.prompts()] == [False, True, True, False]


def test_a_recorded_note_is_not_given_again(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    old, new = mailbox.tell("old"), mailbox.tell("new")
    run = Run(id="r").plus(Iteration(number=1, turn=Turn(text="x"), told=(old,)))
    assert untold(mailbox.read(), run) == (new,)


def test_a_note_waits_for_a_run_to_be_resumed(ralph: Ralph, agent: Callable[..., str], prompts: Any) -> None:
    ralph("run", "-p", "the goal", "-m", "1", "--agent", agent("echo hello $N"))
    result = ralph("tell", "go on")
    assert (result.code, "after `ralph resume" in result.out) == (0, True)
    ralph("resume", "-m", "1")
    assert prompts()[1].endswith("\ngo on")


@pytest.mark.parametrize("words", [(), ("",), ("  \n",), ("-",)])
def test_an_empty_note_is_refused(ralph: Ralph, words: tuple[str, ...]) -> None:
    result = ralph("tell", *words)
    assert result.code == 2
    assert "no text to send" in result.err


def test_a_note_may_come_from_standard_input(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    assert ralph("tell", "-", stdin="line one\nline two\n").code == 0
    run.let()
    run.in_turn()
    assert "line one\nline two" in run.prompts()[1]


def test_unquoted_words_are_refused_with_a_hint(ralph: Ralph) -> None:
    result = ralph("tell", "fix", "the", "tests")
    assert result.code == 2
    assert "put the text in quotes" in result.err


def test_a_done_run_cannot_be_told(ralph: Ralph, agent: Callable[..., str]) -> None:
    ralph("run", "-p", "x", "--agent", agent('echo "<response>DONE</response>"'))
    result = ralph("tell", "more")
    assert result.code == 2
    assert "is done" in result.err


def test_an_agent_cannot_speak_for_the_person(ralph: Ralph, start: Any) -> None:
    run = start()
    run.in_turn()
    result = ralph("tell", "well done", RALPH_RUN_ID=run.id)
    assert result.code == 2
    assert "only a person" in result.err


def test_foreign_files_in_the_mailbox_are_ignored(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    question = mailbox.ask("why\x1b[2J?")
    folder = tmp_path / "mail"
    (folder / "torn.note").write_text('{"id": "x"')
    (folder / "strange.question").write_bytes(b"\xff")
    (folder / "other").write_text("")
    mail = mailbox.read()
    assert (mail.notes, mail.questions, mail.is_paused) == ((), (Question(question.id, "why?"),), False)


def test_an_answer_closes_its_question(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    first, second = mailbox.ask("one?"), mailbox.ask("two?")
    note = mailbox.tell("yes", first)
    assert mailbox.read().questions == (second,)
    mailbox.forget([note])
    assert mailbox.read().questions == (second,)
    assert mailbox.read().notes == ()


def test_anything_in_place_of_the_mailbox_is_ignored(tmp_path: Path) -> None:
    box = Mailbox(tmp_path)
    note = box.tell("hello")
    shutil.rmtree(box.path)
    Path(box.path).write_text("no box")
    assert box.read() == Mail()
    box.forget([note])
    box.unpause()
    with pytest.raises(UserError, match="cannot write"):
        box.tell("hello")


def test_a_flooded_mailbox_gives_the_latest_notes_within_the_limit(tmp_path: Path) -> None:
    box = Mailbox(tmp_path)
    for _ in range(12):
        box.tell("x" * 1_000_000)
    box.pause()
    last = box.tell("stop that")
    mail = box.read()
    assert mail.notes[-1] == last
    assert sum(len(note.text) for note in mail.notes) < 5_000_000
    assert mail.is_paused
