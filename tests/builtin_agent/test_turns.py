"""What users can rely on when the built-in agent takes a turn, with every protocol."""

import json
import random
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import dialects
import pytest
from script import Broken, Call, Cut, Endless, Fail, Forever, Other, Say, Tokens, Torn, Uses, shell, write

from ralph.agents.builtin import PROVIDERS

ROOT = Path(__file__).parents[2]
KEY = "sk-made-up-for-the-tests"
DONE = "It is made.\n<response>DONE</response>"


def test_a_turn_works_with_every_tool_and_ends_with_an_answer(play, workspace):
    ran = play(
        write("made/a.txt", "one\ntwo\n", text="First the file."),
        Uses((("read", {"path": "made/a.txt", "offset": 2, "limit": 1}),)),
        Uses((("edit", {"path": "made/a.txt", "old": "two", "new": "three"}),)),
        shell("cat made/a.txt"),
        Say(DONE),
    )
    assert ran.answer == DONE
    assert (workspace / "made/a.txt").read_text() == "one\nthree\n"
    assert [block["content"] for block in ran.blocks][1:] == ["two", "edited made/a.txt, line 2", "one\nthree"]
    assert not any(block["is_error"] for block in ran.blocks)
    assert [asked.results[-1] for asked in ran.stage.asked[2:]] == ["two", "edited made/a.txt, line 2", "one\nthree"]


def test_several_calls_in_a_reply_run_in_order(play, workspace):
    calls = tuple(("bash", {"command": f"echo {n} >> order; wc -l < order"}) for n in range(5))
    ran = play(Uses(calls), Say("Counted."))
    assert ran.answer == "Counted."
    assert (workspace / "order").read_text().split() == list("01234")
    assert ran.stage.asked[1].results == list("12345")


def test_text_next_to_a_call_is_not_the_answer(play):
    ran = play(shell("true", text=DONE), Say("There is more to do."))
    assert ran.answer == "There is more to do."


def test_an_empty_reply_is_an_empty_answer(play):
    ran = play(shell("true", text=DONE), Say(""))
    assert ran.answer == ""


def test_the_first_request_is_small_and_contains_the_prompt_verbatim(play):
    prompt = "- make «straße» 🎉 $(touch oops) {{x}} \\n ---\nsecond line é"
    ran = play(Say("ok"), prompt=prompt)
    assert ran.stage.asked[0].prompt == prompt
    body = json.loads(ran.stage.bodies[0])
    assert len(json.dumps(body)) - len(json.dumps(prompt)) <= 5000
    assert len(ran.stage.asked[0].system) <= 2500
    assert set(ran.stage.asked[0].tools) == {"bash", "read", "write", "edit"}


def test_all_requests_of_a_turn_begin_alike_so_that_they_are_cached(play):
    ran = play(shell("echo 1"), shell("echo 2"), Say("ok"))
    sent = [asked.messages for asked in ran.stage.asked]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
    assert len({json.dumps(json.loads(body).get("tools")) for body in ran.stage.bodies}) == 1


def test_usage_is_reported_for_each_reply_and_for_the_turn(play):
    ran = play(Call("shell", "true", tokens=Tokens(1000, 50, 600)), Say("ok", Tokens(1200, 30, 1000)))
    told = [line["message"]["usage"] for line in ran.of("assistant")]
    assert [used["input_tokens"] for used in told] == [400, 200]
    assert [used["cache_read_input_tokens"] for used in told] == [600, 1000]
    used = ran.result["usage"]
    assert (used["input_tokens"], used["output_tokens"], used["cache_read_input_tokens"]) == (600, 80, 1600)


def test_every_type_of_line_that_it_prints_is_in_the_guide():
    guide = (ROOT / "docs" / "guides" / "models.md").read_text()
    source = (ROOT / "src/ralph/builtin_agent/working.py").read_text()
    printed = re.findall(r'_line\("(\w+)"|subtype="(\w+)"|notices\("(\w+)"|_result\("(\w+)"', source)
    names = {name for found in printed for name in found if name}
    assert len(names) > 8
    assert {name for name in names if f"`{name}`" not in guide} == set()


