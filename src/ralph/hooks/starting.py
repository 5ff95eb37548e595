"""How does a loop inside a session begin, and how does a person end it? What is fixed at the start is kept."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Turn
from ralph.core.promise import marker_of, promise_contract
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.hooks import loops
from ralph.hooks.hosts import HOSTS
from ralph.hooks.judging import Opened, opened
from ralph.hooks.telling import finished, tell
from ralph.records.folder import cannot_write, new_run_id, prepare
from ralph.records.register import loops as known_loops
from ralph.records.register import registry
from ralph.run import order as orders
from ralph.run.options import RUN, Option
from ralph.settings import PRESETS, Settings, load

CANCELLED = "CANCELLED"

# What a loop inside a session can be told, by `ralph hook start` and behind /ralph-loop, and where it differs from what
# `ralph run` says of it.
_PROMISE = PRESETS["promise"]
_MEANT = {
    **dict.fromkeys(("completion_promise", "on_promise_no_work", "ultrawork", "claim_anywhere", "check", "tasks"), ""),
    **dict.fromkeys(("protect", "max_cost", "max_tokens", "stall"), ""),
    "maximum_iterations": f"Keep the agent from stopping N times at most (default: {_PROMISE['maximumIterations']}).",
    "min_tool_calls": f"How many tool calls a believable claim needs (default: {_PROMISE['minToolCalls']}).",
    "check_timeout": "How long one check may take.",
    "max_time": "End when the agent stops after this long (90, 90s, 5m, 1h30m).",
}
_FORCE = Option(("--force",), "Replace the loop that is active in the session.", "Session", kind="flag")
OPTIONS = (*(option.saying(_MEANT[option.name]) for option in RUN if option.name in _MEANT), _FORCE)


def overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a layer of settings."""
    said: dict[str, Any] = {}
    for option in OPTIONS:
        if option.key and option.name in values:
            said[option.key] = option.sets if option.kind == "flag" else values[option.name]
    if "guardrails" in said:
        said["guardrails"] = [{"command": command} for command in said["guardrails"]]
    if "completion_promise" in values:
        said["until"] = [f"promise:{values['completion_promise']}"]
    return said


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
) -> loops.Loop:
    """A new loop in `session`. `said` are settings, in the words of settings.json; the project's own lie below them."""
    if not loops.is_nameable(session):
        raise UserError("no session is named" if not session else "that is no session's id", "give --session ID")
    if not task.strip():
        raise UserError("the task is empty", "say what to achieve")
    settings = _settings(workspace, said, env)
    _refuse_what_cannot_be_watched(settings)
    root = str(workspace)
    _make_folders(workspace)
    with loops.locked(root):
        _make_way(root, session, force)
        loop = loops.Loop(root, _facts(settings, session, task, agent, transcript))
        _begin(loop, settings)
        loop.save()
        loop.log(f"started: {one_line(task)}")
    _enlist(loop, env)
    return loop


def cancel(loop: loops.Loop, why: str = "a person asked for it") -> None:
    """Ends a loop at once. The lock of its workspace must be held."""
    told = finished(loop, Outcome.INTERRUPTED.value, why, loop.facts["iteration"], Outcome.INTERRUPTED.exit_code)
    tell(loop, [told])
    loop.log(f"{CANCELLED}: {why}")
    loop.end(CANCELLED)


def contract(loop: loops.Loop) -> str:
    """What the agent is told when a loop begins."""
    return promise_contract(loop.facts["task"], marker_of(loop.facts["promise"]))


def recorded(root: str) -> Iterator[loops.Loop]:
    """The loops of a workspace: those that go on, then those that have ended."""
    for folder in (Path(root, loops.FOLDER), Path(root, loops.FOLDER, "ended")):
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
            try:
                yield loops.read_file(root, str(path))
            except loops.Unreadable:
                continue  # the stop hook will say so


