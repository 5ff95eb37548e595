"""How does an agent run that the user describes in the settings, without a line of Python?"""

from typing import Literal, Protocol

from ralph.agents import known
from ralph.agents.command import Sniffer
from ralph.agents.protocol import AgentModule, Invocation, Login, Parser, Request
from ralph.agents.shell import filled
from ralph.errors import UserError


class Description(Protocol):
    """What the settings say about an agent. `resume` and `model` are words that are added when there is a session
    or a model to name; `stream` is `text`, `auto`, or the known agent whose stream it speaks."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def prompt(self) -> Literal["stdin", "argument", "file"]: ...
    @property
    def stream(self) -> str: ...
    @property
    def resume(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> tuple[str, ...]: ...


def described(name: str, description: Description) -> AgentModule:
    """The agent called `name`, as good as a module."""
    if description.stream not in ("text", "auto", *known()):
        raise UserError(
            f'the agent "{name}" speaks an unknown stream: "{description.stream}"',
            f"use one of: text, auto, {', '.join(known())}",
        )
    return _Described(name, description)


class _Described:
    INSTALL = ""
    KEYS: tuple[str, ...] = ()
    HELP: tuple[str, ...] = ()
    LOGIN: Login | None = None

    def __init__(self, name: str, description: Description) -> None:
        self.NAME = name
        self.RESUMES = bool(description.resume)
        self._description = description

    def invocation(self, request: Request) -> Invocation:
        own = self._description
        words = list(own.argv)
        if request.model:
            words += [word.replace("{model}", request.model) for word in own.model]
        if request.session:
            words += [word.replace("{session}", request.session) for word in own.resume]
        words += request.flags
        placed = any("{prompt}" in word or "{prompt_file}" in word for word in words)
        if not placed and own.prompt != "stdin":
            words.append("{prompt}" if own.prompt == "argument" else "{prompt_file}")
            placed = True
        argv = filled(tuple(words), request.prompt, request.prompt_file)
        return Invocation(argv, stdin="empty" if placed else "prompt")

    def parser(self, request: Request) -> Parser:
        return Sniffer(request, self.NAME, self._description.stream)