@pytest.mark.parametrize("wire", ["chat"])
def test_keep_alive_lines_are_printed_during_a_long_reply(play, wire, monkeypatch):
    from ralph.builtin_agent import working

    monkeypatch.setattr(working, "_KEEP_ALIVE", 0.01)
    ran = play(Endless("word " * 10), words=("--max-output", "500"))
    assert ran.of("keep_alive")


def test_the_maximum_length_of_a_reply_is_sent_as_each_protocol_names_it(play, wire):
    ran = play(Say("ok"), words=("--max-output", "777"))
    body = json.loads(ran.stage.bodies[0])
    said = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
    assert (body["generationConfig"]["maxOutputTokens"] if wire == "google" else body[said[wire]]) == 777


@pytest.mark.parametrize("wire", ["messages"])
def test_the_cache_is_requested_if_the_provider_needs_that(play, wire):
    ran = play(shell("true"), Say("ok"))
    assert all(b"cache_control" in body for body in ran.stage.bodies)


def test_a_failed_tool_is_reported_and_the_turn_continues(play):
    ran = play(shell("echo before; exit 3"), Say("It failed."))
    assert ran.answer == "It failed."
    assert [(block["is_error"], block["content"]) for block in ran.blocks] == [(True, "before\n[exit code 3]")]


def test_commands_of_the_model_do_not_see_the_key(play):
    ran = play(shell("env"), Say("ok"))
    assert KEY not in ran.stdout
    assert KEY in str(ran.stage.headers[0])


def test_half_a_character_is_replaced(play):
    ran = play(Uses((("bash", '{"command": "echo \\ud83d"}'),), text="Half: \ud83d"), Say("ok"))
    assert ran.answer == "ok"


@pytest.mark.parametrize(("provider", "wire"), [(name, one.wire) for name, one in PROVIDERS.items()])
def test_a_model_of_every_provider_gets_requests_and_calls_tools(play, provider, wire):
    ran = play(shell("echo seen"), Say("ok"), words=("--model", f"{provider}:openai/lab"))
    assert ran.answer == "ok"
    assert ran.stage.asked[1].results == ["seen"]
    if provider == "mistral":  # it refuses every request for token counts
        assert json.loads(ran.stage.bodies[0])["stream_options"] == {}


@pytest.mark.parametrize("wire", ["chat"])
def test_an_impossible_model_name_is_reported_in_one_line(play, wire):
    ran = play(words=("--model", "openrouter:lab"))
    assert (ran.code, ran.stdout) == (2, "")
    assert "cannot use openrouter:lab" in ran.stderr


def test_an_unreachable_server_is_named_and_is_a_transient_failure(play):
    ran = play(words=("--url", "http://127.0.0.1:9"))
    assert ran.trouble.startswith("API Error: connection failed: http://127.0.0.1:9: ")
    assert ran.result["api_error_status"] is None
    assert len(ran.of("system", "api_retry")) == 4


# Replies that do not count


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_is_retried_if_the_stream_ends_too_early(play, chunked):
    ran = play(Torn(DONE + " is not what I say", 300, chunked), Say("More to do."))
    assert ran.answer == "More to do."
    assert len(ran.stage.asked) == 2
    assert len(ran.of("system", "api_retry")) == 1


def test_a_request_is_retried_after_a_lost_connection(play):
    ran = play(Cut(DONE), Cut(), Say("More to do."))
    assert ran.answer == "More to do."
    assert DONE not in [block.get("text") for line in ran.of("assistant") for block in line["message"]["content"]]


def test_a_request_is_retried_after_an_error_in_the_stream(play):
    ran = play(Broken(DONE), Say("More to do."))
    assert ran.answer == "More to do."
    assert "broken in the middle" in ran.of("system", "api_retry")[0]["error"]


def test_a_stream_that_is_incomplete_five_times_is_a_transient_failure(play):
    ran = play(Forever(Broken(DONE)))
    assert "broken in the middle" in ran.trouble
    assert len(ran.stage.asked) == 5


def test_a_reply_that_was_cut_at_its_maximum_length_is_not_an_answer(play):
    ran = play(Say(DONE, cut=True))
    assert "longer than max_output" in ran.trouble
    assert ran.result["subtype"] == "error_unfinished"


