"""Start and cancel loops inside a session, by `ralph hook start` or by a prompt such as `/ralph-loop "TASK"`.

A prompt is not parsed like a shell command: the task is the text between the options, verbatim, without one pair of
quotes around the whole of it.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from json import dumps
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.files import locked
from ralph.git.client import find_git
from ralph.hooks import loops
from ralph.hooks.hosts import COMMANDS, HOSTS
from ralph.hooks.judging import NextTurn, end, open_engine, watch_settings
from ralph.hooks.loops import Loop
from ralph.loop import run_loop
from ralph.options.command_options import QUOTES, RUN, parse_prompt_line
from ralph.options.option import Option, as_settings, only
from ralph.run import request as requests
from ralph.run.policy import refuse_endless
from ralph.settings import PRESET_OF, Settings, load
from ralph.settings.trust import refuse_untrusted
from ralph.store.folder import cannot_write, new_run_id, prepare
from ralph.verdict.exam_commands import validate_exams

# Options of `ralph run` that make sense inside a session.
_NAMES = (
    *("maximum_iterations", "completion_promise", "min_tool_calls", "on_promise_no_work", "ultrawork"),
    *("claims", "claim_anywhere", "check", "check_timeout", "tests", "tasks", "protect", "stall"),
    *("max_tokens", "max_time"),
)
OPTIONS = (*only(RUN, *_NAMES), Option("--force", "Replace the loop that is active in the session.", group="Session"))

_COMMAND = re.compile(r"\s*(/?)(?:ralph:)?(ralph-loop|ulw-loop|cancel-ralph)(?=\s|$)\s*")


def command_in(prompt: str) -> tuple[str, str] | None:
    """Return the name of the command that a prompt starts with, and the text after it; None if there is none. Some
    hosts put the text of the command's file in front of the text that the user typed."""
    for _, _, text in COMMANDS.values():
        prompt = prompt.removeprefix(text)
    match = _COMMAND.match(prompt)
    if match is None:
        return None
    slash, name, rest = match[1], match[2], prompt[match.end() :]
    # Without the slash the prompt may be a sentence about the command.
    is_sentence = rest.strip() if name == "cancel-ralph" else not rest.startswith((*QUOTES, "--"))
    return None if is_sentence and not slash else (name, rest)


def start(
    workspace: Path,
    session: str,
    task: str,
    overrides: Mapping[str, Any],
    *,
    agent: str = "",
    transcript: str = "",
    force: bool = False,
    env: Mapping[str, str] = os.environ,
) -> tuple[Loop, str]:
    """Start a loop in `session`; return it, and its agent's instructions. `overrides` are settings that take precedence
    over the project's."""
    if not loops.is_nameable(session):
        raise UserError("no session is named" if not session else "not a session id", "give --session ID")
    if not task.strip():
        raise UserError("the task is empty", "say what to achieve")
    settings = _load_settings(workspace, overrides, env)
    prepare(workspace)
    for folder in (workspace / loops.FOLDER, workspace / loops.FOLDER / "runs"):
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from None
    with locked(workspace / loops.FOLDER):
        _end_older_loop(str(workspace), session, force)
        loop = Loop(
            root=str(workspace),
            session=session,
            agent=agent,
            run=new_run_id(time.time()),
            task=task.encode("utf-8", "replace").decode(),
            started=time.time(),
            max_iterations=settings.maximum_iterations,
            transcript=transcript,
            offset=os.path.getsize(transcript) if transcript and os.path.exists(transcript) else 0,
        )
        contract = _begin(loop, settings)
        loop.save()
        loop.log(f"started: {one_line(task)}")
    return loop, contract


def cancel(loop: Loop, why: str = "cancelled by the user") -> str:
    """End a loop at once and return its status. The folder of loops must be locked."""
    end(loop, Stop(Outcome.INTERRUPTED, why))
    return f"{loop.status} after {plural(loop.iteration, 'continuation')}"


def answer_prompt(event: loops.HookEvent, host: str) -> str:
    """Return the answer to a host whose user sent a prompt; empty unless the prompt is a command of ralph."""
    prompt = event.get("prompt")
    command = command_in(prompt) if isinstance(prompt, str) else None
    if command is None:
        return ""
    name, rest = command
    try:
        if name != "cancel-ralph":
            return _start_by_prompt(event, rest, host, {"ultrawork": True} if name == "ulw-loop" else {})
        session = loops.session_of(event)
        root = loops.find(session, loops.places_of(event))
        if root is None:
            return _reject("no loop is active in this session")
        with locked(Path(root, loops.FOLDER)):
            return _reject(cancel(loops.read(root, session)))
    except UserError as error:
        return _reject(error.advice)


