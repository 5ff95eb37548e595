"""Does an agent do what ralph needs of one? It is asked to repeat a word, and what ralph understood of it is told."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from ralph.agents import known
from ralph.core import events
from ralph.core.model import Run, Turn
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, one_line
from ralph.doctor.machine import Finding
from ralph.errors import to_install
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.records.folder import RunFolder, TurnFolder
from ralph.run.agents import CliAgent
from ralph.run.choices import Choice
from ralph.run.context import Context
from ralph.settings import Settings
from ralph.show.words import duration, money, plural

PATIENCE = 180.0  # seconds, where the settings give a turn no limit
_SAMPLE = 1 << 20


def probed(
    choice: Choice, settings: Settings, keeper: Keeper, workspace: Path, env: Mapping[str, str]
) -> Iterator[Finding]:
    """Has the agent take one turn in the workspace. This costs what a few words cost."""
    word = os.urandom(6).hex()
    folder = RunFolder(Path(tempfile.mkdtemp(prefix="ralph-probe-")), "probe")
    folder.make()
    heard: list[events.Event] = []

    def hear(*happened: events.Event) -> None:
        heard.extend(happened)

    with Interrupt() as interrupt:
        context = Context(
            root=workspace,
            folder=folder,
            keeper=keeper,
            interrupt=interrupt,
            tell=hear,
            env=env,
            redact=Redactor(secret_values(env)),
            grace=0.0,
        )
        patient = replace(settings, turn_timeout=settings.turn_timeout or PATIENCE, session="fresh")
        turn = CliAgent([choice], patient, context).take_turn(f"Reply with exactly: {word}", Run(id="probe"))
        if interrupt.level:
            raise KeyboardInterrupt
    answer = _answer(turn, word, folder.turn(1))
    yield answer
    if turn.failure is None:
        yield _stream(choice, turn, heard, folder.turn(1))
        yield _tools(turn)
        yield _cost(turn)
        yield _session(choice, turn)
    if answer.state != "fail":
        import shutil

        shutil.rmtree(folder.path.parent.parent)


def _answer(turn: Turn, word: str, logs: TurnFolder) -> Finding:
    if turn.failure:
        advice = f"see {logs.stderr} and {logs.stdout}"
        return Finding("answer", "fail", f"the turn failed ({turn.failure.kind}): {turn.failure.reason}", advice)
    said = one_line(clean(turn.text), 100)
    if turn.text.strip() == word:
        return Finding("answer", "ok", f"the word it was asked for, after {duration(turn.duration)}")
    if word in turn.text:
        return Finding(
            "answer", "ok", f"the word it was asked for, among others, after {duration(turn.duration)}: {said}"
        )
    missing = f"not the word it was asked for: {said}" if said else "nothing"
    return Finding("answer", "fail", missing, f"does the prompt reach it? see {logs.prompt} and {logs.stdout}")


def _stream(choice: Choice, turn: Turn, heard: list[events.Event], logs: TurnFolder) -> Finding:
    if turn.tool_calls is None:
        advice = "if it can print a stream of JSON, ask for it: ralph will see tools, costs and sessions"
        return Finding("stream", "note", "plain text", advice)
    unread = sum(event.skipped_lines for event in heard if isinstance(event, events.AgentFinished))
    strange = sorted({event.kind for event in heard if isinstance(event, events.AgentUnknown)})
    dialect = choice.module.NAME if choice.module.NAME in known() else _dialect(logs)
    detail = f"JSON, line by line, as {dialect} prints it"
    if unread or strange:
        kinds = f"; kinds nobody knows: {', '.join(strange)}" if strange else ""
        unclear = f"{detail}; {plural(unread, 'line')} not understood{kinds}"
        return Finding("stream", "note", unclear, f"see {logs.stdout}")
    return Finding("stream", "ok", detail)


def _dialect(logs: TurnFolder) -> str:
    """The known agent whose stream this is."""
    from ralph.agents.command import dialect_of
    from ralph.agents.wire import TABLE, read

    with open(logs.stdout, "rb") as stream:
        tables = (read(line, TABLE) for line in stream.read(_SAMPLE).split(b"\n"))
        return next(filter(None, (dialect_of(table) for table in tables if table)), "no agent that is known")


def _tools(turn: Turn) -> Finding:
    if turn.tool_calls is None:
        return Finding("tools", "note", "it does not tell of its tool calls", "a changed workspace will count as work")
    return Finding("tools", "ok", f"it tells of its tool calls: {turn.tool_calls} this time")


def _cost(turn: Turn) -> Finding:
    usage = turn.usage
    if usage.cost_usd is not None:
        by = "estimated from its tokens" if usage.estimated else "as it says"
        return Finding("cost", "ok", f"{money(usage.cost_usd)}, {by}; {plural(usage.tokens, 'token')}")
    if usage.tokens:
        advice = f"for an estimate, name the model with --model, and {to_install('prices')}; --max-tokens works without"
        return Finding("cost", "note", f"{usage.tokens} tokens, no price", advice)
    return Finding("cost", "note", "unknown", "--max-cost and --max-tokens cannot end such a run; use --max-time")


def _session(choice: Choice, turn: Turn) -> Finding:
    if turn.session and choice.module.RESUMES:
        return Finding("session", "ok", f"{turn.session} can be continued (--session continue)")
    why = "it cannot be continued" if turn.session else "it names none"
    return Finding("session", "note", f"{why}: every turn begins afresh", "say in the goal what a fresh mind must know")