def test_an_endless_reply_ends_the_turn(play):
    ran = play(Endless(DONE * 100), words=("--max-output", "500"))
    assert "did not end" in ran.trouble


def test_an_endless_error_reply_is_read_only_up_to_a_limit(play):
    ran = play(Fail(400, "no " * 1_000_000), words=("--max-output", "500"))
    assert ran.result["api_error_status"] == 400
    assert len(ran.trouble) < 1_200_000


WAYS = {
    "chat": "v1/chat/completions",
    "responses": "v1/responses",
    "messages": "v1/messages",
    "google": "v1beta/models/lab:streamGenerateContent?alt=sse",
}


def test_a_redirect_is_not_followed_so_that_the_key_stays_with_its_host(play, server, wire):
    with server.stage(Say("ok")) as there:
        elsewhere = f"{there.url.replace('127.0.0.1', 'localhost')}/{WAYS[wire]}"
        ran = play(Forever(Fail(307, headers={"location": elsewhere})))
    assert ran.trouble
    assert KEY in str(ran.stage.headers)
    assert not there.headers


@pytest.mark.parametrize("body", [b"<html>It works!</html>", b'{"ok": true}', b""])
def test_a_server_with_another_protocol_is_named(play, body, wire):
    ran = play(Forever(Other(body, "application/json" if body.startswith(b"{") else "text/html")))
    assert f"does not speak the wire `{wire}`" in ran.trouble
    assert (ran.result["api_error_status"], len(ran.stage.asked)) == (404, 1)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_request_that_would_be_refused_again_is_not_retried(play, status):
    ran = play(Forever(Fail(status, "no such luck")))
    assert ran.trouble.startswith(f"API Error: {status} no such luck")
    assert ("LAB_KEY" in ran.trouble) == (status == 401)
    assert (ran.result["api_error_status"], len(ran.stage.asked)) == (status, 1)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_a_request_is_retried_after_a_transient_failure(play, status):
    ran = play(Fail(status, "try later", headers={"retry-after-ms": "1"}), Fail(status, "once more"), Say("ok"))
    assert ran.answer == "ok"
    assert [line["error_status"] for line in ran.of("system", "api_retry")] == [status, status]


def test_the_agent_waits_as_long_as_retry_after_says(play):
    began = time.monotonic()
    ran = play(Fail(429, "slow down", headers={"retry-after": "1"}), Say("ok"))
    assert ran.answer == "ok"
    assert time.monotonic() - began >= 0.9


def test_a_long_retry_after_ends_the_turn_as_a_limit_with_its_reset(play):
    ran = play(Forever(Fail(429, "quota used up", headers={"retry-after": "3600"})))
    assert "429 quota used up" in ran.trouble
    assert len(ran.stage.asked) == 1
    [limit] = ran.of("rate_limit_event")
    assert abs(limit["rate_limit_info"]["resetsAt"] - time.time() - 3600) < 60


def test_a_reply_that_breaks_off_at_any_byte_is_not_an_answer(asking, wire, monkeypatch):
    from ralph.builtin_agent import wires

    monkeypatch.setattr(dialects, "PIECE", 16)
    whole = "DONE is not what I will say before it is done. Then I say: DONE"

    async def each(stage: Any, ask: Any) -> None:
        assert await ask(Say(whole)) == whole
        spoken, seen = dialects.dialect(f"/{ENDS[wire]}"), stage.asked[0]
        events = list(spoken.stream(dialects.Reply(whole, (), Tokens()), seen))
        terminator = sum(map(len, events[: -spoken.ending]))
        for size in range(0, sum(map(len, events)), 10):
            try:
                answer = await ask(Torn(whole, size, chunked=size % 20 == 0))
            except wires.ModelError as refused:
                answer = f"refused with {refused.status}"
            assert answer == "refused with None" or (answer == whole and size > terminator), size

    asking(each)


MEANINGLESS = (b"7", b"null", b"[]", b'"x"', b"{}", b'{"choices": [{}]}', b"{")


