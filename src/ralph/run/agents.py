"""Choose the agents of a run and run their turns. There is the agent of the settings, its successors, and agents that
review or write messages. Each turn is a child process that reads its prompt; its stream becomes events."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from shutil import which

from msgspec import Struct
from msgspec.structs import asdict, replace

from ralph import agents
from ralph.agents import acp, known_names, programs
from ralph.agents.builtin import options, refuse_unready
from ralph.agents.command import Sniffer, has_placeholder, invoke_directly
from ralph.agents.failures import is_lost_session, is_unknown_option
from ralph.agents.protocol import (
    Choice,
    Invocation,
    Login,
    Parser,
    SandboxNeeds,
    TurnRequest,
)
from ralph.core import events, limits
from ralph.core.model import Exit, Failure, Run, Turn, Usage
from ralph.core.text import one_line, whole_words
from ralph.errors import UserError
from ralph.files import open_file
from ralph.process.program import CannotStart, Command, ProgramMissing, find_program
from ralph.settings import CustomAgent, Settings
from ralph.store.folder import TurnFolder, write
from ralph.verdict.context import Context

_LONGEST_ANSWER = 1 << 20
_LONGEST_WORD = 500  # characters of a word that are shown of a command line
NOT_STARTED = (None, 126, 127)  # exit codes: no process, or a shell that cannot execute or find the command
BUILTIN = "builtin"


def workers(chosen: Sequence[Choice]) -> tuple[str, ...]:
    """Return the names of the agents that work on the goal. They come first."""
    return tuple(choice.name for choice in chosen if not choice.purposes)


def duties(choice: Choice) -> str:
    """Return the purposes of an agent that doesn't work on the goal."""
    return " and ".join(dict.fromkeys("messages" if purpose == "message" else "reviews" for purpose in choice.purposes))


class CustomAgentModule:
    """The agent `name` of the settings."""

    INSTALL = ""
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


def choices(settings: Settings, env: Mapping[str, str], cwd: str) -> tuple[Choice, ...]:
    """Return the agents of a run: the agent of the settings or the first installed one, its successors, and the agents
    for other purposes. Raise if one of them cannot be run."""
    command = settings.agent.command or _first_installed(env)
    flags = (*(word for flag in settings.agent.flags for word in _split(flag)), *settings.agent.args)
    first = _choice(command, settings, env, flags, settings.agent.model)
    working = (first, *(_successor(text, settings, env) for text in settings.then))
    names = workers(working)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--then: {name} is named twice", f"name another agent or model, such as {name}:MODEL")
    if settings.session == "continue":
        for choice in working:  # a custom command doesn't have a session to lose
            if choice.module.NAME in known_names() and not choice.module.RESUMES:
                raise UserError(
                    f"{choice.module.NAME} cannot continue a session when it runs headless",
                    "use --session fresh, or another agent",
                )
    chosen = (*working, *_for_other_purposes(settings, env, command, flags))
    for choice in chosen:
        if choice.module.NAME == BUILTIN:
            refuse_unready(choice.flags, env, is_limited=settings.max_cost is not None)
    for choice in chosen:
        _require_program(choice, env, cwd, "--then" if choice in working[1:] else "--agent")
    return chosen


def _successor(text: str, settings: Settings, env: Mapping[str, str]) -> Choice:
    """Return the choice for AGENT or AGENT:MODEL. With a model it counts as a different agent than without."""
    agent, colon, model = text.partition(":")
    if not colon or agent == acp.NAME or (agent not in known_names() and agent not in settings.agents):
        return _choice(text, settings, env)
    if not agent or not model:
        raise UserError(f"--then {text}: no model after the colon", f"--then {agent}, or --then {agent}:MODEL")
    return replace(_choice(agent, settings, env, (), model), name=text)


def _for_other_purposes(
    settings: Settings, env: Mapping[str, str], command: str, flags: tuple[str, ...]
) -> Iterator[Choice]:
    """Yield the agents that review or write messages, if they are not the run's agent."""
    asked = [("message", settings.scm.agent if settings.scm else "", "")]  # purpose, and its agent in the settings
    if reviews := settings.reviews:
        asked += [(f"review-{review.name}", review.agent or reviews.agent, review.model) for review in reviews.asked]
    wanted: dict[tuple[str, str], list[str]] = {}
    for purpose, agent, model in asked:
        wanted.setdefault((agent, model), []).append(purpose)
    for (agent, model), purposes in wanted.items():
        if agent or model:
            named, words = (agent, ()) if agent else (command, _modelless(flags))
            yield replace(_choice(named, settings, env, words, model), purposes=tuple(purposes))