def _settings(workspace: Path, said: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """The promise preset under the project's settings. Whatever else those take for a claim, here it is a promise."""
    settings = load(workspace, {**said, "preset": "promise"}, env=env).settings
    promises = [claim for claim in settings.until if claim.startswith("promise:")]
    return load(workspace, {**said, "preset": "promise", "until": promises[:1] or ["promise:DONE"]}, env=env).settings


def _refuse_what_cannot_be_watched(settings: Settings) -> None:
    if settings.max_cost is None:
        return
    from importlib.util import find_spec

    if find_spec("genai_prices") is None:
        raise UserError(
            "maxCost cannot be watched inside a session: agents write down tokens, not prices",
            "install the price table (the extra `prices`), or set maxTokens instead",
        )


def _make_folders(workspace: Path) -> None:
    prepare(workspace)
    for folder in (workspace / loops.FOLDER, workspace / loops.FOLDER / "runs"):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from None


def _make_way(root: str, session: str, force: bool) -> None:
    """One loop per session: an older one is replaced only if that is asked for."""
    if loops.find(session, [root]) != root:
        return
    try:
        older = loops.read(root, session)
    except loops.Unreadable as error:
        aside = loops.set_aside(root, session)
        loops.write_log(root, f"session={session} unreadable state moved to {aside}: {error}")
        return
    if not force:
        place = f"{older.facts['iteration']} of {older.facts['max_iterations']} continuations"
        raise UserError(
            f"a loop is active in this session ({place}): {one_line(older.facts['task'], 80)}",
            "give --force to replace it, or cancel it with /cancel-ralph or `ralph hook cancel`",
        )
    cancel(older, "replaced by a new loop")


def _facts(settings: Settings, session: str, task: str, agent: str, transcript: str) -> dict[str, Any]:
    return {
        "session": session,
        "agent": agent,
        "run": new_run_id(time.time()),
        "status": loops.ACTIVE,
        "task": task.encode("utf-8", "replace").decode(),
        "promise": settings.until[0].removeprefix("promise:"),
        "started": time.time(),
        "iteration": 0,
        "max_iterations": settings.maximum_iterations,
        "min_tool_calls": settings.min_tool_calls,
        "on_promise_no_work": settings.on_promise_no_work,
        "ultrawork": settings.ultrawork,
        "anywhere": settings.claim_anywhere,
        "gated": is_gated(settings),
        "transcript": transcript,
        "offset": os.path.getsize(transcript) if transcript and os.path.exists(transcript) else 0,
        "tool_calls": 0,
    }


def is_gated(settings: Settings) -> bool:
    """Whether more than a promise, the work behind it and a number of continuations decides."""
    limits = (settings.max_cost, settings.max_tokens, settings.max_time, settings.stall, settings.restart_delay)
    gates = (settings.guardrails, settings.tasks, settings.protect)
    return any((*limits, *gates, settings.include_iteration_count_in_prompt))


def _begin(loop: loops.Loop, settings: Settings) -> None:
    """Keeps what was asked for, the state of the workspace, and copies of what is protected."""
    facts = loop.facts
    with ExitStack() as stack:
        engine = opened(stack, loop, settings, Turn(""))
        engine.context.folder.write("run.json", _order(loop, settings, engine))
        started = events.RunStarted(
            facts["task"],
            settings.preset,
            facts["agent"],
            loop.root,
            engine.plan.cap,
            tuple(guardrail.command for guardrail in settings.guardrails),
            tuple(map(str, engine.plan.claims)),
            tuple(engine.plan.gates),
            version=__version__,
            base_tree=engine.history.begin(),
        )
        engine.context.tell(started)


def _enlist(loop: loops.Loop, env: Mapping[str, str]) -> None:
    """Makes the loop known to `ralph ps`, and forgets those that are over. It is none the worse where it cannot be."""
    links = registry(env, "loops")
    with suppress(OSError):
        os.makedirs(links, mode=0o700, exist_ok=True)
        there = {entry.path for entry in os.scandir(links)}  # first: another loop may be starting at this moment
        for link in there - {link for link, file in known_loops(env).items() if file != loop.path}:
            os.unlink(link)
        os.symlink(loop.path, f"{links}/{loop.facts['run']}")


def _order(loop: loops.Loop, settings: Settings, engine: Opened) -> bytes:
    """The settings for as long as the loop goes on. A check without its key could not be run again."""
    data = orders.encode(orders.Order(settings, loop.root, version=__version__))
    if engine.context.redact(data) != data:
        raise UserError(
            "the settings hold what looks like a key, and keys are not written to disk",
            "put it into a variable of the environment, and name that in the check",
        )
    return data


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
