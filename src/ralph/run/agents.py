"""How does an agent take a turn? As a child process that reads its prompt, and whose stream becomes events."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.core import events, limits
from ralph.core.model import Exit, Failure, Run, Turn, Usage
from ralph.core.text import one_line, whole_words
from ralph.files import open_file
from ralph.processes.process import run_process
from ralph.processes.program import CannotStart, Command, find_program
from ralph.records.folder import TurnFolder, write
from ralph.run.choices import Choice, workers
from ralph.run.context import Context
from ralph.settings import Settings

if TYPE_CHECKING:
    from ralph.agents.protocol import Invocation, TurnRequest


_LONGEST_ANSWER = 1 << 20
_LONGEST_WORD = 500  # that is shown of a command line


class CliAgent:
    """One of the choices takes each turn: the one that is there for its purpose; else the first, unless that has run
    into a limit and another may go on. An agent that tells what it spends while it works is ended when the run has
    used its budget."""

    def __init__(self, choices: Sequence[Choice], settings: Settings, context: Context) -> None:
        self._choices = list(choices)
        self._settings, self._context = settings, context

    @property
    def is_known(self) -> bool:
        """Whether the one that works is a coding agent by its name, and no command of the user's own."""
        return self._choices[0].module.NAME != "command"

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        at = self._whose(purpose, run)
        choice = self._choices[at]
        if self._settings.session == "continue" and not choice.purposes and has_lost_session(run, choice):
            return Turn(
                text="", exit_code=None, failure=Failure("fatal", f"{choice.name} named no session to continue")
            )
        folder = self._context.folder.turn(run.number, purpose, choice.name)
        attempt = _Turn(choice, self._settings, self._context, folder=folder, run=run, purpose=purpose)
        turn = attempt.take(prompt)
        if turn.failure and turn.failure.kind == "fatal":
            choice = self._choices[at] = self._wiser(choice, turn.failure, run.number)
            second = _Turn(choice, self._settings, self._context, folder=folder, run=run, purpose=purpose)
            if second.words(prompt) != attempt.words(prompt):
                self._context.tell(events.Notice(f"{choice.name} refused an option, and is started without it"))
                turn = second.take(prompt)
        # The answer may become part of a prompt or of a file: from here on it holds no keys.
        turn = replace(turn, text=self._context.redact.text(turn.text), agent=choice.name)
        folder.ended(turn, turn.text.encode("utf-8", "replace"))
        return turn

    def _whose(self, purpose: str, run: Run) -> int:
        """Which of the choices takes a turn."""
        for at, choice in enumerate(self._choices):
            if purpose in choice.purposes:
                return at
        names = workers(self._choices)
        return names.index(limits.available(run, names) or names[0])

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
        self, choice: Choice, settings: Settings, context: Context, *, folder: TurnFolder, run: Run, purpose: str
    ) -> None:
        self._choice, self._settings, self._context = choice, settings, context
        self._folder, self._run, self._purpose = folder, run, purpose
        continues = settings.session == "continue" and not choice.purposes
        self._session = run.session_of(choice.name) if continues else None

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

        settings, looks_only = self._settings, self._context.looks_only
        # What an agent costs and does is known from its structured stream alone.
        measured = settings.max_cost or settings.max_tokens or settings.min_tool_calls or settings.session == "continue"
        return TurnRequest(
            prompt=prompt,
            prompt_file=self._folder.prompt,
            command=self._choice.command,
            flags=self._choice.flags,
            model=self._choice.model,
            yolo=settings.yolo and not looks_only,
            stream=(settings.stream_agent_output or bool(measured)) and self._purpose != "message",
            session=self._session,
            max_turns=settings.agent.max_turns,
            root=os.geteuid() == 0 if hasattr(os, "geteuid") else False,
            understands=self._choice.understands,
            scratch=self._folder.scratch() if self._context.box else self._folder.path,
            usage_before=self._usage_before(),
            boxed=self._context.box is not None,
            looks_only=looks_only,
            folders=self._context.lent,
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
                context.boxed(command, request.scratch),
                on_lines=on_lines,
                on_start=on_start,
                meanwhile=lambda: context.tell(events.Notice(f"Prompt: {one_line(request.prompt)}", "debug")),
                limits=context.limits(self._settings.turn_timeout, self._patience),
                interrupt=context.interrupt,
                stdout_log=out,
                stderr_log=err,
                redact=context.redact,
                tick=context.tick,
                keep_children=context.keep_children,
                is_idle=lambda: not parser.is_waiting and (self._settings.idle_timeout is not None or parser.is_heard),
            )
        context.tell_troubles(out, err)
        turn = _answered(parser.turn(ended), ended, invocation.answer_file)
        context.tell(_finished(turn, ended, parser.skipped, parser.tool_errors))
        return turn

    @property
    def _patience(self) -> float:
        """How long it may be silent; unless it was said, only one whose stream tells of all that it does is held to
        it: others are silent for good reasons."""
        return limits.IDLE if self._settings.idle_timeout is None else self._settings.idle_timeout

    def _limit_reached(self, spent: Usage) -> str:
        """The limit that the run has reached by what this turn has spent so far."""
        total = self._run.usage.plus(spent)
        if self._settings.max_cost is not None and (total.cost_usd or 0.0) >= self._settings.max_cost:
            return "max-cost"
        return "max-tokens" if self._settings.max_tokens and total.tokens >= self._settings.max_tokens else ""

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
    if answer_file and turn.failure is None:
        with suppress(OSError), open(open_file(answer_file), encoding="utf-8", errors="replace") as file:
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
