"""What counts as a claim, and what is only talk about one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.claims import Claim, Reading, claimed, stated
from ralph.core.model import Failure, Iteration, Snapshot, Turn
from ralph.testing import a_run

CLAIMS = [
    ("word", "STOP", "STOP"),
    ("word", "STOP", "All tests pass.\nSTOP"),
    ("word", "STOP", "The charm is ready to merge.\n\nSTOP\n"),
    ("word", "STOP", "All tests pass. STOP"),
    ("word", "STOP", "  STOP  "),
    ("word", "STOP", "\x1b[1;32mSTOP\x1b[0m\r\n"),
    ("promise", "DONE", "\x1b[2m<promise>DONE</promise>\x1b[22m"),
    ("response", "DONE", "<response>DONE</response>"),
    ("response", "DONE", "ok <RESPONSE>\n done </Response>"),
    ("response", "DONE", "I've implemented everything and the tests pass. <response>DONE</response>"),
    ("response", "DONE", "I will not say <response>DONE</response> yet.\nNow I do.\n<response>DONE</response>"),
    ("suffix", "DONE", "Task completed successfully. DONE"),
    ("suffix", "DONE", "DONE\n"),
    ("promise", "DONE", "<promise>DONE</promise>"),
    ("promise", "DONE", "All work is finished: <promise>DONE</promise>"),
    ("promise", "DONE", "The task is complete. <promise>DONE</promise>"),
    ("promise", "DONE", "```\n<promise>DONE</promise>\n```"),
    ("promise", "DONE", "`<promise>DONE</promise>`"),
    ("promise", "DONE", "<promise>DONE</promise> — everything passes"),
    ("promise", "DONE", "I could not run lint, but everything else is finished: <promise>DONE</promise>"),
    ("promise", "DONE", "Everything passes, so <promise>DONE</promise>."),
    ("promise", "DONE", "There are no errors left, <promise>DONE</promise>"),
    ("promise", "DONE", "The tests that did not pass before pass. <promise>DONE</promise>"),
    ("promise", "DONE", "I can confirm that all of it works: <promise>DONE</promise>"),
    ("promise", "DONE", "<promise>DONE</promise> Let me know if you need anything else."),
    ("promise", "DONE", "<promise>DONE</promise> Anything else?"),
    ("promise", "DONE", "Since all tests pass, I output <promise>DONE</promise>."),
    ("promise", "DONE", "Output: <promise>DONE</promise>"),
    ("promise", "DONE", "✅ All criteria are met. <promise>DONE</promise> 🎉"),
    ("promise", "TASK COMPLETE", "Finished. <promise>TASK COMPLETE</promise>"),
    ("promise", 'a*b "c"', 'x <promise>a*b "c"</promise>'),
    ("tag", "COMPLETE", "COMPLETE"),
    ("tag", "COMPLETE", "Status: COMPLETE"),
    ("tag", "COMPLETE", "The task is COMPLETE."),
    ("tag", "COMPLETE", "The implementation is now COMPLETE."),
    ("tag", "COMPLETE", "**COMPLETE**"),
    ("tag", "COMPLETE", "<COMPLETE>"),
    ("tag", "COMPLETE", "100% COMPLETE"),
    ("tag", "COMPLETE", "5/5 COMPLETE"),
    ("tag", "COMPLETE", "The task is COMPLETE, let me know if anything is unclear."),
    ("tag", "COMPLETE", "Status: COMPLETE; next I would polish the docs."),
    ("promise", "DONE", "I finished it, and I now emit <promise>DONE</promise>"),
    ("promise", "DONE", "All of it works, output: <promise>DONE</promise>"),
    ("promise", "DONE", "Nothing is pending: <promise>DONE</promise>"),
]

TALK = [
    ("word", "STOP", "Tests STOPPED early due to a panic — investigating."),
    ("word", "STOP", "STOP."),
    ("word", "STOP", "**STOP**"),
    ("word", "STOP", "stop"),
    ("word", "STOP", "please do not STOP yet"),
    ("word", "STOP", "output STOP only when it works"),
    ("word", "STOP", "I'll say STOP when it works"),
    ("word", "STOP", "don't STOP"),
    ("word", "STOP", "My task: fix it, then say STOP"),
    ("word", "STOP", "STOP If all of it works"),
    ("response", "DONE", "I will not output <response>DONE</response> yet"),
    ("response", "DONE", "<response>WIP</response><response>DONE</response>"),
    ("response", "DONE", "<response>DONE.</response>"),
    ("suffix", "DONE", "NOT DONE"),
    ("suffix", "DONE", "UNDONE"),
    ("suffix", "DONE", "DONE\nand more"),
    ("promise", "DONE", "I will not output <promise>DONE</promise> yet"),
    ("promise", "DONE", "I will NOT say <promise>DONE</promise>"),
    ("promise", "DONE", "I won’t output <promise>DONE</promise>."),
    ("promise", "DONE", "I will not output\n`<promise>DONE</promise>` yet"),
    ("promise", "DONE", "Output <promise>DONE</promise> only when finished"),
    ("promise", "DONE", "Once the tests pass I'll output <promise>DONE</promise>."),
    ("promise", "DONE", "Should I output <promise>DONE</promise>?"),
    ("promise", "DONE", "<promise>DONE</promise> will be printed when all tests pass"),
    ("promise", "DONE", "If all goes well: <promise>DONE</promise>"),
    ("promise", "DONE", "I was asked to output <promise>DONE</promise>"),
    ("promise", "DONE", "The task is not finished, so no <promise>DONE</promise> from me."),
    ("promise", "DONE", "I cannot honestly say <promise>DONE</promise> yet"),
    ("promise", "DONE", "As soon as the tests pass I print <promise>DONE</promise>"),
    ("promise", "DONE", "It is too early for <promise>DONE</promise>"),
    ("promise", "DONE", "I am withholding <promise>DONE</promise>"),
    ("promise", "DONE", "Use a marker, e.g. <promise>DONE</promise>"),
    ("promise", "DONE", "Step 3: output <promise>DONE</promise>"),
    ("promise", "DONE", "I take back <promise>DONE</promise>"),
    ("tag", "COMPLETE", "- [ ] COMPLETE"),
    ("tag", "COMPLETE", "COMPLETE: no"),
    ("tag", "COMPLETE", "COMPLETE except for the tests"),
    ("promise", "DONE", "<promise>done</promise>"),
    ("promise", "DONE", "<promise> DONE </promise>"),
    ("tag", "COMPLETE", "INCOMPLETE"),
    ("tag", "COMPLETE", "COMPLETELY"),
    ("tag", "COMPLETE", "NON-COMPLETE"),
    ("tag", "COMPLETE", "The work is not COMPLETE"),
    ("tag", "COMPLETE", "This isn't COMPLETE"),
    ("tag", "COMPLETE", "The task will be COMPLETE after the tests pass"),
    ("tag", "COMPLETE", "Almost COMPLETE"),
    ("tag", "COMPLETE", "90% COMPLETE"),
    ("tag", "COMPLETE", "COMPLETE is what I will say when finished"),
    ("tag", "COMPLETE", "3/5 COMPLETE"),
    ("tag", "COMPLETE", "I still have to COMPLETE the docs"),
    ("word", "STOP", "There is no need to STOP"),
    ("promise", "DONE", "To finish, output <promise>DONE</promise>"),
    ("promise", "DONE", "I am holding off on <promise>DONE</promise>"),
    ("promise", "DONE", "I refrain from <promise>DONE</promise>"),
    ("promise", "DONE", "There is no way I output <promise>DONE</promise> now"),
    ("promise", "DONE", "The marker is <promise>DONE</promise>, which I'll emit at the end"),
    ("promise", "DONE", "Tests fail, so <promise>DONE</promise> must wait"),
    ("promise", "DONE", "The promise <promise>DONE</promise> is pending"),
    ("promise", "DONE", "Emitting <promise>DONE</promise> now is premature"),
]


@pytest.mark.parametrize(("kind", "text", "answer"), CLAIMS)
def test_a_plain_statement_is_a_claim(kind: str, text: str, answer: str) -> None:
    assert stated(Claim(kind, text), answer)


@pytest.mark.parametrize(("kind", "text", "answer"), TALK)
def test_talk_about_a_claim_is_not_one(kind: str, text: str, answer: str) -> None:
    assert not stated(Claim(kind, text), answer)


@pytest.mark.parametrize("kind", ["word", "response", "suffix", "promise", "tag"])
def test_an_empty_claim_never_matches(kind: str) -> None:
    for answer in ("", " ", "<response></response>", "<promise></promise>", "anything"):
        assert not stated(Claim(kind, ""), answer)
        assert not stated(Claim(kind, "  "), answer)


def test_a_strict_word_counts_only_on_a_line_by_itself() -> None:
    strict = Reading(strict=True)
    assert stated(Claim("word", "STOP"), "Fine.\n  STOP \n", strict)
    assert not stated(Claim("word", "STOP"), "All tests pass. STOP", strict)


def test_claim_anywhere_leaves_the_literal_rule() -> None:
    anywhere = Reading(anywhere=True)
    assert stated(Claim("promise", "DONE"), "I will not output <promise>DONE</promise> yet", anywhere)
    assert not stated(Claim("tag", "COMPLETE"), "INCOMPLETE", anywhere)


def test_what_a_failed_turn_says_is_not_believed() -> None:
    crashed = Turn("STOP", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert not claimed(Claim("word", "STOP"), a_run(crashed))


def test_only_the_last_turn_can_claim() -> None:
    assert not claimed(Claim("word", "STOP"), a_run("STOP", "still working"))
    assert not claimed(Claim("word", "STOP"), a_run("STOP").retrying(Turn("")))


def test_a_done_file_is_a_claim_before_the_first_turn_and_after_a_crash() -> None:
    crashed = Turn("", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert claimed(Claim("file", "DONE"), a_run(seen=Snapshot(done_file=True)))
    assert claimed(Claim("file", "DONE"), a_run(crashed, seen=Snapshot(done_file=True)))


def test_green_checks_claim_only_if_there_are_any() -> None:
    assert not claimed(Claim("checks"), a_run("fine"))
    assert not claimed(Claim("checks"), a_run(Iteration(1, Turn("fine"), checked=False)))


@given(st.sampled_from(["word", "response", "suffix", "promise", "tag"]), st.text(), st.text())
def test_no_text_breaks_the_reader(kind: str, wanted: str, answer: str) -> None:
    stated(Claim(kind, wanted), answer)


@given(st.text())
def test_a_promise_needs_its_exact_marker(answer: str) -> None:
    if stated(Claim("promise", "DONE"), answer):
        assert "<promise>DONE</promise>" in answer


def test_a_huge_answer_is_read_in_a_moment() -> None:
    assert not stated(Claim("promise", "DONE"), "I will not say <promise>DONE</promise> yet. " * 5_000)
