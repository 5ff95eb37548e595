"""Agents that the settings describe (`agents.NAME`), in the form of an agent module."""

from ralph.agents import known_names
from ralph.agents.command import Sniffer, has_placeholder, invoke_directly
from ralph.agents.protocol import Invocation, Login, Parser, SandboxNeeds, TurnRequest
from ralph.errors import UserError
from ralph.settings import CustomAgent


class CustomAgentModule:
    """The agent `name` of the settings."""

    INSTALL = ""
    KEYS: tuple[str, ...] = ()
    HELP: tuple[str, ...] = ()
    CONFINED = False
    LOGIN: Login | None = None
    SANDBOX: SandboxNeeds | None = None

    def __init__(self, name: str, settings: CustomAgent) -> None:
        if settings.stream not in ("text", "auto", *known_names()):
            raise UserError(
                f'agents.{name}.stream: unknown format "{settings.stream}"',
                f"use one of: text, auto, {', '.join(known_names())}",
            )
        self.NAME = name
        self.RESUMES = bool(settings.resume)
        self._settings = settings

    def invocation(self, request: TurnRequest) -> Invocation:
        own = self._settings
        words = list(own.argv)
        if request.model:
            words += [word.replace("{model}", request.model) for word in own.model]
        if request.session:
            words += [word.replace("{session}", request.session) for word in own.resume]
        words += request.flags
        if own.prompt != "stdin" and not has_placeholder(words):
            words.append("{prompt}" if own.prompt == "argument" else "{prompt_file}")
        return invoke_directly(tuple(words), request)

    def parser(self, request: TurnRequest) -> Parser:
        return Sniffer(request, self._settings.stream)
