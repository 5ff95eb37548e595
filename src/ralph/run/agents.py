"""How does an agent take a turn? As a child process that reads its prompt, and whose stream becomes events."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.limits import available
from ralph.core.model import Exit, Failure, Run, Turn, Usage
from ralph.core.text import one_line, whole_words
from ralph.errors import UserError
from ralph.processes.process import run_process
from ralph.processes.program import CannotStart, Command, find_program
from ralph.records.folder import TurnFolder, write
from ralph.run.context import Context
from ralph.settings import CustomAgent, Settings

if TYPE_CHECKING:
    from ralph.agents.protocol import AgentModule, Invocation, TurnRequest


BUILTIN = "builtin"
_ASIDE = "side"
_LONGEST_ANSWER = 1 << 20
_LONGEST_WORD = 500  # that is shown of a command line


class Choice(Struct, frozen=True, kw_only=True):
    """An agent that may take turns. `hidden`: variables of the environment that are none of its business.
    `understands`: the options it has, where it has been asked. `aside`: it does the small work beside the others."""

    name: str
    module: "AgentModule"
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()
    understands: frozenset[str] | None = None
    aside: bool = False


class Manner(Struct, frozen=True, kw_only=True):
    """How turns are taken, whoever takes them. An agent that tells what it spends while it works is ended when the run
    has used `max_cost` or `max_tokens`."""

    model: str = ""
    yolo: bool = False
    stream: bool = True
    continues: bool = False
    looks_only: bool = False
    max_turns: int | None = None
    timeout: float | None = None
    idle_timeout: float | None = None
    max_cost: float | None = None
    max_tokens: int | None = None


class CliAgent:
    """One of the choices takes each turn: the first, unless it has run into a limit and another may go on. Messages and
    reviews are for the one beside them, if there is one."""

    def __init__(self, choices: Sequence[Choice], manner: Manner, context: Context) -> None:
        self._choices = {choice.name: choice for choice in choices}
        self._workers = tuple(choice.name for choice in choices if not choice.aside)
        self._aside = next((choice.name for choice in choices if choice.aside), "")
        self._manner, self._context = manner, context

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        is_small = purpose == "message" or purpose.startswith("review-")
        name = self._aside if self._aside and is_small else available(run, self._workers) or self._workers[0]
        choice = self._choices[name]
        if self._manner.continues and has_lost_session(run, choice):
            return Turn(
                text="", exit_code=None, failure=Failure("fatal", f"{choice.name} named no session to continue")
            )
        folder = self._context.folder.turn(run.number, purpose, choice.name)
        attempt = _Turn(choice, self._manner, self._context, folder, run, purpose)
        turn = attempt.take(prompt)
        if turn.failure and turn.failure.kind == "fatal":
            choice = self._choices[choice.name] = self._wiser(choice, turn.failure, run.number)
            second = _Turn(choice, self._manner, self._context, folder, run, purpose)
            if second.words(prompt) != attempt.words(prompt):
                self._context.tell(events.Notice(f"{choice.name} refused an option, and is started without it"))
                turn = second.take(prompt)
        # The answer may become part of a prompt or of a file: from here on it holds no keys.
        turn = replace(turn, text=self._context.redact.text(turn.text), agent=choice.name)
        folder.ended(turn, turn.text.encode("utf-8", "replace"))
        return turn

    def _wiser(self, choice: Choice, failure: Failure, number: int) -> Choice:
        """The choice with the options that its program has, if one that it has not is what the turn failed for."""
        from ralph.agents.protocol import understood, worth_asking

        context, question = self._context, choice.module.HELP
        if not question or not worth_asking(failure):
            return choice
        from ralph.processes.process import heard

        def printed(argv: tuple[str, ...]) -> str:
            env = {name: value for name, value in context.marked(number).items() if name not in choice.hidden}
            asked = context.boxed(Command(argv=argv, cwd=str(context.root), env=env))
            page, ended = heard(context.keeper, asked, context.interrupt)
            return page + ended.stderr if ended.code == 0 else ""

        program = find_program(choice.command[0], context.env, str(context.root))
        return replace(choice, understands=understood(program, question, printed))


def has_lost_session(run: Run, choice: Choice) -> bool:
    """Whether an agent that could continue its session has finished a turn, but never said which session it was in."""
    worked = any(iteration.turn.agent == choice.name and not iteration.turn.failure for iteration in run.iterations)
    return choice.module.RESUMES and worked and run.session_of(choice.name) is None


class _Turn:
    """One invocation, from the prompt to the answer."""

    def __init__(
        self, choice: Choice, manner: Manner, context: Context, folder: TurnFolder, run: Run, purpose: str
    ) -> None:
        self._choice, self._manner, self._context = choice, manner, context
        self._folder, self._run, self._purpose = folder, run, purpose
        self._session = run.session_of(choice.name) if manner.continues else None
        self._scratch = folder.scratch() if context.box else folder.path

    def words(self, prompt: str) -> tuple[str, ...]:
        """What the agent is started with."""
        return self._choice.module.invocation(self._request(prompt)).argv

    def take(self, prompt: str) -> Turn:
        path = self._folder.prompt
        request = self._request(prompt)
        invocation = self._choice.module.invocation(request)
        # The agent gets the prompt to the letter; what stays on disk holds no keys.
        data = prompt.encode("utf-8", "surrogateescape")
        kept = self._context.redact(data)
        is_read = kept != data and invocation.stdin != "prompt"
        write(path, data if is_read else kept)
        try:
            return self._invoke(request, invocation, data)
        except CannotStart as error:
            failure = Failure("fatal", error.advice)
            return Turn(text="", exit_code=None, failure=failure)
        finally:
            if is_read:
                write(path, kept)

    def _request(self, prompt: str) -> "TurnRequest":
        from ralph.agents.protocol import TurnRequest

        return TurnRequest(
            prompt=prompt,
            prompt_file=self._folder.prompt,
            command=self._choice.command,
            flags=self._choice.flags,
            model=self._manner.model,
            yolo=self._manner.yolo,
            stream=self._manner.stream and self._purpose != "message",
            session=self._session,
            max_turns=self._manner.max_turns,
            root=os.geteuid() == 0 if hasattr(os, "geteuid") else False,
            understands=self._choice.understands,
            scratch=self._scratch,
            usage_before=self._usage_before(),
            boxed=self._context.box is not None,
            looks_only=self._manner.looks_only,
        )

    def _invoke(self, request: "TurnRequest", invocation: "Invocation", prompt: bytes) -> Turn:
        context, module = self._context, self._choice.module
        parser = module.parser(request)

        def on_lines(lines: list[bytes]) -> str:
            context.tell(*parser.feed_all(lines))
            return self._limit_reached(parser.spent) if parser.spent else ""

        def on_start(pid: int) -> None:
            self._folder.started(pid)
            words = tuple(whole_words(word, _LONGEST_WORD, "…") for word in invocation.argv)
            context.tell(events.AgentStarted(self._choice.name, words, pid, self._purpose))

        stdin = prompt if invocation.stdin == "prompt" else b""
        command = Command(
            argv=tuple(invocation.argv), cwd=str(context.root), env=self._environment(invocation), stdin=stdin
        )
        with context.log(self._folder.stdout) as out, context.log(self._folder.stderr) as err:
            ended = run_process(
                context.keeper,
                context.boxed(command, self._scratch),
                on_lines=on_lines,
                on_start=on_start,
                meanwhile=lambda: context.tell(events.Notice(f"Prompt: {one_line(request.prompt)}", "debug")),
                limits=context.limits(self._manner.timeout, self._manner.idle_timeout),
                interrupt=context.interrupt,
                stdout_log=out,
                stderr_log=err,
                redact=context.redact,
                tick=context.tick,
                keep_children=context.keep_children,
            )
        context.tell_troubles(out, err)
        turn = _answered(parser.turn(ended), ended, invocation.answer_file)
        context.tell(_finished(turn, ended, parser.skipped, parser.tool_errors))
        return turn

    def _limit_reached(self, spent: Usage) -> str:
        """The limit that the run has reached by what this turn has spent so far."""
        total = self._run.usage.plus(spent)
        if self._manner.max_cost is not None and (total.cost_usd or 0.0) >= self._manner.max_cost:
            return "max-cost"
        return "max-tokens" if self._manner.max_tokens and total.tokens >= self._manner.max_tokens else ""

    def _usage_before(self) -> Usage:
        """What the continued session has used already: some agents report their figures over all of it."""
        total = Usage()
        if self._session:
            for turn in (*(i.turn for i in self._run.iterations), *self._run.retries):
                if turn.session == self._session:
                    total = total.plus(turn.usage)
        return total

    def _environment(self, invocation: "Invocation") -> dict[str, str]:
        env = self._context.marked(self._run.number)
        for name in self._choice.hidden:
            env.pop(name, None)
        return {**env, **self._folder.env, "RALPH_PROMPT_FILE": self._folder.prompt, **invocation.env}


def _answered(turn: Turn, ended: Exit, answer_file: str) -> Turn:
    """The turn with its times, and with the answer that the agent wrote to a file. One that failed gave no answer."""
    if answer_file and turn.failure is None and os.path.isfile(answer_file) and not os.path.islink(answer_file):
        with open(answer_file, encoding="utf-8", errors="replace") as file:
            turn = replace(turn, text=file.read(_LONGEST_ANSWER))
    return replace(turn, ended_at=ended.at, duration=ended.duration, ended_by=ended.ended_by, exit_code=ended.code)


def _finished(turn: Turn, ended: Exit, skipped: int, tool_errors: int) -> events.AgentFinished:
    return events.AgentFinished(
        exit_code=ended.code,
        duration_s=ended.duration,
        tool_calls=turn.tool_calls,
        tool_errors=tool_errors,
        failure=turn.failure.kind if turn.failure else "",
        reason=turn.failure.reason if turn.failure else "",
        ended_by=ended.ended_by,
        skipped_lines=skipped,
        leftovers=ended.leftovers,
    )


def choices(settings: Settings, extra: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple["Choice", ...]:
    """The agent of the settings, or the first that is installed, and those to fall back on. All of them can be run."""
    command = settings.agent.command or _first_installed(env)
    flags = tuple(word for flag in settings.agent.flags for word in _split(flag))
    first = _choice(command, settings, (*flags, *extra), settings.agent.model)
    chosen = (first, *(_choice(other, settings, ()) for other in settings.fallback_agents), *_aside(settings))
    if settings.session == "continue":
        for choice in chosen:
            _must_resume(choice)
    for choice in chosen:
        if choice.module.NAME == BUILTIN:
            from ralph.agents.builtin import refuse_unready

            refuse_unready(choice.flags, env, is_limited=settings.max_cost is not None)
    return tuple(_found(choice, env, cwd) for choice in chosen)


def _aside(settings: Settings) -> Iterator["Choice"]:
    """Who does the small work, if not the agent itself."""
    if model := settings.side.model:
        made = _built_in(settings.agents.get(model), "" if model in settings.agents else model, ())
        yield replace(made, name=_ASIDE, aside=True)


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
        if hint := _advice(module, name):
            raise ProgramMissing(error.message, hint) from None
        raise
    if not module.HELP:
        return choice
    from ralph.agents.protocol import remembered

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


def _choice(command: str, settings: Settings, flags: tuple[str, ...], model: str = "") -> "Choice":
    from ralph import agents

    own = settings.agents.get(command)
    if own and own.argv:
        from ralph.agents.command import described

        return Choice(
            name=command, module=described(command, own), command=(), flags=flags, hidden=frozenset({"CLAUDECODE"})
        )
    if own:
        return replace(_built_in(own, model, flags), name=command)
    module = agents.find(command)
    words, more = agents.words(command)
    if module.NAME == BUILTIN:
        return _built_in(settings.agents.get(BUILTIN), model, (*more, *flags))
    name = module.NAME if module.NAME != "command" else command
    return Choice(name=name, module=module, command=words, flags=(*more, *flags), hidden=agents.foreign_keys(module))


def _built_in(own: CustomAgent | None, model: str, flags: tuple[str, ...]) -> "Choice":
    """The built-in agent with a model."""
    from ralph import agents
    from ralph.agents.builtin import options

    module = agents.module(BUILTIN)
    words = options(own, model, flags)
    return Choice(
        name=BUILTIN, module=module, command=(BUILTIN,), flags=words, hidden=agents.foreign_keys(module) - {*words}
    )


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


def _split(flag: str) -> list[str]:
    import shlex

    try:
        return shlex.split(flag)
    except ValueError as error:
        raise UserError(f"agent.flags: {flag!r} cannot be read: {error}", "check its quotes") from None
