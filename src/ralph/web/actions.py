"""The actions of the web UI. Each one does the same as the ralph command of its name, and has the same errors."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from ralph import agents as known_agents
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.process.program import CannotStart, find_program
from ralph.run import accept, control
from ralph.run.launch import Launched, NextRun
from ralph.show.words import nickname
from ralph.store.register import Listed
from ralph.web.access import Level, RequestRefused
from ralph.web.watching import Register, RunningCommand

START_TIMEOUT = 8.0  # seconds to wait for a new run to be recorded, or for a command to end
POLL_INTERVAL = 0.02  # seconds
FormFields = Mapping[str, str]
T = TypeVar("T")
NEW_LIMITS = {
    "until": "--until=",
    "more": "-m",
    "max_cost": "--max-cost=",
    "max_tokens": "--max-tokens=",
    "max_time": "--max-time=",
}
"""The fields of a form that resumes a run, and their options. Each becomes one word, so no value can be an option."""


class Done(Struct, frozen=True):
    """The result of an action on a run."""

    run: str
    message: str


class PageAction(Struct, frozen=True):
    level: Level
    carry_out: Callable[[Register, str, FormFields], Done]


def _on_run(act: Callable[[Listed, FormFields, Register], str]) -> Callable[[Register, str, FormFields], Done]:
    """Turn a function of one run into an action, which fails if the run has been removed."""

    def carry_out(register: Register, run_id: str, form: FormFields) -> Done:
        try:
            run = register.find(run_id)
        except RequestRefused:
            raise control.Objected(run_id, "is no longer on record", "was its folder removed?") from None
        return Done(run.id, act(run, form, register))

    return carry_out


def _tell(run: Listed, form: FormFields, register: Register) -> str:
    questions = control.tell(run, _text(form), register.env)
    if questions:
        return f"answered: {one_line(questions[0].text)}"
    return f"{nickname(run.id)} gets it with its next prompt" + ("" if run.is_alive else ", once it is resumed")


def _answer(run: Listed, form: FormFields, register: Register) -> str:
    question = form.get("question", "")
    if form.get("skip"):
        control.continue_unanswered(run, question)
        return f"{nickname(run.id)} continues without an answer"
    control.answer(run, question, _text(form), register.env)
    return f"answered: {nickname(run.id)} gets it with its next prompt"


def _pause(run: Listed, form: FormFields, register: Register) -> str:
    control.pause(run)
    return f"{nickname(run.id)} pauses before its next turn"


def _stop(run: Listed, form: FormFields, register: Register) -> str:
    ends_now = control.stop(run, now=form.get("now") == "1")
    return f"{nickname(run.id)} stops " + ("now" if ends_now else "after this turn")


def _resume(run: Listed, form: FormFields, register: Register, rights: Sequence[str] = ()) -> str:
    """End the pause of a running run, or resume an ended one, with the new limits in the form."""
    run = control.reload(run, control.why_not_resume)
    if run.is_alive:
        return f"{nickname(run.id)} resumed" + (" without an answer" if control.unpause(run) else "")
    limits = [option + form[name] for name, option in NEW_LIMITS.items() if form.get(name)]
    _launch(["resume", run.id, "--quiet", "-C", run.facts.workspace, *limits, *rights], register)
    return f"{nickname(run.id)} resumed"


def _allow(run: Listed, form: FormFields, register: Register) -> str:
    """Resume a run whose agent was denied everything, with all rights: in a sandbox if the form says so."""
    return _resume(run, {}, register, ["--sandbox" if form.get("sandbox") else "--yolo"])


def _accept(run: Listed, form: FormFields, register: Register) -> str:
    return _command(run, ["accept", run.id], register, f"{nickname(run.id)} is merged")


def _discard(run: Listed, form: FormFields, register: Register) -> str:
    return _command(run, ["discard", run.id], register, f"{nickname(run.id)} is discarded")


def _retry(run: Listed, form: FormFields, register: Register) -> str:
    """Retry a parked task, with the note in the form, and resume its backlog if it has ended."""
    key, note = form.get("task", ""), one_line(form.get("text", ""), 4000)
    if not key or key.startswith("-"):
        raise RequestRefused(400, "expected the key of a task")
    said = _command(run, ["work", "retry", key, *([note] if note else [])], register, f"{key} is retried")
    if run.is_alive:
        return said
    _launch(["resume", run.id, "--quiet", "-C", run.facts.workspace], register)
    return f"{said}, {nickname(run.id)} resumed"


def _command(run: Listed, words: list[str], register: Register, success: str) -> str:
    """Run a ralph command about a run. If it takes long, it continues, and the page of the run shows its result."""
    running = register.commands.get(run.id)
    if running and running.result is None:
        raise UserError(f"{running.name} is still running", "its result appears here")
    command = register.commands[run.id] = RunningCommand.start([*words, "-C", run.facts.workspace], register.env)
    result = _wait_for(lambda: command.result)
    if result is None:
        return f"{command.name} is running: its checks take a while"
    del register.commands[run.id]
    if result:
        raise UserError(result)
    return success


def _dismiss(run: Listed, form: FormFields, register: Register) -> str:
    control.dismiss(run)
    return f"{nickname(run.id)} is dismissed"


def _dismiss_all(register: Register, _: str, form: FormFields) -> Done:
    ended = [one.run for one in register.survey(0.0).runs if one.present.needs_you and not one.run.is_alive]
    for run in ended:
        control.dismiss(run)
    return Done("", f"{plural(len(ended), 'run')} dismissed")


def _rewind(run: Listed, form: FormFields, register: Register) -> str:
    number = form.get("to", "")
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise RequestRefused(400, "expected the number of an iteration")

    notes: list[str] = []
    done = accept.rewind(run, int(number), notes.append, register.env)
    messages = [f"{plural(done.files, 'file')} restored to iteration {number}", f"the files before are {done.kept_as}"]
    messages += [f"not restored: {missed}" for missed in done.missed]
    return "; ".join((*messages, *notes))


def _start(register: Register, _: str, form: FormFields) -> Done:
    """Start a run in a known workspace, with an installed agent."""
    goal, workspace, agent = form.get("goal", "").strip(), form.get("workspace", ""), form.get("agent", "")
    if not goal:
        raise UserError("the goal is empty", "describe what should be true when it is done")
    if workspace not in register.workspaces():
        raise UserError("unknown workspace", "name it with `ralph serve DIR`, or start a run in it first")
    if agent and agent not in agents(register.env):
        raise UserError("this agent is not installed", "choose one from the list")
    checks = tuple(line.strip() for line in form.get("checks", "").splitlines() if line.strip())
    limits = {"maximum_iterations": "iterations", "max_cost": "cost", "max_time": "time"}
    given: dict[str, object] = {name: form[field] for name, field in limits.items() if form.get(field)}
    given |= {name: True for name in ("worktree", "sandbox", "yolo") if form.get(name)}
    has_settings = os.path.exists(f"{workspace}/.ralph/settings.json")
    if not checks and not has_settings:
        given["preset"] = "guardrails"
    plan = NextRun(
        workspace=workspace,
        cap=None,
        agent=agent,
        checks=checks,
        given=given,
        has_settings=has_settings,
    )
    words = plan.words(goal.replace("\r\n", "\n"))
    return Done(_launch(words, register), f"started: {one_line(goal, 80)}")


def agents(env: Mapping[str, str]) -> list[str]:
    """Return the names of the installed agents."""
    found = []
    for name in known_agents.programs():
        with suppress(CannotStart):
            find_program(name, env, "/")
            found.append(name)
    return found


def _launch(words: list[str], register: Register) -> str:
    """Start a ralph command detached, so that it continues without the web UI; return the id of its run."""
    launched = Launched.start(words, register.env)

    def started_run() -> str | None:
        code = launched.exit_code
        found = next((run.id for run in register.runs() if launched.plays(run) and run.facts.workspace), None)
        if code is not None and (code == 2 or not found):
            raise UserError(launched.error_text() or "the run ended at once")
        return found

    try:
        run_id = _wait_for(started_run)
    finally:
        launched.hand_over()
    if run_id is None:
        raise UserError("the run has not started yet", "look at the list of runs in a moment")
    return run_id


def _wait_for(look: Callable[[], T | None]) -> T | None:
    """Call `look` until it returns something; return None after `START_TIMEOUT`."""
    until = time.monotonic() + START_TIMEOUT
    while (found := look()) is None and time.monotonic() < until:
        time.sleep(POLL_INTERVAL)
    return found


def _text(form: FormFields) -> str:
    text = form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise RequestRefused(400, "the text is empty")
    return text


ACTIONS: dict[str, PageAction] = {
    "tell": PageAction(Level.STEER, _on_run(_tell)),
    "answer": PageAction(Level.STEER, _on_run(_answer)),
    "pause": PageAction(Level.STEER, _on_run(_pause)),
    "resume": PageAction(Level.STEER, _on_run(_resume)),
    "stop": PageAction(Level.STEER, _on_run(_stop)),
    "dismiss": PageAction(Level.STEER, _on_run(_dismiss)),
    "allow": PageAction(Level.START, _on_run(_allow)),
    "accept": PageAction(Level.START, _on_run(_accept)),
    "discard": PageAction(Level.START, _on_run(_discard)),
    "retry": PageAction(Level.START, _on_run(_retry)),
    "rewind": PageAction(Level.START, _on_run(_rewind)),
    "dismissall": PageAction(Level.STEER, _dismiss_all),
    "start": PageAction(Level.START, _start),
}
