"""A table of the known coding agents, and how command lines name them. A module is imported when its agent is used."""

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from os.path import expanduser, isfile
from typing import cast

from ralph.agents.protocol import AgentModule
from ralph.core.text import head
from ralph.errors import UserError

_ANTHROPIC = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_GOOGLE = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_MANY = (*_ANTHROPIC, "OPENAI_API_KEY", *_GOOGLE, "GOOGLE_GENERATIVE_AI_API_KEY", "OPENROUTER_API_KEY")

# Each agent with the environment variables that hold its credentials. Other agents don't get these variables.
_AGENTS: dict[str, tuple[str, ...]] = {
    "claude": (*_ANTHROPIC, "CLAUDE_CODE_OAUTH_TOKEN"),
    "codex": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "amp": ("AMP_API_KEY",),
    "gemini": _GOOGLE,
    "opencode": (*_MANY, "OPENCODE_API_KEY"),
    "qwen": (*_MANY, "DASHSCOPE_API_KEY"),
    "copilot": ("COPILOT_GITHUB_TOKEN", "COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BEARER_TOKEN"),
    "pi": _MANY,
    "cline": (*_MANY, "CLINE_API_KEY"),
    "builtin": (
        *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "MISTRAL_API_KEY", "GROQ_API_KEY"),
        *("OPENROUTER_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY", "TOGETHER_API_KEY", "FIREWORKS_API_KEY"),
        *("CEREBRAS_API_KEY", "MOONSHOTAI_API_KEY"),
    ),
}

# The host that each key is for.
_HOSTS = {
    "ANTHROPIC_API_KEY": "api.anthropic.com",
    "ANTHROPIC_AUTH_TOKEN": "api.anthropic.com",
    "DASHSCOPE_API_KEY": "dashscope.aliyuncs.com",
    "GEMINI_API_KEY": "generativelanguage.googleapis.com",
    "GOOGLE_API_KEY": "generativelanguage.googleapis.com",
    "GOOGLE_GENERATIVE_AI_API_KEY": "generativelanguage.googleapis.com",
    "OPENAI_API_KEY": "api.openai.com",
    "OPENROUTER_API_KEY": "openrouter.ai",
}


def hosts(module: AgentModule, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of an agent's models, judged by the keys and URLs in the environment."""
    by_key = [_HOSTS[key] for key in keys(module.NAME) if key in _HOSTS and env.get(key)]
    if module.SANDBOX is None:
        return tuple(by_key)
    return (*module.SANDBOX.hosts, *by_key, *(env[name] for name in module.SANDBOX.urls if env.get(name)))


def known_names() -> tuple[str, ...]:
    return tuple(_AGENTS)


def programs() -> tuple[str, ...]:
    """Return the known agents that ralph looks for on PATH: all but the built-in one."""
    return tuple(name for name in _AGENTS if name != "builtin")


def keys(name: str) -> tuple[str, ...]:
    """Return the environment variables that hold the credentials of the agent `name`."""
    return _AGENTS.get(name, ())


def module(name: str) -> AgentModule:
    """Return the module of a known agent, or of `command` for any other program."""
    return cast(AgentModule, import_module(f"ralph.agents.{name}"))


def find(command: str) -> AgentModule:
    """Return the module for the user's agent: a known name, a path to one, or a whole command line."""
    (program, *_), _flags = words(command)
    if program.startswith("acp:"):
        return module("acp")
    return module(_name_of(program) or "command")


def words(command: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split `command` into the program and extra words, as a `TurnRequest` needs them.

    A command line of anything but a known agent and its flags stays in one piece, for the module `command`.
    """
    command = command.strip()
    if not command:
        raise UserError("the agent's command is empty", f"name one of: {', '.join(_AGENTS)}, or any command line")
    if command.startswith("acp:"):
        return (command,), ()
    if _name_of(command):
        return (expanduser(command),), ()
    first, *others = command.split(maxsplit=1)
    rest = "".join(others)
    if not _name_of(first) or "{prompt" in rest:
        return (command,), ()

    return ((command,), ()) if needs_shell(rest) else ((expanduser(first),), split(rest))


def foreign_keys(module: AgentModule) -> frozenset[str]:
    """Return the environment variables to hide from an agent: the credentials of others. The user's own command gets
    them all."""
    hidden = {"CLAUDECODE"}  # it tells Claude Code that it is nested
    if module.NAME in _AGENTS:
        hidden.update(key for agent in _AGENTS.values() for key in agent)
    return frozenset(hidden - set(keys(module.NAME)))


def _name_of(program: str) -> str | None:
    """Return the known agent with this name or path; None if there is none."""
    name = program.rpartition("/")[2].lower().removesuffix(".exe")
    if name not in _AGENTS or (" " in program and not isfile(program)):
        return None
    return name if name in programs() or program.strip() == name else None


@cache  # each turn splits the same line
def split(line: str) -> tuple[str, ...]:
    """Split `line` into words as a shell would."""
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        hint = f"check the quotes in: {head(line, 500, '…')}"
        raise UserError(f"the agent's command line cannot be read: {error}", hint) from error


@cache
def needs_shell(line: str) -> bool:
    """Whether `line` has shell syntax outside quotes."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    if "=" in first and first.partition("=")[0].isidentifier():
        return True
    for index, char, quote in iter_unescaped(line):
        if quote == "'":
            continue
        following = line[index + 1 : index + 2]
        if char == "$" and (following in ("(", "{") or following.isidentifier()):
            return True
        if char == "`" or (not quote and char in "|&;<>\n"):
            return True
    return False


def iter_unescaped(line: str) -> Iterator[tuple[int, str, str]]:
    """Yield the unescaped characters of `line`, each with its index and the quotes around it."""
    quote, is_escaped = "", False
    for index, char in enumerate(line):
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            yield index, char, quote
