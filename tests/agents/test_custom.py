"""How does an agent run that is described in the settings?"""

from typing import Any

import pytest

from ralph.agents.protocol import Invocation, TurnRequest
from ralph.core.model import Exit
from ralph.errors import UserError
from ralph.run.custom_agents import CustomAgentModule
from ralph.settings import CustomAgent
from ralph.testing import agent_contract


def custom(**settings: Any) -> CustomAgent:
    return CustomAgent(**{"argv": ("my", "agent"), **settings})


def start(settings: CustomAgent, **request: Any) -> Invocation:
    asked = {"prompt": "the {model} prompt", "prompt_file": "/tmp/p.md", "command": ("mine",), **request}
    return CustomAgentModule("mine", settings).invocation(TurnRequest(**asked))


@pytest.mark.parametrize("prompt", ["stdin", "argument", "file"])
@pytest.mark.parametrize("stream", ["text", "auto", "claude", "codex"])
def test_a_described_agent_keeps_the_contract(prompt: Any, stream: str) -> None:
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
def test_the_description_becomes_words(
    settings: CustomAgent, request_: dict[str, Any], argv: tuple[str, ...], stdin: str
) -> None:
    made = start(settings, **request_)
    assert (made.argv, made.stdin) == (argv, stdin)


def test_it_resumes_where_the_words_for_it_are_given() -> None:
    assert CustomAgentModule("mine", custom(resume=("{session}",))).RESUMES
    assert not CustomAgentModule("mine", custom()).RESUMES


@pytest.mark.parametrize(("stream", "text", "calls"), [("claude", "Hi.", 0), ("auto", "Hi.", 0)])
def test_it_may_speak_the_dialect_of_another(stream: str, text: str, calls: int) -> None:
    parser = CustomAgentModule("mine", custom(stream=stream)).parser(
        TurnRequest(prompt="p", prompt_file="", command=("mine",))
    )
    parser.feed(b'{"type":"result","subtype":"success","result":"Hi.","session_id":"S"}')
    turn = parser.turn(Exit(code=0, at=0.0, duration=0.0))
    assert (turn.text, turn.tool_calls, turn.session, turn.agent) == (text, calls, "S", "mine")


def test_one_that_prints_text_is_not_listened_to_as_a_stream() -> None:
    parser = CustomAgentModule("mine", custom()).parser(TurnRequest(prompt="p", prompt_file="", command=("mine",)))
    parser.feed(b'{"type":"result","subtype":"success","result":"Hi."}')
    assert parser.turn(Exit(code=0, at=0.0, duration=0.0)).text.startswith("{")


def test_an_unknown_dialect_is_told() -> None:
    with pytest.raises(UserError, match="klingon") as told:
        CustomAgentModule("mine", custom(stream="klingon"))
    assert "claude" in told.value.hint