def _modelless(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the agent's flags without those that choose a model, for use with another model."""
    kept: list[str] = []
    rest = iter(flags)
    for word in rest:
        if word in ("--model", "-m"):
            next(rest, None)
        elif not word.startswith("--model="):
            kept.append(word)
    return tuple(kept)


def _require_program(choice: Choice, env: Mapping[str, str], cwd: str, option: str) -> None:
    """Raise if the agent's program is missing."""
    is_acp = choice.module.NAME == acp.NAME
    name = acp.start_words(choice.command[0])[0] if is_acp else choice.module.invocation(choice.request()).argv[0]
    try:
        find_program(name, env, cwd)
    except ProgramMissing as error:
        whom = f"the agent for {duties(choice)}: " if choice.purposes else ""
        install = acp.install_hint(choice.command[0]) if is_acp else choice.module.INSTALL
        hint = error.hint
        if "/" not in name and install:
            hint = f"install it: {install}; or is its folder not on PATH?"
        elif "/" not in name and (near := get_close_matches(name, known_names(), 1)):
            hint = f"did you mean {'' if choice.purposes else f'{option} '}{near[0]}?"
        raise ProgramMissing(whom + error.message, hint) from None


def _choice(
    command: str, settings: Settings, env: Mapping[str, str], flags: tuple[str, ...] = (), model: str = ""
) -> Choice:
    own = settings.agents.get(command)
    if own and own.argv:
        module, hidden = CustomAgentModule(command, own), frozenset({"CLAUDECODE"})
        return Choice(name=command, module=module, command=(), flags=flags, model=model, hidden=hidden)
    if own:
        return replace(_built_in(own, model, flags, env), name=command)
    found = agents.find(command)
    words, more = agents.words(command)
    if found.NAME == BUILTIN:
        return _built_in(settings.agents.get(BUILTIN), model, (*more, *flags), env)
    name = found.NAME if found.NAME not in ("command", acp.NAME) else command
    flags, hidden = (*more, *flags), agents.foreign_keys(found)
    return Choice(name=name, module=found, command=words, flags=flags, model=model, hidden=hidden)


def _built_in(own: CustomAgent | None, model: str, flags: tuple[str, ...], env: Mapping[str, str]) -> Choice:
    """Return the built-in agent with a model."""
    module = agents.module(BUILTIN)
    words = options(asdict(own) if own else {}, model, flags, env)
    hidden = agents.foreign_keys(module) - {*words}
    return Choice(name=BUILTIN, module=module, command=(BUILTIN,), flags=words, hidden=hidden)


def _first_installed(env: Mapping[str, str]) -> str:
    for name in programs():
        if which(name, path=env.get("PATH")):
            return name
    raise UserError(
        "no coding agent is installed",
        "install one (`npm install -g @anthropic-ai/claude-code`, say), work with a model of your own "
        "(`--agent builtin --model PROVIDER:NAME`), or try `ralph demo`",
    )


def _split(flag: str) -> list[str]:
    try:
        return shlex.split(flag)
    except ValueError as error:
        raise UserError(f"agent.flags: {flag!r} cannot be read: {error}", "check its quotes") from None


class CliAgent:
    """Takes each turn with the agent for its purpose. Turns on the goal go to the first agent, or after a hand-over to
    its successor. A turn that reports its cost is ended when the budget is used up.
    """

    def __init__(self, choices: Sequence[Choice], context: Context) -> None:
        self._choices, self._context = choices, context

    @property
    def is_known(self) -> bool:
        """Return whether the working agent is a known coding agent instead of a custom command."""
        return self._choices[0].module.NAME != "command"

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        context, choice = self._context, self._choice_for(purpose, run)
        has_worked = any(past.turn.agent == choice.name and not past.turn.failure for past in run.iterations)
        continues = context.settings.session == "continue" and not choice.purposes
        session = run.session_of(choice.name) if continues else None
        if continues and session is None and has_worked and choice.module.RESUMES:
            reason = f"{choice.name} named no session to continue (ralph resume --session fresh)"
            return Turn(text="", exit_code=None, failure=Failure("fatal", reason))
        folder = context.folder.turn(run.number, purpose, choice.name)
        invoked = _Invocation(choice=choice, context=context, folder=folder, run=run, purpose=purpose, session=session)
        turn = invoked.take(prompt)
        if session and is_lost_session(turn.failure):
            context.tell(events.Notice(f"the session of {choice.name} is lost: it starts a fresh one"))
            invoked = replace(invoked, session=None)
            turn = invoked.take(prompt)
        if is_unknown_option(turn.failure) and choice.module.INSTALL:
            update = f"an older {choice.name}? update it: {choice.module.INSTALL}"
            context.tell(events.Notice(f"{choice.name} was started with an option that it doesn't have: {update}"))
        is_gone = turn.failure and turn.failure.kind == "fatal" and turn.exit_code in NOT_STARTED
        if turn.failure and is_gone and has_worked and not context.settings.every_turn_counts:
            # It could be started before: its updater may be replacing it. If every turn counts, such retries would
            # use up all attempts in seconds, and the run would end as exhausted.
            turn = replace(turn, failure=replace(turn.failure, kind="transient"))
        # The answer may become part of a prompt or of a file, so redact it here.
        turn = replace(turn, text=context.redact.text(turn.text), agent=choice.name)
        folder.record_end(turn, turn.text.encode("utf-8", "replace"))
        return turn

    def _choice_for(self, purpose: str, run: Run) -> Choice:
        names = workers(self._choices)
        worker = names.index(limits.next_worker(run, names)) if len(names) > 1 else 0
        return next((choice for choice in self._choices if purpose in choice.purposes), self._choices[worker])


class _Invocation(Struct, frozen=True, kw_only=True):
    """One invocation of an agent. With a `session` it continues that."""

    choice: Choice
    context: Context
    folder: TurnFolder
    run: Run
    purpose: str
    session: str | None

    def take(self, prompt: str) -> Turn:
        path = self.folder.prompt
        request = self._request(prompt)
        invocation = self.choice.module.invocation(request)
        # The agent gets the prompt verbatim; the copy on disk is redacted.
        data = prompt.encode("utf-8", "surrogateescape")
        redacted = self.context.redact(data)
        is_read = redacted != data and invocation.stdin != "prompt"
        write(path, data if is_read else redacted)
        try:
            return self._invoke(request, invocation, data)
        except CannotStart as error:
            failure = Failure("fatal", error.advice)
            return Turn(text="", exit_code=None, failure=failure, ended_at=time.time())
        finally:
            if is_read:
                write(path, redacted)

    def _request(self, prompt: str) -> TurnRequest:
        settings, spent = self.context.settings, self.run.usage.cost_usd or 0.0
        looks_only = self.context.looks_only or self.purpose.startswith("review-")
        # Only the structured stream says what an agent costs and does.
        measured = settings.max_cost or settings.max_tokens or settings.min_tool_calls or settings.session == "continue"
        usage_before = Usage()
        for turn in (*(past.turn for past in self.run.iterations), *self.run.retries):
            if self.session and turn.session == self.session:
                usage_before = usage_before.plus(turn.usage)
        return replace(
            self.choice.request(),
            prompt=prompt,
            prompt_file=self.folder.prompt,
            yolo=settings.yolo and not looks_only,
            stream=settings.stream_agent_output or bool(measured),
            session=self.session,
            max_turns=settings.agent.max_turns,
            root=os.geteuid() == 0,
            scratch=self.folder.scratch() if self.context.sandbox else self.folder.path,
            usage_before=usage_before,
            sandboxed=self.context.sandbox is not None,
            looks_only=looks_only,
            folders=self.context.writable,
            # What is left of --max-cost, but at least a cent, because a commit message may come later.
            budget=None if settings.max_cost is None else max(settings.max_cost - spent, 0.01),
        )

    def _invoke(self, request: TurnRequest, invocation: Invocation, prompt: bytes) -> Turn:
        context, settings = self.context, self.context.settings
        parser = self.choice.module.parser(request)
        # Without an explicit limit, only agents whose stream reports everything are ended when they are silent.
        is_limited = settings.idle_timeout is not None

        def on_lines(lines: list[bytes]) -> str:
            context.tell(*(event for line in lines for event in parser.feed(line)))
            if not parser.spent:
                return ""
            return limits.reached_budget(self.run.usage.plus(parser.spent), settings.max_cost, settings.max_tokens)

        def on_start(pid: int) -> None:
            self.folder.record_start(pid)
            words = tuple(whole_words(word, _LONGEST_WORD, "…") for word in invocation.argv)
            if self.purpose != "message":
                context.tell(events.Notice(f"Prompt: {one_line(request.prompt)}", "debug"))
            context.tell(events.AgentStarted(self.choice.name, words, pid, self.purpose))

        stdin = prompt if invocation.stdin == "prompt" else b""
        visible = context.child_env(self.run.number, self.choice.hidden)
        env = {**visible, **self.folder.env, "RALPH_PROMPT_FILE": self.folder.prompt, **invocation.env}
        command = Command(argv=tuple(invocation.argv), cwd=str(context.root), env=env, stdin=stdin)
        with context.log(self.folder.stdout) as out, context.log(self.folder.stderr) as err:
            process = context.process(
                context.sandboxed(command, request.scratch),
                timeout=settings.turn_timeout,
                idle=settings.idle_timeout if is_limited else limits.IDLE_TIMEOUT,
                on_start=on_start,
                is_idle=lambda: not parser.is_waiting and (is_limited or parser.is_heard),
            )
            ended = process.stream(on_lines, stdout_log=out, stderr_log=err, redact=context.redact)
        context.report_problems(out, err)
        turn = _with_answer(parser.turn(ended), ended, invocation.answer_file)
        context.tell(
            events.AgentFinished(
                exit_code=ended.code,
                duration_s=ended.duration,
                tool_calls=turn.tool_calls,
                tool_errors=parser.tool_errors,
                failure=turn.failure.kind if turn.failure else "",
                reason=turn.failure.reason if turn.failure else "",
                ended_by=ended.ended_by,
                skipped_lines=parser.skipped,
                leftovers=ended.leftovers,
            )
        )
        return turn


def _with_answer(turn: Turn, ended: Exit, answer_file: str) -> Turn:
    """Return the turn with its times and the answer that the agent wrote to a file. A failed turn has no answer."""
    if answer_file and turn.failure is None:
        with suppress(OSError), open(open_file(answer_file), encoding="utf-8", errors="replace") as file:
            turn = replace(turn, text=file.read(_LONGEST_ANSWER))
    return replace(turn, ended_at=ended.at, duration=ended.duration, ended_by=ended.ended_by, exit_code=ended.code)
