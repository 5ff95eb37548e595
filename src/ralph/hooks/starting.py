"""How does a loop inside a session begin, by a command line or by what a person types, and how does a person end it?
No shell reads `/ralph-loop …`, and none is imitated: the task is whatever stands between the options, to the letter.
One pair of quotes around the whole of it is taken off; everything inside stays as it is."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from json import dumps
from pathlib import Path
from typing import Any

from msgspec import Struct

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.files import locked, state_folder
from ralph.hooks import loops
from ralph.hooks.hosts import HOSTS, TEXTS
from ralph.hooks.judging import NextTurn, end, opened, watched
from ralph.hooks.loops import Loop
from ralph.loop import run_loop
from ralph.records.folder import cannot_write, new_run_id, prepare
from ralph.records.journal import Seal
from ralph.records.register import loops as known_loops
from ralph.run import order as orders
from ralph.run.options import RUN, Option, layer, put_value
from ralph.run.policy import refuse_what_cannot_end
from ralph.settings import PRESETS, Settings, load
from ralph.settings.trust import refuse_untrusted

# What a loop inside a session can be told, by `ralph hook start` and behind /ralph-loop, and where it differs from what
# `ralph run` says of it.
_PROMISE = PRESETS["promise"]
_MEANT = {
    **dict.fromkeys(("ultrawork", "claims", "claim_anywhere", "check", "tasks", "protect", "stall"), ""),
    **dict.fromkeys(("max_cost", "max_tokens"), ""),
    "completion_promise": "Done when the agent answers <promise>TEXT</promise> (default: DONE).",
    "on_promise_no_work": f"What happens to a claim without work (default: {Settings().on_promise_no_work}).",
    "maximum_iterations": f"Keep the agent from stopping N times at most (default: {_PROMISE['maximumIterations']}).",
    "min_tool_calls": f"How many tool calls a believable claim needs (default: {_PROMISE['minToolCalls']}).",
    "check_timeout": "How long one check may take.",
    "sandbox": "Not here: whoever started the session has given it a box, or none.",
    "max_time": "End when the agent stops after this long (90, 90s, 5m, 1h30m).",
}
_FORCE = Option("--force", "Replace the loop that is active in the session.", group="Session")
OPTIONS = (*(option.saying(_MEANT[option.name]) for option in RUN if option.name in _MEANT), _FORCE)


QUOTES = {'"': '"', "'": "'", "“": "”"}
_COMMAND = re.compile(r"\s*(/?)(?:ralph:)?(ralph-loop|ulw-loop|cancel-ralph)(?=\s|$)\s*")


class Spoken(Struct, frozen=True):
    """A command of ours: its name, and all that follows it."""

    name: str
    rest: str


def command_in(prompt: str) -> Spoken | None:
    """The command that a prompt begins with. Some hosts put the text of its file in front of what was typed."""
    for _, _, text in TEXTS.values():
        prompt = prompt.removeprefix(text)
    found = _COMMAND.match(prompt)
    if found is None:
        return None
    slash, name, rest = found[1], found[2], prompt[found.end() :]
    # Without the slash it may as well be a sentence about the command.
    if not slash and name != "cancel-ralph" and not rest.startswith((*QUOTES, "--")):
        return None
    if not slash and name == "cancel-ralph" and rest.strip():
        return None
    return Spoken(name, rest)


def parse(text: str, options: Sequence[Option]) -> tuple[str, dict[str, Any]]:
    """The task, and the values of the options in front of it and behind it, by name."""
    reader = _Reader(options)
    values: dict[str, Any] = {}
    text = text[reader.leading(text, values) :].strip()
    task, rest = _quoted(text, reader) or reader.split(text)
    reader.all_of(rest, values)
    return task, values


def _quoted(text: str, reader: "_Reader") -> tuple[str, str] | None:
    """The task inside one pair of quotes, and the options after them. Where quotes do anything else, they are text."""
    close = QUOTES.get(text[:1])
    found = re.compile(rf"(?<!\\){re.escape(close)}").search(text, 1) if close else None
    if close is None or found is None:
        return None
    task, rest = text[1 : found.start()], text[found.end() :]
    if not reader.is_options(rest) and not rest.lstrip().startswith("--"):
        return None
    return task.replace(f"\\{close}", close), rest


class _Reader:
    """Reads options from text, word by word. A value may stand in quotes."""

    _WORD = re.compile(r"\s*(--?[A-Za-z][\w-]*)(?:=|(?=\s)|$)")
    _VALUE = re.compile(r"\s*(?:\"((?>(?:[^\"\\]++|\\.)*))\"|'([^']*+)'|(\S++))(?=\s|$)", re.DOTALL)

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = {name: option for option in options for name in option.names}

    def leading(self, text: str, values: dict[str, Any]) -> int:
        """Reads what options come first; how far they go."""
        at = 0
        while (step := self._one(text, at, values)) is not None:
            at = step
        return at

    def is_options(self, text: str) -> bool:
        at = self.leading(text, {})
        return not text[at:].strip()

    def split(self, text: str) -> tuple[str, str]:
        """A task without quotes, which ends where nothing but options follows, and these."""
        hopeless = set[int]()  # places from which options lead to something else: each is gone through once
        for dashes in re.finditer(r"(?:^|(?<=\s))--", text):
            at: int | None = dashes.start()
            while at is not None and at not in hopeless:
                hopeless.add(at)
                at = self._one(text, at, {})
                if at == len(text):
                    return text[: dashes.start()].strip(), text[dashes.start() :]
        return text, ""

    def all_of(self, text: str, values: dict[str, Any]) -> None:
        at = self.leading(text, values)
        rest = text[at:].strip()
        if rest:
            raise UserError(f"cannot understand {rest[:80]!r}", f"options: {', '.join(self._options)}")

    def _one(self, text: str, at: int, values: dict[str, Any]) -> int | None:
        word = self._WORD.match(text, at)
        option = self._options.get(word[1]) if word else None
        if word is None or option is None:
            return None
        if option.kind == "flag":
            values[option.name] = True
            return word.end()
        value = self._VALUE.match(text, word.end())
        if value is None:
            return None
        said = value[1].replace('\\"', '"') if value[1] is not None else value[2] if value[2] is not None else value[3]
        if option.choices and said not in option.choices:
            raise UserError(f"{option.names[-1]} {said}: not one of {', '.join(option.choices)}")
        try:
            put_value(values, option, said)
        except ValueError:
            raise UserError(f"{option.names[-1]} {said}: not a number") from None
        return value.end()


def start(
    workspace: Path,
    session: str,
    task: str,
    said: Mapping[str, Any],
    *,
    agent: str = "",
    transcript: str = "",
    force: bool = False,
    env: Mapping[str, str] = os.environ,
) -> tuple[Loop, str]:
    """A new loop in `session`, and what its agent has to be told. `said` are settings that go before the project's."""
    if not loops.is_nameable(session):
        raise UserError("no session is named" if not session else "that is no session's id", "give --session ID")
    if not task.strip():
        raise UserError("the task is empty", "say what to achieve")
    settings = _settings(workspace, said, env)
    prepare(workspace)
    for folder in (workspace / loops.FOLDER, workspace / loops.FOLDER / "runs"):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from None
    with locked(workspace / loops.FOLDER):
        _make_way(str(workspace), session, force)
        facts = {
            "session": session,
            "agent": agent,
            "run": new_run_id(time.time()),
            "task": task.encode("utf-8", "replace").decode(),
            "started": time.time(),
            "max_iterations": settings.maximum_iterations,
            "transcript": transcript,
            "offset": os.path.getsize(transcript) if transcript and os.path.exists(transcript) else 0,
        }
        loop = Loop(str(workspace), facts)
        contract = _begin(loop, settings)
        loop.save()
        loop.log(f"started: {one_line(task)}")
    _enlist(loop, env)
    return loop, contract