def mutilated(lines: list[bytes], chance: random.Random) -> bytes:
    """A stream with changed bytes, and with lines that are doubled, lost or moved."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
            case 1:
                del lines[at]
            case 2:
                lines.insert(at, lines[chance.randrange(len(lines))])
            case 3:
                lines[at] = b"data: " + chance.choice(MEANINGLESS)
            case 4:
                changed = bytearray(lines[at] or b"x")
                changed[chance.randrange(len(changed))] = chance.randrange(32, 127)
                lines[at] = bytes(changed)
    return b"\n".join(lines)


def test_a_mutilated_reply_is_never_half_an_answer_and_never_crashes_the_agent(asking, wire):
    from ralph.builtin_agent import wires

    whole = "The answer is DONE."

    async def each(stage: Any, ask: Any) -> None:
        spoken = dialects.dialect(f"/{ENDS[wire]}")
        asked = spoken.asked("", {"messages": [], "model": "lab", "stream": True})
        stream = b"".join(spoken.stream(dialects.Reply(whole, (), Tokens()), asked))
        for seed in range(40):
            body = mutilated(stream.split(b"\n"), random.Random(seed))
            try:
                answer = await ask(Other(body, "text/event-stream"))
            except (wires.ModelError, wires.UnfinishedTurn):
                continue
            assert "DONE" in answer or len(answer) < len(whole) + 3, body

    asking(each)


ENDS = {"chat": "completions", "responses": "responses", "messages": "messages", "google": "generateContent"}


@pytest.mark.parametrize("wire", ["messages"])
def test_a_thought_is_sent_back_unchanged_with_its_signature(play, wire):
    """A model that thinks between two calls must get its signed thoughts back, or it refuses to continue."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}}
    head: dict[str, object] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "lab",
        "content": [],
        "stop_reason": None,
    }
    deltas = [
        {"type": "thinking_delta", "thinking": "First I look."},
        {"type": "signature_delta", "signature": "c2lnbmVk"},
        {"type": "input_json_delta", "partial_json": '{"command": "echo seen"}'},
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**head, "usage": {"input_tokens": 9, "output_tokens": 1}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas[:2]),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_delta", "index": 1, "delta": deltas[2]},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    body = b"".join(dialects.sse(event, event["type"]) for event in events)
    ran = play(Other(body, "text/event-stream"), Say("ok"))
    assert ran.answer == "ok"
    [thought] = [
        block
        for message in json.loads(ran.stage.bodies[1])["messages"]
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "thinking"
    ]
    assert (thought["thinking"], thought["signature"]) == ("First I look.", "c2lnbmVk")
    assert "First I look." not in ran.answer


@pytest.mark.parametrize("wire", ["google"])
def test_the_signature_of_a_call_is_sent_back(play, wire):
    call = {"functionCall": {"name": "bash", "args": {"command": "echo seen"}}, "thoughtSignature": "c2lnbmVk"}
    content = {"role": "model", "parts": [{"text": "First I look.", "thought": True}, call]}
    event = {"candidates": [{"content": content, "index": 0, "finishReason": "STOP"}]}
    ran = play(Other(dialects.sse(event), "text/event-stream"), Say("ok"))
    assert ran.answer == "ok"
    sent = [part for one in json.loads(ran.stage.bodies[1])["contents"] for part in one["parts"]]
    [back] = [part for part in sent if "functionCall" in part]
    assert back["thoughtSignature"] == "c2lnbmVk"


@pytest.mark.parametrize("wire", ["responses"])
def test_encrypted_reasoning_is_sent_back_unchanged(play, wire):
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "status": "completed"}
    call["arguments"] = '{"command": "echo seen"}'
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "lab", "output": [thought, call]}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
    ]
    for index, item in enumerate((thought, call)):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": {**response, "status": "completed"}})
    body = b"".join(dialects.sse({**event, "sequence_number": at}, event["type"]) for at, event in enumerate(events))
    ran = play(Other(body, "text/event-stream"), Say("ok"), words=("--model", "openai:gpt-5"))
    assert ran.answer == "ok"
    [back] = [item for item in json.loads(ran.stage.bodies[1])["input"] if item.get("type") == "reasoning"]
    assert back["encrypted_content"] == "c2VhbGVk"
