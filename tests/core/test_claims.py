"""What counts as a claim, and what is only talk about one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core import prompts
from ralph.core.claims import Claim, Reading, Sighting, echoes, read, sighted, stated
from ralph.core.model import Failure, Iteration, Snapshot, Turn
from ralph.testing import a_run

VERIFIED = Reading(verified=True)

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
    ("tag", "COMPLETE", "<promise>COMPLETE</promise>"),
    ("tag", "COMPLETE", "All of it works. <status>COMPLETE</status>"),
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
def test_a_plain_statement_is_a_claim_where_something_verifies(kind: str, text: str, answer: str) -> None:
    assert stated(Claim(kind, text), answer, VERIFIED)


@pytest.mark.parametrize(("kind", "text", "answer"), TALK)
def test_talk_about_a_claim_is_not_one(kind: str, text: str, answer: str) -> None:
    assert not stated(Claim(kind, text), answer)
    assert not stated(Claim(kind, text), answer, VERIFIED)


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
    crashed = Turn(text="STOP", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert not sighted(Claim("word", "STOP"), a_run(crashed))


def test_only_the_last_turn_can_claim() -> None:
    assert not sighted(Claim("word", "STOP"), a_run("STOP", "still working"))
    assert not sighted(Claim("word", "STOP"), a_run("STOP").retrying(Turn(text="")))


def test_a_done_file_is_a_claim_before_the_first_turn_and_after_a_crash() -> None:
    crashed = Turn(text="", exit_code=1, failure=Failure("ordinary", "exit code 1"))
    assert sighted(Claim("file", "DONE"), a_run(seen=Snapshot(done_file=True))) == Sighting()
    assert sighted(Claim("file", "DONE"), a_run(crashed, seen=Snapshot(done_file=True))) == Sighting()


def test_green_checks_claim_only_if_there_are_any() -> None:
    assert not sighted(Claim("checks"), a_run("fine"))
    assert not sighted(Claim("checks"), a_run(Iteration(number=1, turn=Turn(text="fine"), checked=False)))


@given(st.sampled_from(["word", "response", "suffix", "promise", "tag"]), st.text(), st.text())
def test_no_text_breaks_the_reader(kind: str, wanted: str, answer: str) -> None:
    stated(Claim(kind, wanted), answer)


@given(st.text())
def test_a_promise_needs_its_exact_marker(answer: str) -> None:
    if stated(Claim("promise", "DONE"), answer):
        assert "<promise>DONE</promise>" in answer


UNMISTAKABLE = [
    "{M}",
    "All tests pass.\n\n{M}\n",
    "All tests pass. {M}",
    "Finished: {M}",
    "**Status:** {M}",
    "✅ {M} 🎉",
    "```\n{M}\n```",
    "------------\n{M}\n------------",
    "{}{M}{}".replace("{}", "-" * 45 + " ", 1).replace("{}", " " + "-" * 45),
]
MISTAKABLE = [
    ("it is not on the last line", "{M}\n\nI also cleaned up."),
    ("it is not alone on the last line", "Since all tests pass, I can now output {M}"),
    ("it is an item of a list", "Left:\n- docs\n- {M}"),
    ("it is an item of a list", "1. {M}"),
    ("it is quoted", 'You asked for "{M}"'),
    ("it is quoted", "> {M}"),
    ("it is quoted", "```\nAll is well.\n{M}\n```"),
    ("its sentence only talks about it", "My last line will be:\n\n{M}"),
]


@pytest.mark.parametrize("answer", UNMISTAKABLE)
@pytest.mark.parametrize("kind", ["promise", "response", "tag"])
def test_an_unmistakable_claim_needs_no_gate(kind: str, answer: str) -> None:
    claim = Claim(kind, "DONE")
    assert stated(claim, answer.replace("{M}", claim.marker))


@pytest.mark.parametrize(("why", "answer"), MISTAKABLE)
@pytest.mark.parametrize("kind", ["promise", "response", "tag", "word"])
def test_where_nothing_verifies_a_claim_must_be_unmistakable(kind: str, why: str, answer: str) -> None:
    claim = Claim(kind, "DONE")
    found = read(claim, answer.replace("{M}", claim.marker))
    assert found is None if kind == "word" and '"' in answer else found is not None and found.doubt == why


def test_where_something_verifies_a_claim_may_stand_where_its_sentence_states_it() -> None:
    claim = Claim("promise", "DONE")
    for answer in ("<promise>DONE</promise>\n\nI also cleaned up.", "Since all tests pass, I can now output {M}"):
        assert stated(claim, answer.replace("{M}", claim.marker), VERIFIED)
        assert not stated(claim, answer.replace("{M}", claim.marker))


PROMPT = "Fix the parser.\nWhen it works, answer with this line:\n\n<response>DONE</response>\n\nRun `make test` first."


@pytest.mark.parametrize("reading", [Reading(), VERIFIED])
@pytest.mark.parametrize(
    "answer",
    [
        PROMPT,
        "The task is:\n\n" + PROMPT,
        "> When it works, answer with this line:\n>\n> `<response>DONE</response>`",
        "I was told this:\n  when it works, answer with this line:\n  <response>DONE</response>\n",
    ],
)
def test_lines_of_the_prompt_with_their_neighbours_are_no_claim(answer: str, reading: Reading) -> None:
    found = read(Claim("response", "DONE"), answer, reading, echoes(answer, PROMPT))
    assert found is not None
    assert found.doubt


def test_a_line_of_the_prompt_among_words_of_its_own_is_a_claim() -> None:
    for answer in ("<response>DONE</response>", "Fix the parser.\n\nDid so.\n\n<response>DONE</response>"):
        assert stated(Claim("response", "DONE"), answer)
        assert not read(Claim("response", "DONE"), answer, Reading(), echoes(answer, PROMPT)).doubt  # type: ignore[union-attr]


def test_what_the_agent_said_before_is_no_echo_when_it_says_it_again() -> None:
    answer = "All tests pass.\n\nSTOP"
    prompt = prompts.goal(
        prompts.Brief(
            goal="the goal", number=2, last=Iteration(number=1, turn=Turn(text=answer)), claim=Claim("word", "STOP")
        )
    )
    assert echoes(answer, prompt)
    assert not echoes(answer, prompts.asked(prompt, Iteration(number=1, turn=Turn(text=answer))))


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
def test_a_marker_in_another_dress_is_seen_though_it_does_not_count(kind: str, answer: str) -> None:
    found = read(Claim(kind, "STOP"), answer)
    assert found is not None
    assert found.doubt == "it is not written to the letter"


@pytest.mark.parametrize("answer", ["It runs non-stop.", "Drive safely and stop.", "It is NONSTOP", 'Type "STOP"'])
def test_an_ordinary_sentence_is_no_marker_in_another_dress(answer: str) -> None:
    assert read(Claim("word", "STOP"), answer) is None


def test_a_response_that_is_not_the_first_does_not_count() -> None:
    found = read(Claim("response", "DONE"), "<response>WIP</response>\n\n<response>DONE</response>")
    assert found is not None
    assert found.doubt == "another response stands before it"


def test_a_suffix_ignores_case_and_only_the_very_end_counts() -> None:
    assert stated(Claim("suffix", "DONE"), "All of it works. Done")
    assert stated(Claim("suffix", "DONE"), "All tasks are done", VERIFIED)
    assert read(Claim("suffix", "DONE"), "done, more or less") is None
    for dressed in ("All of it works.\n\n**DONE**", "It works.\n`DONE`", "It works:\n```\nDONE\n```\n", "DONE 🎉"):
        assert stated(Claim("suffix", "DONE"), dressed), dressed
    for other in ("DONE?", "DONE ❌", "~~DONE~~", "**UNDONE**"):
        assert not stated(Claim("suffix", "DONE"), other), other
    assert not stated(Claim("suffix", "DONE"), "**DONE**", Reading(anywhere=True)), "to the letter"


@pytest.mark.parametrize("reading", [Reading(), VERIFIED, Reading(strict=True)])
@pytest.mark.parametrize("kind", ["word", "response", "suffix", "promise", "tag"])
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
def test_a_huge_answer_is_read_in_a_moment(kind: str, piece: str, reading: Reading) -> None:
    claim = Claim(kind, "DONE")
    piece = piece.replace("{M}", claim.marker)
    answer = piece * (100_000 // len(piece))
    start = time.process_time()
    for text in (answer, f"{answer}{claim.marker}", f"{claim.marker}{answer}"):
        read(claim, text, reading)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "said",
    [
        "TODO.md 中没有未完成的任务。\n\n{}",
        "一切正常，包括以前不能用的部分：{}",
        "예전에 안 되던 것까지 모두 동작합니다: {}",
        "## まとめ\n- 新しいエンドポイント\n- 文書を更新\n\n{}",
        "| file | change |\n|---|---|\n| a.py | better output |\n\n{}",
        "What changed:\n- better error output\n\n{}",
        "Endstand: {}",
        "There is no unfinished task.\n\n{}",
        "Would you like me to write more tests?\n\n{}",
        "Is there anything else that I should add?\n\n{}",
    ],
)
@pytest.mark.parametrize("verified", [False, True])
def test_what_denies_nothing_and_leads_up_to_nothing_does_not_spoil_a_claim(said: str, verified: bool) -> None:
    assert stated(Claim("promise", "DONE"), said.format("<promise>DONE</promise>"), Reading(verified=verified))


@pytest.mark.parametrize(
    "behind",
    [
        "The mistake was actually in the cache.",
        "Die Funktion gibt jetzt None zurück.",
        "Users can withdraw money again.",
        "Wait times went down by 20 %.",
        "Sorry for the long diff.",
        "It compares words and may ignore the case.",
        "这个按钮现在可以取消任务。",
    ],
)
def test_a_summary_behind_a_claim_does_not_take_it_back(behind: str) -> None:
    assert stated(Claim("promise", "DONE"), f"<promise>DONE</promise>\n\n{behind}", VERIFIED)


@pytest.mark.parametrize(
    "behind",
    ["Wait, one test fails.", "Hm, sorry, that was wrong.", "Moment, das war zu früh.", "All but one: two still fail."],
)
def test_a_claim_that_the_next_sentence_takes_back_is_none(behind: str) -> None:
    assert not stated(Claim("promise", "DONE"), f"<promise>DONE</promise>\n\n{behind}", VERIFIED)


ASKED_FOR = [
    "As requested:",
    "As instructed, on the last line:",
    "I restate my claim in the required form:",
    "Wie verlangt, allein auf der letzten Zeile:",
    "Entendido, lo repito en la forma correcta:",
    "İstendiği gibi, son satırda tek başına:",
    "ご指示のとおり、最後の行に単独で書きます:",
    "按要求单独放在最后一行:",
    "كما طلبت، وحده في السطر الأخير:",
]


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("said", ASKED_FOR)
def test_who_was_told_how_to_claim_may_say_that_it_does_as_told(said: str, verified: bool) -> None:
    claim = Claim("promise", "DONE")
    assert stated(claim, f"{said}\n\n{claim.marker}", Reading(verified=verified))


@pytest.mark.parametrize(
    "said",
    ["As instructed, I will output this when it works:", "As required, I must answer with:", "This time I can't:"],
)
def test_who_says_that_it_has_to_claim_later_does_not_claim(said: str) -> None:
    claim = Claim("promise", "DONE")
    assert not stated(claim, f"{said}\n\n{claim.marker}")


@pytest.mark.parametrize(
    "said",
    [
        "Alleen als `make check` met 0 eindigt: {}",
        "Solo se `make check` termina con 0: {}",
        "- print\n{}",
        "Print:\n\n{}",
        "Do you want me to end with this line?\n\n{}",
        "The last line after the fix will read\n\n```text\n{}\n```",
        "`grep -rn marker .` says:\n\n    loop.sh:12: {}",
        "i. fix\nii. test\niii. {}",
        "⚠️ {}",
    ],
)
def test_a_condition_a_command_or_a_question_that_leads_up_to_it_does(said: str) -> None:
    assert not stated(Claim("promise", "DONE"), said.format("<promise>DONE</promise>"))