def cancel(loop: Loop, why: str = "a person asked for it") -> str:
    """Ends a loop at once; what came of that. Its folder must be locked."""
    end(loop, Stop(Outcome.INTERRUPTED, why))
    return f"{loop.status} after {plural(loop.iteration, 'continuation')}"


def prompted(data: bytes, host: str) -> str:
    """The answer to the host; empty if the prompt is no command of ours."""
    event = loops.table(data)
    typed = event.get("submitted_prompt") or event.get("prompt")
    spoken = command_in(typed) if isinstance(typed, str) else None
    if spoken is None:
        return ""
    try:
        if spoken.name != "cancel-ralph":
            return _begun(event, spoken, host)
        session = loops.session_of(event)
        root = loops.find(session, loops.places_of(event))
        if root is None:
            return _refused("no loop is active in this session")
        with locked(Path(root, loops.FOLDER)):
            return _refused(cancel(loops.read(root, session)))
    except UserError as error:
        return _refused(error.advice)


def _begun(event: "loops.Event", spoken: Spoken, host: str) -> str:
    task, values = parse(spoken.rest, OPTIONS)
    if spoken.name == "ulw-loop":
        values["ultrawork"] = True
    session, path = loops.session_of(event), event.get("transcript_path")
    # The project of the session, not the folder that the agent happens to be in.
    place = next((place for place in loops.places_of(event) if os.path.isdir(place)), "")
    if not place:
        raise UserError("the workspace of this session is unknown", "start the loop with `ralph hook start -C DIR`")
    _, contract = start(
        Path(place).resolve(),
        session,
        task,
        layer(OPTIONS, values),
        agent=host,
        transcript=path if isinstance(path, str) else transcript_of(session, host, os.environ),
        force=bool(values.get("force")),
    )
    name = event.get("hook_event_name")
    if not name:  # Copilot, which does not name its events, wants it unwrapped
        return dumps({"additionalContext": contract})
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": contract}})


