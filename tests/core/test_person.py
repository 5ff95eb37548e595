"""How notes, requests and answers of a person change the opinions of the rules."""

from ralph.core import rules
from ralph.core.claims import Claim
from ralph.core.model import Continue, Outcome, PersonNote, Question, Snapshot, Stop
from ralph.loop import judge
from ralph.testing import a_run

ASKED = Question("q1", "Port 80\nor 8080?")


def test_the_prompt_says_that_a_note_is_from_a_person() -> None:
    (note,) = rules.person_notes(a_run(seen=Snapshot(told=(PersonNote("1", "be quick"),))))
    assert note.text == "A note from the person who started this run:\nbe quick"
    assert note.about == "person"


def test_an_answer_is_shown_with_its_question() -> None:
    (note,) = rules.person_notes(a_run(seen=Snapshot(told=(PersonNote("1", "8080", ASKED),))))
    assert note.text == "You asked: Port 80\nor 8080?\nThe person who started this run answers:\n8080"


def test_a_pause_by_a_person_is_longer_than_any_other_wait() -> None:
    run = a_run("x", seen=Snapshot(at=10.0, paused=True))
    verdict = judge(run, [rules.pause_between_turns(1000.0), rules.wait_while_paused])
    assert isinstance(verdict, Continue)
    assert verdict.wait is not None
    assert (verdict.wait.until, verdict.wait.reason) == ("resume", "a person asked for it")


def test_a_run_waits_for_the_answer_to_a_question() -> None:
    (wait,) = rules.wait_for_answer(a_run(seen=Snapshot(questions=(ASKED,))))
    assert (wait.until, wait.reason) == ("answer", "waiting for an answer: Port 80 or 8080?")
    assert not list(rules.wait_for_answer(a_run()))


def test_a_done_backlog_is_done_even_if_it_is_paused() -> None:
    run = a_run("STOP", seen=Snapshot(paused=True))
    verdict = judge(run, [rules.wait_while_paused, rules.completed([Claim("word", "STOP")], ())])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.DONE
