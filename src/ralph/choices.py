"""Which agents does a run work with? The one that is asked for or installed, and those to fall back on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.settings import Settings

if TYPE_CHECKING:
    from ralph.agents.protocol import AgentModule
    from ralph.world.turns import Choice


def choices(settings: Settings, extra: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple["Choice", ...]:
    """The agent of the settings, or the first that is installed, and those to fall back on. All of them can be run."""
    command = settings.agent.command or _first_installed(env)
    flags = tuple(word for flag in settings.agent.flags for word in _split(flag))
    first = _choice(command, settings, (*flags, *extra))
    chosen = (first, *(_choice(other, settings, ()) for other in settings.fallback_agents))
    if settings.session == "continue":
        for choice in chosen:
            _must_resume(choice)
    return tuple(_found(choice, env, cwd) for choice in chosen)


def _must_resume(choice: "Choice") -> None:
    """A known agent whose sessions cannot be continued is refused. A command of the user's own has none to lose."""
    from ralph.agents import known

    if choice.module.NAME in known() and not choice.module.RESUMES:
        raise UserError(
            f"{choice.module.NAME} cannot continue a session without a person", "use --session fresh, or another agent"
        )


def _found(choice: "Choice", env: Mapping[str, str], cwd: str) -> "Choice":
    """The choice, with what it is remembered to understand, once it is certain that its program is there."""
    from ralph.agents.protocol import Request
    from ralph.world.processes.program import ProgramMissing, find_program

    module = choice.module
    name = module.invocation(Request("", "", choice.command, choice.flags)).argv[0]
    try:
        program = find_program(name, env, cwd)
    except ProgramMissing as error:
        if hint := _advice(module, name):
            raise ProgramMissing(error.message, hint) from None
        raise
    if not module.HELP:
        return choice
    from ralph.agents.asked import remembered

    return replace(choice, understands=remembered(program, module.HELP))


def _advice(module: "AgentModule", name: str) -> str:
    """What to do about an agent that is not there, where more is known than that."""
    if "/" in name:
        return ""
    if module.INSTALL:
        return f"install it: {module.INSTALL}; or is its folder not on PATH?"
    from difflib import get_close_matches

    from ralph.agents import known

    meant = get_close_matches(name, known(), 1)
    return f"did you mean --agent {meant[0]}?" if meant else ""


def _choice(command: str, settings: Settings, flags: tuple[str, ...]) -> "Choice":
    from ralph import agents
    from ralph.world.turns import Choice

    if command in settings.agents:
        from ralph.agents.custom import described

        return Choice(command, described(command, settings.agents[command]), (), flags, frozenset({"CLAUDECODE"}))
    module = agents.find(command)
    words, own = agents.words(command)
    return Choice(
        module.NAME if module.NAME != "command" else command, module, words, (*own, *flags), agents.foreign_keys(module)
    )


def _first_installed(env: Mapping[str, str]) -> str:
    from shutil import which

    from ralph.agents import known

    for name in known():
        if which(name, path=env.get("PATH")):
            return name
    raise UserError(
        "no coding agent is installed",
        "install one (`npm install -g @anthropic-ai/claude-code`, say), name one with --agent, or try `ralph demo`",
    )


def _split(flag: str) -> list[str]:
    import shlex

    try:
        return shlex.split(flag)
    except ValueError as error:
        raise UserError(f"agent.flags: {flag!r} cannot be read: {error}", "check its quotes") from None
