"""Who takes which turn? The agent of the settings, those to fall back on, and those that review or write messages."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.errors import UserError
from ralph.settings import CustomAgent, Settings

if TYPE_CHECKING:
    from ralph.agents.protocol import AgentModule

BUILTIN = "builtin"
SIDE = "side"


class Choice(Struct, frozen=True, kw_only=True):
    """An agent that may take turns. `hidden`: variables of the environment that are none of its business.
    `understands`: the options it has, where it has been asked. `purposes`: the turns that are its alone; an agent
    without any works on the goal."""

    name: str
    module: "AgentModule"
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    model: str = ""
    hidden: frozenset[str] = frozenset()
    understands: frozenset[str] | None = None
    purposes: tuple[str, ...] = ()


def workers(chosen: "Sequence[Choice]") -> tuple[str, ...]:
    """The names of those that work on the goal. They come first."""
    return tuple(choice.name for choice in chosen if not choice.purposes)


def duties(choice: Choice) -> str:
    """What an agent does that does not work on the goal."""
    return " and ".join(dict.fromkeys("messages" if purpose == "message" else "reviews" for purpose in choice.purposes))


def choices(settings: Settings, extra: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple["Choice", ...]:
    """The agent of the settings, or the first that is installed, those to fall back on, and those for other purposes.
    All of them can be run."""
    command = settings.agent.command or _first_installed(env)
    flags = (*(word for flag in settings.agent.flags for word in _split(flag)), *extra)
    first = _choice(command, settings, flags, settings.agent.model)
    working = (first, *(_choice(other, settings) for other in settings.fallback_agents))
    if settings.session == "continue":
        for choice in working:
            _must_resume(choice)
    chosen = (*working, *_for_other_purposes(settings, command, flags))
    for choice in chosen:
        if choice.module.NAME == BUILTIN:
            from ralph.agents.builtin import refuse_unready

            refuse_unready(choice.flags, env, is_limited=settings.max_cost is not None)
    return tuple(_found(choice, env, cwd) for choice in chosen)


def unheard_limit(choice: Choice, max_turns: int | None) -> str:
    """What a person should know whose agent cannot be told how many turns of its own it may take."""
    from ralph.agents.protocol import TurnRequest

    request = TurnRequest(prompt="", prompt_file="", command=choice.command, flags=choice.flags)
    request = replace(request, understands=choice.understands)
    bounded = replace(request, max_turns=max_turns)
    if not max_turns or choice.module.invocation(bounded).argv != choice.module.invocation(request).argv:
        return ""
    return (
        f"{choice.name} cannot be told how many turns of its own to take: {max_turns} at most is left to its judgement"
    )


def _for_other_purposes(settings: Settings, command: str, flags: tuple[str, ...]) -> Iterator["Choice"]:
    """Who reviews and who writes messages, where that is not the agent itself."""
    wanted: dict[tuple[str, str], list[str]] = {}
    left = []
    for purpose, agent, model in _purposes(settings):
        if agent or model:
            wanted.setdefault((agent, model), []).append(purpose)
        else:
            left.append(purpose)
    for (agent, model), purposes in wanted.items():
        made = _choice(agent, settings, (), model) if agent else _choice(command, settings, _modelless(flags), model)
        yield replace(made, purposes=tuple(purposes))
    if left and (model := settings.side.model):
        made = _built_in(settings.agents.get(model), "" if model in settings.agents else model, ())
        yield replace(made, name=SIDE, purposes=tuple(left))


def _purposes(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Each purpose besides the work itself, and the agent and model that the settings name for it."""
    yield "message", settings.scm.agent if settings.scm else "", ""
    reviews = settings.reviews
    for prompt in reviews.prompts if reviews else ():
        yield f"review-{prompt.name}", prompt.agent or (reviews.agent if reviews else ""), prompt.model


def unused_roles(settings: Settings) -> str:
    """What a run says whose agent is the caller's own: it takes every turn, whoever else the settings name for some."""
    scm, reviews = settings.scm, settings.reviews
    named = {
        "scm.agent": bool(scm and scm.agent),
        "reviews.agent": bool(reviews and reviews.agent),
        "reviews.prompts[].agent or .model": any(
            one.agent or one.model for one in (reviews.prompts if reviews else ())
        ),
        "side.model": bool(settings.side.model),
    }
    unused = [name for name, is_said in named.items() if is_said]
    return f"your own agent takes every turn: {', '.join(unused)} of the settings is left aside" if unused else ""