def _refused(reason: str) -> str:
    """The prompt does not reach the agent; the person reads why."""
    return dumps({"decision": "block", "reason": f"ralph: {reason}"})


def _settings(workspace: Path, said: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """The promise preset under the project's settings. Whatever else those take for a claim, here it is a promise."""
    refuse_untrusted(workspace, env)
    settings = load(workspace, {**said, "preset": "promise"}, env=env).settings
    promises = [claim for claim in settings.until if claim.startswith("promise:")]
    promised = {**said, "preset": "promise", "until": promises[:1] or ["promise:DONE"]}
    settings = load(workspace, promised, env=env).settings
    # What keeps people safe, and cannot do so inside a session, is not left out in silence.
    if settings.sandbox.enabled:
        raise UserError(
            "the settings ask for a sandbox, and an agent that is at work already cannot be put into one",
            "loop from outside: `ralph run --preset promise --sandbox`; or set sandbox.enabled to false",
        )
    if settings.max_cost is not None:
        from importlib.util import find_spec

        if find_spec("genai_prices") is None:
            raise UserError(
                "maxCost cannot be watched inside a session: agents write down tokens, not prices",
                "install the price table (the extra `prices`), or set maxTokens instead",
            )
    refuse_what_cannot_end(settings)
    return settings


def _make_way(root: str, session: str, force: bool) -> None:
    """One loop per session: an older one is replaced only if that is asked for."""
    if not loops.exists(root, session):
        return
    try:
        older = loops.read(root, session)
    except loops.Unreadable as error:
        aside = loops.set_aside(root, session)
        loops.write_log(root, f"session={session} unreadable state moved to {aside}: {error}")
        return
    if not force:
        place = f"{older.iteration} of {older.max_iterations} continuations"
        raise UserError(
            f"a loop is active in this session ({place}): {one_line(older.task, 80)}",
            "give --force to replace it, or cancel it with /cancel-ralph or `ralph hook cancel`",
        )
    cancel(older, "replaced by a new loop")


def _begin(loop: Loop, settings: Settings) -> str:
    """Keeps the order, the state of the workspace and what is protected. What the agent reads first is the loop's."""
    with ExitStack() as stack:
        engine = opened(stack, loop, settings)
        order = orders.encode(orders.Order(settings=settings, workspace=loop.root, version=__version__))
        if engine.context.redact(order) != order:  # a check without its key could not be run again
            raise UserError(
                "the settings hold what looks like a key, and keys are not written to disk",
                "put it into a variable of the environment, and name that in the check",
            )
        engine.context.folder.write("run.json", order)
        run = Run(id=loop.run, goal=loop.task, base_tree=engine.trees.begin())
        started = events.RunStarted(
            goal=loop.task,
            preset=settings.preset,
            agent=loop.agent,
            workspace=loop.root,
            max_iterations=engine.plan.cap,
            checks=tuple(guardrail.command for guardrail in settings.guardrails),
            claims=tuple(map(str, engine.plan.claims)),
            gates=tuple(engine.plan.gates),
            version=__version__,
            base_tree=run.base_tree,
        )
        engine.context.tell(started)
        Seal(loop.run, engine.context.folder.path, os.environ).note()
        watched(loop).begin()
        try:
            _, stop = run_loop(engine.parts, run)
        except NextTurn as wanted:
            return wanted.prompt
    if stop.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    raise UserError(f"the loop would end before it begins: {stop.reason}", "change the settings, or what you give")


def _enlist(loop: Loop, env: Mapping[str, str]) -> None:
    """Makes the loop known to `ralph ps`, and forgets those that are over. It is none the worse where it cannot be."""
    links = state_folder(env, "loops")
    with suppress(OSError):
        os.makedirs(links, mode=0o700, exist_ok=True)
        there = {entry.path for entry in os.scandir(links)}  # first: another loop may be starting at this moment
        for link in there - {link for link, file in known_loops(env).items() if file != loop.path}:
            os.unlink(link)
        os.symlink(loop.path, f"{links}/{loop.run}")


def transcript_of(session: str, agent: str, env: Mapping[str, str]) -> str:
    """The transcript of a session, where the agents keep theirs: what is in it already is no work of the loop's."""
    if not session or not session.replace("-", "").isalnum():
        return ""
    for host in HOSTS.values():
        if agent in ("", host.name):
            found = next(host.folder(env).glob(host.transcripts.format(session=session)), None)
            if found:
                return str(found)
    return ""
