"""What a person says, asks for and is asked changes what the rules say of the next turn."""

from ralph.core import rules
from ralph.core.claims import Claim
from ralph.core.model import Continue, Outcome, PersonNote, Question, Snapshot, Stop
from ralph.loop import judge
from ralph.testing import a_run

ASKED = Question("q1", "Port 80\nor 8080?")


def test_a_note_is_shown_as_the_persons() -> None:
    (note,) = rules.person_notes(a_run(seen=Snapshot(told=(PersonNote("1", "be quick"),))))
    assert note.text == "A note from the person who started this run:\nbe quick"
    assert note.about == "person"


def test_an_answer_stands_with_its_question() -> None:
    (note,) = rules.person_notes(a_run(seen=Snapshot(told=(PersonNote("1", "8080", ASKED),))))
    assert note.text == "You asked: Port 80\nor 8080?\nThe person who started this run answers:\n8080"


def test_a_pause_outlasts_every_other_wait() -> None:
    run = a_run("x", seen=Snapshot(at=10.0, paused=True))
    verdict = judge(run, [rules.pause_between_turns(1000.0), rules.wait_while_paused])
    assert isinstance(verdict, Continue)
    assert verdict.wait is not None
    assert (verdict.wait.until, verdict.wait.reason) == ("resume", "a person asked for it")


def test_an_open_question_holds_the_run() -> None:
    (wait,) = rules.wait_for_answer(a_run(seen=Snapshot(questions=(ASKED,))))
    assert (wait.until, wait.reason) == ("answer", "waiting for an answer: Port 80 or 8080?")
    assert not list(rules.wait_for_answer(a_run()))


def test_what_is_done_is_done_though_it_is_paused() -> None:
    run = a_run("STOP", seen=Snapshot(paused=True))
    verdict = judge(run, [rules.wait_while_paused, rules.completed([Claim("word", "STOP")], ())])
    assert isinstance(verdict, Stop)
    assert verdict.outcome is Outcome.DONE
