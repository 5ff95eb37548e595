"""A claim does not end a run whose agent still waits for a person."""

from msgspec.structs import replace

from ralph.core.model import Continue, Iteration, Outcome, PersonNote, Question, Run, Snapshot, Stop, Turn
from ralph.loop import judge
from ralph.run.policy import make_policy
from ralph.settings import Settings

CLAIMED = Run(id="r", iterations=(Iteration(number=1, turn=Turn(text="<response>DONE</response>")),))
QUESTION = Question("q", "May I delete NOTES.tmp?")
ANSWER = PersonNote("n", "No.", answers=QUESTION)


def verdict(run: Run, on_question: str = "wait") -> Stop | Continue:
    settings = Settings(until=("response:DONE",), on_question=on_question)  # type: ignore[arg-type]
    return judge(run, make_policy(settings).rules)


def test_a_run_waits_for_an_answer_even_if_the_turn_that_asked_claims_to_be_done() -> None:
    asked = verdict(replace(CLAIMED, seen=Snapshot(questions=(QUESTION,))))
    assert isinstance(asked, Continue)
    assert asked.wait is not None
    assert asked.wait.until == "answer"


def test_the_agent_reads_the_answer_before_its_claim_counts() -> None:
    answered = verdict(replace(CLAIMED, seen=Snapshot(told=(ANSWER,))))
    assert isinstance(answered, Continue)
    assert any("No." in note.text for note in answered.notes)
    assert [one.reason for one in answered.refusals] == ["the agent has not read your note yet"]


def test_a_run_that_does_not_wait_for_answers_is_done() -> None:
    done = verdict(replace(CLAIMED, seen=Snapshot(questions=(QUESTION,))), on_question="continue")
    assert isinstance(done, Stop)
    assert done.outcome is Outcome.DONE


def test_a_note_without_a_question_delays_only_a_resumed_run() -> None:
    note = Snapshot(told=(PersonNote("n", "Look again."),))
    assert isinstance(verdict(replace(CLAIMED, seen=note)), Stop)
    assert isinstance(verdict(replace(CLAIMED, seen=note, resumed=1)), Continue)
