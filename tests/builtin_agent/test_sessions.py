"""Conversations that are resumed later, or become too long for the model's context."""

import errno
import json
import os

import pytest
from script import Call, Fail, Say, Tokens, shell


def test_a_session_is_continued(play):
    first = play(shell("echo seen"), Say("I have begun."), prompt="Begin.")
    again = play(Say("I go on."), prompt="Go on.", words=("--resume", first.session))
    assert again.answer == "I go on."
    assert again.session == first.session
    before = first.stage.asked[-1].messages
    sent = again.stage.asked[0].messages
    assert sent[: len(before)] == before
    assert [pair for pair in sent[len(before) :] if pair[1]] == [("assistant", "I have begun."), ("user", "Go on.")]


def test_a_session_that_was_killed_during_a_tool_can_be_resumed(play, state):
    first = play(shell("echo seen"), Say("ok"))
    [file] = (state / "sessions").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text())[:2]))
    again = play(Say("I go on."), words=("--resume", first.session))
    assert again.answer == "I go on."
    assert again.stage.asked[0].results == ["interrupted: it may be half done"]


@pytest.mark.parametrize("name", ["never-was", "../../etc/passwd", "a/b", ""])
def test_a_missing_session_is_an_error(play, name, workspace):
    ran = play(Say("ok"), words=("--resume", name or " "))
    assert (ran.code, ran.stdout) == (2, "")
    assert "no session found" in ran.stderr


def test_session_files_are_readable_only_by_their_owner(play, state):
    play(Say("ok"))
    [file] = (state / "sessions").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_old_sessions_are_deleted(play, state):
    first, second = play(Say("ok")), None
    kept = state / "sessions" / f"{first.session}.json"
    os.utime(kept, (0, 0))
    second = play(Say("ok"))
    assert [file.stem for file in (state / "sessions").iterdir()] == [second.session]


def test_the_agent_works_even_if_its_home_is_read_only(play, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    assert play(Say("ok")).answer == "ok"


def test_a_turn_ends_at_max_turns(play):
    ran = play(shell("echo 1"), shell("echo 2"), shell("echo 3"), words=("--max-turns", "2"))
    assert ran.result["subtype"] == "error_max_turns"
    assert len(ran.stage.asked) == 2


# A context that fills up: 10,000 tokens, of which the server counts what the script says


SMALL = ("--context", "10000")


def long(tokens: int) -> Call:
    return Call("shell", "seq -s ' ' 1000", tokens=Tokens(tokens, 10))


def test_old_tool_output_is_shortened_as_often_as_needed(play):
    ran = play(*[long(n) for n in (1000, 2000, 3000, 4000, 7900, 4000, 5000, 6000, 7900)], Say("ok"), words=SMALL)
    assert ran.answer == "ok"
    assert len(ran.of("system", "context_shortened")) > 1
    shortened = [len(result) for result in ran.stage.asked[-1].results]
    assert shortened[0] < 500 < shortened[-1]


def test_a_turn_whose_context_is_full_ends_without_a_claim(play):
    ran = play(long(9000), words=SMALL)
    assert ran.answer.startswith("The context is full")


def test_a_session_whose_context_was_full_continues_with_an_empty_one(play):
    first = play(long(9000), words=SMALL, prompt="Goal.")
    again = play(Say("ok"), words=("--resume", first.session), prompt="Continue.")
    assert again.session == first.session
    assert [text for role, text in again.stage.asked[0].messages if role == "user"] == ["Continue."]


OPENAI = Fail(400, "This model's maximum context length is 8192 tokens", "context_length_exceeded")
TOO_LONG = {
    "chat": [OPENAI, Fail(400, "the request exceeds the available context size, try increasing it")],
    "responses": [OPENAI],
    "messages": [Fail(400, "prompt is too long: 210000 tokens > 200000 maximum")],
    "google": [Fail(400, "The input token count (1500000) exceeds the maximum number of tokens allowed (1048576).")],
}


def test_the_conversation_is_shortened_if_the_server_refuses_its_length(play, wire):
    ran = play(*[long(0)] * 5, TOO_LONG[wire][-1], Say("ok"))
    assert ran.answer == "ok"
    assert len(ran.stage.asked[-1].results[0]) < 500


def test_a_prompt_that_never_fits_is_an_error(play, wire):
    ran = play(TOO_LONG[wire][0])
    assert "longer than what the model can read" in ran.trouble


def test_the_agent_works_even_if_the_disk_is_full(tmp_path, monkeypatch):
    from ralph.builtin_agent.working import Conversation

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ralph.files.write_file", fail)
    conversation = Conversation("full", tmp_path / "full.json", 1000)
    conversation.add_prompt("Do it.")
    assert len(conversation.messages) == 1