def _start_by_prompt(event: loops.HookEvent, line: str, host: str, more: dict[str, Any]) -> str:
    task, values = parse_prompt_line(line, OPTIONS)
    values |= more
    session, path = loops.session_of(event), event.get("transcript_path")
    # The first of them is the project of the session, which is not always the agent's current folder.
    place = next((place for place in loops.places_of(event) if os.path.isdir(place)), "")
    if not place:
        raise UserError("the workspace of this session is unknown", "start the loop with `ralph hook start -C DIR`")
    _, contract = start(
        Path(place).resolve(),
        session,
        task,
        as_settings(OPTIONS, values),
        agent=host,
        transcript=path if isinstance(path, str) else transcript_of(session, host, os.environ),
        force=bool(values.get("force")),
    )
    name = event.get("hook_event_name", "UserPromptSubmit")
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": contract}})


def _reject(reason: str) -> str:
    """Return the answer that stops a prompt from reaching the agent; the user sees the reason."""
    return dumps({"decision": "block", "reason": f"ralph: {reason}"})


def _load_settings(workspace: Path, overrides: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """Load the project's settings with the preset `promise`. In a session only a promise counts as a claim."""
    refuse_untrusted(workspace, env)
    settings = load(workspace, {**overrides, "preset": PRESET_OF["start"]}, env=env).settings
    promise = next((claim for claim in settings.until if claim.startswith("promise:")), "promise:DONE")
    # The tests are compared with those at the start, for which the checks have to run once.
    compares_tests = bool(settings.checks) and settings.tests != "may-change" and find_git(workspace) is not None
    settings = replace(
        settings,
        until=(promise,),
        tests=settings.tests or ("as-they-were" if settings.checks else None),
        baseline=compares_tests if settings.baseline is None else settings.baseline,
    )
    # Safety that was asked for and cannot be had is an error.
    if settings.sandbox.enabled:
        raise UserError(
            "the settings ask for a sandbox, but the agent of this session is already running",
            f"loop from outside: `ralph run --preset {settings.preset} --sandbox`; or set sandbox.enabled to false",
        )
    if settings.max_cost is not None:
        raise UserError(
            "maxCost cannot be checked inside a session: agents record tokens, not prices", "set maxTokens instead"
        )
    refuse_endless(settings)
    validate_exams(settings, str(workspace))
    return settings


def _end_older_loop(root: str, session: str, force: bool) -> None:
    """End the active loop of a session if `force`; otherwise raise a UserError if there is one."""
    if not loops.exists(root, session):
        return
    try:
        older = loops.read(root, session)
    except loops.Unreadable as error:
        loops.set_aside(root, session, error)
        return
    if not force:
        place = f"{older.iteration} of {older.max_iterations} continuations"
        raise UserError(
            f"a loop is active in this session ({place}): {one_line(older.task, 80)}",
            "give --force to replace it, or cancel it with /cancel-ralph or `ralph hook cancel`",
        )
    cancel(older, "replaced by a new loop")


def _begin(loop: Loop, settings: Settings) -> str:
    """Write the run's request and the start of its journal; return the first prompt."""
    with ExitStack() as stack:
        engine = open_engine(stack, loop, settings)
        request = requests.encode(requests.RunRequest(settings=settings, workspace=loop.root))
        if engine.context.redact(request) != request:  # a check whose key was removed would fail
            raise UserError(
                "the settings contain a secret, and secrets are not written to disk",
                "put it into an environment variable, and use that in the check",
            )
        requests.save(loop.run, request)
        engine.context.folder.write(requests.REQUEST_FILE, request)
        run = Run(id=loop.run, goal=loop.task, base_tree=engine.trees.begin())
        started = events.RunStarted(
            goal=loop.task,
            preset=settings.preset,
            agent=loop.agent,
            workspace=loop.root,
            max_iterations=engine.policy.cap,
            checks=tuple(check.command for check in settings.checks),
            claims=tuple(map(str, engine.policy.claims)),
            gates=tuple(engine.policy.gates),
            version=__version__,
            base_tree=run.base_tree,
        )
        engine.context.tell(started)
        watch_settings(loop).begin()
        try:
            _, stop = run_loop(engine.parts, run)
        except NextTurn as wanted:
            return wanted.prompt
    if stop.outcome is Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    raise UserError(f"the loop would end before it starts: {stop.reason}", "change the settings or the options")


def transcript_of(session: str, agent: str, env: Mapping[str, str]) -> str:
    """Return the path of the session's transcript; "" if it isn't found."""
    if not session or not session.replace("-", "").isalnum():
        return ""
    for host in HOSTS.values():
        if agent in ("", host.name):
            path = next(host.user_folder(env).glob(host.transcripts.format(session=session)), None)
            if path:
                return str(path)
    return ""