def _modelless(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The agent's flags without the model that they choose: another one is wanted."""
    kept: list[str] = []
    rest = iter(flags)
    for word in rest:
        if word in ("--model", "-m"):
            next(rest, None)
        elif not word.startswith("--model="):
            kept.append(word)
    return tuple(kept)


def _must_resume(choice: "Choice") -> None:
    """A known agent whose sessions cannot be continued is refused. A command of the user's own has none to lose."""
    from ralph.agents import known

    if choice.module.NAME in known() and not choice.module.RESUMES:
        raise UserError(
            f"{choice.module.NAME} cannot continue a session without a person", "use --session fresh, or another agent"
        )


def _found(choice: "Choice", env: Mapping[str, str], cwd: str) -> "Choice":
    """The choice, with what it is remembered to understand, once it is certain that its program is there."""
    from ralph.agents.protocol import TurnRequest
    from ralph.processes.program import ProgramMissing, find_program

    module = choice.module
    name = module.invocation(TurnRequest(prompt="", prompt_file="", command=choice.command, flags=choice.flags)).argv[0]
    try:
        program = find_program(name, env, cwd)
    except ProgramMissing as error:
        whom = f"the agent for {duties(choice)}: " if choice.purposes else ""
        raise ProgramMissing(whom + error.message, _advice(choice, name) or error.hint) from None
    if not module.HELP:
        return choice
    from ralph.agents.protocol import remembered

    return replace(choice, understands=remembered(program, module.HELP))


def _advice(choice: "Choice", name: str) -> str:
    """What to do about an agent that is not there, where more is known than that."""
    if "/" in name:
        return ""
    if choice.module.INSTALL:
        return f"install it: {choice.module.INSTALL}; or is its folder not on PATH?"
    from difflib import get_close_matches

    from ralph.agents import known

    meant = get_close_matches(name, known(), 1)
    option = "" if choice.purposes else "--agent "
    return f"did you mean {option}{meant[0]}?" if meant else ""


def _choice(command: str, settings: Settings, flags: tuple[str, ...] = (), model: str = "") -> "Choice":
    from ralph import agents

    own = settings.agents.get(command)
    if own and own.argv:
        from ralph.agents.command import described

        hidden = frozenset({"CLAUDECODE"})
        return Choice(name=command, module=described(command, own), command=(), flags=flags, model=model, hidden=hidden)
    if own:
        return replace(_built_in(own, model, flags), name=command)
    module = agents.find(command)
    words, more = agents.words(command)
    if module.NAME == BUILTIN:
        return _built_in(settings.agents.get(BUILTIN), model, (*more, *flags))
    name = module.NAME if module.NAME != "command" else command
    flags, hidden = (*more, *flags), agents.foreign_keys(module)
    return Choice(name=name, module=module, command=words, flags=flags, model=model, hidden=hidden)


def _built_in(own: CustomAgent | None, model: str, flags: tuple[str, ...]) -> "Choice":
    """The built-in agent with a model."""
    from ralph import agents
    from ralph.agents.builtin import options

    module = agents.module(BUILTIN)
    words = options(own, model, flags)
    hidden = agents.foreign_keys(module) - {*words}
    return Choice(name=BUILTIN, module=module, command=(BUILTIN,), flags=words, hidden=hidden)


def _first_installed(env: Mapping[str, str]) -> str:
    from shutil import which

    from ralph.agents import programs

    for name in programs():
        if which(name, path=env.get("PATH")):
            return name
    raise UserError(
        "no coding agent is installed",
        "install one (`npm install -g @anthropic-ai/claude-code`, say), work with a model of your own "
        "(`--agent builtin --model PROVIDER:NAME`), or try `ralph demo`",
    )


def may_write(choice: Choice, settings: Settings, folders: tuple[str, ...]) -> bool:
    """Whether the agent may write in folders outside the workspace."""
    from ralph.agents.protocol import TurnRequest, reaches

    request = TurnRequest(
        prompt="",
        prompt_file="",
        command=choice.command,
        flags=choice.flags,
        yolo=settings.yolo,
        understands=choice.understands,
        boxed=settings.sandbox.enabled,
        folders=folders,
    )
    return reaches(choice.module, request)


def out_of_reach(agent: str, folders: tuple[str, ...]) -> str:
    where = ", ".join(folders)
    return f"this version of {agent} may not write in {where}, where its work ends: use --yolo, or a newer one"


def _split(flag: str) -> list[str]:
    import shlex

    try:
        return shlex.split(flag)
    except ValueError as error:
        raise UserError(f"agent.flags: {flag!r} cannot be read: {error}", "check its quotes") from None
