"""Agents that the settings describe."""

from typing import Any

import pytest

from ralph.agents.protocol import Invocation, TurnRequest
from ralph.core.model import Exit
from ralph.errors import UserError
from ralph.run.agents import CustomAgentModule
from ralph.settings import CustomAgent
from ralph.testing import agent_contract


def custom(**settings: Any) -> CustomAgent:
    return CustomAgent(**{"argv": ("my", "agent"), **settings})


def start(settings: CustomAgent, **request: Any) -> Invocation:
    asked = {"prompt": "the {model} prompt", "prompt_file": "/tmp/p.md", "command": ("mine",), **request}
    return CustomAgentModule("mine", settings).invocation(TurnRequest(**asked))


@pytest.mark.parametrize("prompt", ["stdin", "argument", "file"])
@pytest.mark.parametrize("stream", ["text", "auto", "claude", "codex"])
def test_an_agent_of_the_settings_keeps_the_contract(prompt: Any, stream: str) -> None:
    agent_contract(CustomAgentModule("mine", custom(prompt=prompt, stream=stream, resume=("--resume", "{session}"))))


@pytest.mark.parametrize(
    ("settings", "request_", "argv", "stdin"),
    [
        (custom(), {}, ("my", "agent"), "prompt"),
        (custom(prompt="argument"), {}, ("my", "agent", "the {model} prompt"), "empty"),
        (custom(prompt="file"), {}, ("my", "agent", "/tmp/p.md"), "empty"),
        (custom(argv=("my", "--file={prompt_file}")), {}, ("my", "--file=/tmp/p.md"), "empty"),
        (custom(argv=("my", "{prompt}"), prompt="argument"), {}, ("my", "the {model} prompt"), "empty"),
        (custom(model=("--model", "{model}")), {}, ("my", "agent"), "prompt"),
        (custom(model=("--model", "{model}")), {"model": "m 1"}, ("my", "agent", "--model", "m 1"), "prompt"),
        (custom(resume=("--id={session}",)), {"session": "S"}, ("my", "agent", "--id=S"), "prompt"),
        (custom(), {"session": "S", "model": "m", "flags": ("-x",)}, ("my", "agent", "-x"), "prompt"),
    ],
)
def test_the_settings_of_an_agent_become_its_argv(
    settings: CustomAgent, request_: dict[str, Any], argv: tuple[str, ...], stdin: str
) -> None:
    made = start(settings, **request_)
    assert (made.argv, made.stdin) == (argv, stdin)


def test_an_agent_of_the_settings_resumes_if_it_has_words_for_that() -> None:
    assert CustomAgentModule("mine", custom(resume=("{session}",))).RESUMES
    assert not CustomAgentModule("mine", custom()).RESUMES


@pytest.mark.parametrize(("stream", "text", "calls"), [("claude", "Hi.", 0), ("auto", "Hi.", 0)])
def test_an_agent_of_the_settings_may_print_the_stream_of_a_known_agent(stream: str, text: str, calls: int) -> None:
    parser = CustomAgentModule("mine", custom(stream=stream)).parser(
        TurnRequest(prompt="p", prompt_file="", command=("mine",))
    )
    parser.feed(b'{"type":"result","subtype":"success","result":"Hi.","session_id":"S"}')
    turn = parser.turn(Exit(code=0, at=0.0, duration=0.0))
    assert (turn.text, turn.tool_calls, turn.session) == (text, calls, "S")


def test_the_output_of_a_text_agent_is_never_read_as_a_stream() -> None:
    parser = CustomAgentModule("mine", custom()).parser(TurnRequest(prompt="p", prompt_file="", command=("mine",)))
    parser.feed(b'{"type":"result","subtype":"success","result":"Hi."}')
    assert parser.turn(Exit(code=0, at=0.0, duration=0.0)).text.startswith("{")


def test_an_unknown_stream_format_is_an_error() -> None:
    with pytest.raises(UserError, match="klingon") as told:
        CustomAgentModule("mine", custom(stream="klingon"))
    assert "claude" in told.value.hint
