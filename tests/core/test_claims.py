"""Where a marker must be to count as a claim, and where it never counts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core import prompts
from ralph.core.claims import Claim, FoundMarker, Reading, find_claim, find_echoes, find_marker, makes_claim
from ralph.core.model import Failure, Iteration, Snapshot, Turn
from ralph.testing import a_run

CHECKED = Reading(verified=True)
KINDS = ["word", "response", "suffix", "promise", "tag"]

ALWAYS = [
    "{M}",
    "All tests pass.\n{M}",
    "The charm is ready to merge.\n\n{M}\n",
    "All tests pass. {M}",
    "All of it works! {M}",
    "任务已完成。 {M}",
    "  {M}  ",
    "\x1b[1;32m{M}\x1b[0m\r\n",
    "✅ {M} 🎉",
    "# {M}",
    "```\n{M}\n```",
    "Fixed:\n\n- the parser\n- the docs\n\n{M}",
    "| file | change |\n|---|---|\n| a.py | fixed |\n\n{M}",
    "## Summary\n\nFixed the parser\n\n{M}",
    "All tests pass (214 of 214).\n{M}",
    "Would you like me to write more tests?\n\n{M}",
]
ALWAYS_UNLESS_A_WORD = ["**{M}**", "`{M}`", "{M}.", "All tests pass. `{M}`.", "任务已完成。{M}"]
WITH_A_CHECK = [
    ("it is not on the last line", "{M}\n\nI also cleaned up."),
    ("it is not alone on its line", "Finished: {M}"),
    ("it is not alone on its line", "Every test passes, {M}"),
    ("the line above leads up to it", "My last line will be:\n\n{M}"),
    ("the line above leads up to it", "The result –\n\n{M}"),
    ("the line above leads up to it", "I cannot honestly write\n{M}"),
    ("the line above leads up to it", "**Status:**\n\n```text\n{M}\n```"),
]
NEVER = [
    ("it is not alone on its line", "Since all tests pass, I can now output {M}"),
    ("it is not alone on its line", "I will not output {M} yet"),
    ("it is not alone on its line", "Nearly... {M}"),
    ("it is not alone on its line", "All tests pass. {M} ..."),
    ("it is quoted", "> {M}"),
    ("it is quoted", "| status | all is well. {M}"),
    ("it is quoted", "~~All tests pass. {M}"),
    ("it is quoted", '{"result": "All tests pass.\n\n{M}\n"}'),
    ("it is in a list", "Left:\n- docs\n- {M}"),
    ("it is in a list", "- [x] {M}"),
    ("it is in a list", "1. {M}"),
    ("it is in a list", "iii. {M}"),
    ("it is in a list", "- The last step.\n  {M}"),
    ("it is part of a longer code block", "```\nAll is well.\n{M}\n```"),
    ("it is part of a longer code block", "~~~text\n{M}\nThe end.\n~~~"),
]


@pytest.mark.parametrize("answer", ALWAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_at_the_end_counts_with_and_without_a_check(kind: str, answer: str) -> None:
    claim = Claim(kind, "DONE")
    assert makes_claim(claim, answer.replace("{M}", claim.marker))
    assert makes_claim(claim, answer.replace("{M}", claim.marker), CHECKED)


@pytest.mark.parametrize("answer", ALWAYS_UNLESS_A_WORD)
@pytest.mark.parametrize("kind", KINDS)
def test_decoration_is_ignored_except_around_a_bare_word(kind: str, answer: str) -> None:
    claim = Claim(kind, "DONE")
    assert makes_claim(claim, answer.replace("{M}", claim.marker)) is (kind != "word")


@pytest.mark.parametrize(("why", "answer"), WITH_A_CHECK)
@pytest.mark.parametrize("kind", ["promise", "response", "tag", "word"])
def test_a_check_makes_the_place_matter_less(kind: str, why: str, answer: str) -> None:
    claim = Claim(kind, "DONE")
    found = find_marker(claim, answer.replace("{M}", claim.marker))
    assert found is not None
    assert found.doubt == why
    assert makes_claim(claim, answer.replace("{M}", claim.marker), CHECKED)


@pytest.mark.parametrize("reading", [Reading(), CHECKED])
@pytest.mark.parametrize(("why", "answer"), NEVER)
@pytest.mark.parametrize("kind", ["promise", "response", "tag", "word"])
def test_a_marker_in_a_sentence_quotation_list_or_code_never_counts(
    kind: str, why: str, answer: str, reading: Reading
) -> None:
    claim = Claim(kind, "DONE")
    found = find_marker(claim, answer.replace("{M}", claim.marker), reading)
    assert found is not None
    assert found.doubt == why


def test_horizontal_lines_around_a_marker_are_ignored() -> None:
    assert makes_claim(Claim("word", "STOP"), "------------\nSTOP\n------------")


@pytest.mark.parametrize("answer", ["<status>COMPLETE</status>", "<COMPLETE>", "It works. <b>COMPLETE</b>"])
def test_a_pair_of_tags_around_a_marker_is_ignored(answer: str) -> None:
    assert makes_claim(Claim("tag", "COMPLETE"), answer)


@pytest.mark.parametrize("answer", ["<del>COMPLETE</del>", "<s>COMPLETE</s>", "~~COMPLETE~~", '"COMPLETE"'])
def test_a_marker_that_is_struck_out_or_in_quotation_marks_never_counts(answer: str) -> None:
    assert not makes_claim(Claim("tag", "COMPLETE"), answer)
    assert not makes_claim(Claim("tag", "COMPLETE"), answer, CHECKED)


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("word", "STOP", "Tests STOPPED early due to a panic — investigating."),
        ("word", "STOP", "stop"),
        ("response", "DONE", "<response>DONE.</response>"),
        ("suffix", "DONE", "UNDONE"),
        ("suffix", "DONE", "DONE\nand more"),
        ("suffix", "DONE", "DONE?"),
        ("promise", "DONE", "<promise>done</promise>"),
        ("promise", "DONE", "<promise> DONE </promise>"),
        ("tag", "COMPLETE", "INCOMPLETE"),
        ("tag", "COMPLETE", "NON-COMPLETE"),
        ("tag", "COMPLETE", "90% COMPLETE"),
    ],
)
def test_other_words_are_not_the_marker(kind: str, text: str, answer: str) -> None:
    assert not makes_claim(Claim(kind, text), answer)
    assert not makes_claim(Claim(kind, text), answer, CHECKED)


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("response", "DONE", "All of it works.\n\n<RESPONSE>\n done </Response>"),
        ("response", "DONE", "I will not say <response>DONE</response> yet.\nNow I do.\n<response>DONE</response>"),
        ("suffix", "DONE", "All of it works. Done"),
        ("promise", 'a*b "c"', 'Finished. <promise>a*b "c"</promise>'),
        ("promise", "TASK COMPLETE", "Finished. <promise>TASK COMPLETE</promise>"),
    ],
)
def test_every_kind_of_claim_has_its_own_spelling(kind: str, text: str, answer: str) -> None:
    assert makes_claim(Claim(kind, text), answer)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_claim_never_matches(kind: str) -> None:
    for answer in ("", " ", "<response></response>", "<promise></promise>", "anything"):
        assert not makes_claim(Claim(kind, ""), answer)
        assert not makes_claim(Claim(kind, "  "), answer)


def test_a_strict_word_counts_only_on_a_line_by_itself() -> None:
    strict = Reading(strict=True)
    assert makes_claim(Claim("word", "STOP"), "Fine.\n  STOP \n", strict)
    assert not makes_claim(Claim("word", "STOP"), "All tests pass. STOP", strict)


def test_claim_anywhere_restores_the_literal_rules_of_the_seeds() -> None:
    anywhere = Reading(anywhere=True)
    assert makes_claim(Claim("promise", "DONE"), "I will not output <promise>DONE</promise> yet", anywhere)
    assert makes_claim(Claim("word", "STOP"), "please do not STOP yet", anywhere)
    assert not makes_claim(Claim("tag", "COMPLETE"), "INCOMPLETE", anywhere)
    assert not makes_claim(Claim("suffix", "DONE"), "**DONE**", anywhere)


def test_only_the_first_response_counts() -> None:
    for answer in ("<response>WIP</response>\n\n<response>DONE</response>", "Hm.\n<response>WIP</response>\n\n{M}"):
        found = find_marker(Claim("response", "DONE"), answer.replace("{M}", "<response>DONE</response>"))
        assert found is not None
        assert found.doubt == "another response comes before it"


def test_a_claim_in_a_failed_turn_does_not_count() -> None:
    crashed = Turn(text="STOP", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert not find_claim(Claim("word", "STOP"), a_run(crashed))


def test_only_the_last_turn_can_claim() -> None:
    assert not find_claim(Claim("word", "STOP"), a_run("STOP", "still working"))
    assert not find_claim(Claim("word", "STOP"), a_run("STOP").retrying(Turn(text="")))


def test_earlier_messages_of_the_last_turn_can_claim() -> None:
    turn = Turn(text="I also updated the docs.", earlier=("I will STOP soon", "All tests pass.\n\nSTOP"))
    assert find_claim(Claim("word", "STOP"), a_run(turn)) == FoundMarker("STOP", span=(17, 21))
    found = find_claim(Claim("word", "STOP"), a_run(Turn(text="I am not done.", earlier=("I will STOP soon",))))
    assert found is not None
    assert found.doubt


def test_a_done_file_is_a_claim_before_the_first_turn_and_after_a_crash() -> None:
    crashed = Turn(text="", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert find_claim(Claim("file", "DONE"), a_run(seen=Snapshot(done_file=True))) == FoundMarker()
    assert find_claim(Claim("file", "DONE"), a_run(crashed, seen=Snapshot(done_file=True))) == FoundMarker()


def test_green_checks_claim_only_if_there_are_any() -> None:
    assert not find_claim(Claim("checks"), a_run("fine"))
    assert not find_claim(Claim("checks"), a_run(Iteration(number=1, turn=Turn(text="fine"), checked=False)))


@given(st.sampled_from(KINDS), st.text(), st.text())
def test_no_text_breaks_the_reader(kind: str, wanted: str, answer: str) -> None:
    makes_claim(Claim(kind, wanted), answer)


@given(st.text())
def test_a_promise_needs_its_exact_marker(answer: str) -> None:
    if makes_claim(Claim("promise", "DONE"), answer):
        assert "<promise>DONE</promise>" in answer


PROMPT = "Fix the parser.\nWhen it works, answer with this line:\n\n<response>DONE</response>\n\nRun `make test` first."


@pytest.mark.parametrize("reading", [Reading(), CHECKED])
@pytest.mark.parametrize(
    "answer",
    [
        PROMPT,
        "The task is:\n\n" + PROMPT,
        "> When it works, answer with this line:\n>\n> `<response>DONE</response>`",
        "I was told this:\n  when it works, answer with this line:\n  <response>DONE</response>\n",
    ],
)
def test_consecutive_lines_of_the_prompt_are_not_a_claim(answer: str, reading: Reading) -> None:
    found = find_marker(Claim("response", "DONE"), answer, reading, find_echoes(answer, PROMPT))
    assert found is not None
    assert found.doubt


def test_a_single_line_of_the_prompt_is_a_claim() -> None:
    for answer in ("<response>DONE</response>", "Fix the parser.\n\nDid so.\n\n<response>DONE</response>"):
        assert makes_claim(Claim("response", "DONE"), answer)
        assert not find_marker(Claim("response", "DONE"), answer, Reading(), find_echoes(answer, PROMPT)).doubt  # type: ignore[union-attr]


def test_an_agent_may_repeat_its_own_earlier_answer() -> None:
    answer = "All tests pass.\n\nSTOP"
    prompt = prompts.goal(prompts.Brief(run=a_run(answer), goal="the goal", claim=Claim("word", "STOP")))
    assert find_echoes(answer, prompt)
    assert not find_echoes(answer, prompts.without_answer(prompt, Iteration(number=1, turn=Turn(text=answer))))


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("word", "**STOP**"),
        ("word", "All is done.\n\nstop."),
        ("promise", "<promise> STOP </promise>"),
        ("promise", "`<promise>stop</promise>`"),
        ("tag", "Stop!"),
        ("response", "<Response>STOP!</Response>"),
        ("promise", "All is done. <promise> STOP </promise>"),
        ("word", "The work is finished, hence STOP."),
        ("word", "任务完成。STOP"),
        ("word", "STOP. All of it works, and here is what I did:\n\n- the parser"),
        ("word", "All of it works, **STOP**!\n\nThe parser was at fault."),
        ("suffix", "STOP. The parser was at fault."),
    ],
)
def test_a_marker_that_is_spelled_differently_is_reported(kind: str, answer: str) -> None:
    found = find_marker(Claim(kind, "STOP"), answer)
    assert found is not None
    assert found.doubt == "it is not spelled exactly"


@pytest.mark.parametrize("answer", ["It runs non-stop.", "Drive safely and stop.", "It is NONSTOP", 'Type "STOP"'])
def test_an_ordinary_sentence_is_not_reported(answer: str) -> None:
    assert find_marker(Claim("word", "STOP"), answer) is None


@pytest.mark.slow
@pytest.mark.parametrize("reading", [Reading(), CHECKED, Reading(strict=True)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "piece",
    [
        "I will not say {M} yet. ",
        "{M} ",
        "{M}\n",
        "- {M}\n",
        "<response>",
        "-",
        "\n",
        " ",
        "```\n{M}\n",
        "**{M}** 🎉",
        '"',
        "1.",
    ],
)
def test_a_huge_answer_is_read_in_two_seconds(kind: str, piece: str, reading: Reading) -> None:
    claim = Claim(kind, "DONE")
    piece = piece.replace("{M}", claim.marker)
    answer = piece * (100_000 // len(piece))
    start = time.process_time()
    for text in (answer, f"{answer}{claim.marker}", f"{claim.marker}{answer}"):
        find_marker(claim, text, reading)
    assert time.process_time() - start < 2
