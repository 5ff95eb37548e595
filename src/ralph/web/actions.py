"""What can be done from the page, by whom, and what came of it? Each action is the command of its name, with the same
objections: what has moved on meanwhile is said in one sentence, and nothing is done."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct

from ralph import agents as known_agents
from ralph.core.text import one_line, plural
from ralph.errors import UserError
from ralph.processes.program import CannotStart, find_program
from ralph.records.register import Listed
from ralph.run.launch import Launched, NextRun
from ralph.settings.shape import parse_duration
from ralph.show.words import SPELT, nickname
from ralph.steering import control
from ralph.web.access import Level, NotServed
from ralph.web.watching import Register

PATIENCE = 8.0  # seconds in which a run that was started has to show itself
_GLANCE = 0.02
FormFields = Mapping[str, str]


class Done(Struct, frozen=True):
    """What was done, to which run."""

    run: str
    sentence: str


class PageAction(Struct, frozen=True):
    level: Level
    carry_out: Callable[[Register, str, FormFields], Done]


def _on_a_run(act: Callable[[Listed, FormFields, Register], str]) -> Callable[[Register, str, FormFields], Done]:
    """An action on one run: what has been removed meanwhile can no longer be acted upon."""

    def carry_out(register: Register, run_id: str, form: FormFields) -> Done:
        try:
            run = register.find(run_id)
        except NotServed:
            raise control.Objected(run_id, "is no longer on record", "was its folder removed?") from None
        return Done(run.id, act(run, form, register))

    return carry_out


def _tell(run: Listed, form: FormFields, register: Register) -> str:
    questions = control.tell(run, _text(form), register.env)
    if questions:
        return f"Answered: {one_line(questions[0].text)}"
    return f"The next prompt of {nickname(run.id)} carries it" + ("." if run.is_alive else ", once it goes on.")


def _answer(run: Listed, form: FormFields, register: Register) -> str:
    question = form.get("question", "")
    if form.get("skip"):
        control.leave_unanswered(run, question)
        return f"{nickname(run.id)} goes on without an answer."
    control.answer(run, question, _text(form), register.env)
    return f"Answered: the next prompt of {nickname(run.id)} carries it."


def _pause(run: Listed, form: FormFields, register: Register) -> str:
    control.pause(run)
    return f"{nickname(run.id)} pauses before its next turn."


def _stop(run: Listed, form: FormFields, register: Register) -> str:
    ends_now = control.stop(run, now=form.get("now") == "1")
    return f"{nickname(run.id)} ends " + ("now." if ends_now else "after what it does at this moment.")


def _resume(run: Listed, form: FormFields, register: Register) -> str:
    """Ends a pause; a run that no process plays is taken up by a new one, with new limits where some are given."""
    run = control.present(run, control.cannot_go_on)
    if run.is_alive:
        return f"{nickname(run.id)} goes on" + (" without an answer." if control.go_on(run) else ".")
    words = ["resume", run.id, "--quiet", "-C", run.facts.workspace]
    for name, option in SPELT.items():
        if value := form.get(name):
            words += [option, "checks" if name == "until" else _limit(name, value)]
    _launch(words, register)
    return f"{nickname(run.id)} goes on."


def _rewind(run: Listed, form: FormFields, register: Register) -> str:
    number = form.get("to", "")
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise NotServed(400, "Rewind to which iteration?")
    from ralph.run import afterwards

    said: list[str] = []
    done = afterwards.rewind(run, int(number), said.append, register.env)
    files = f"{plural(done.files, 'file')} changed"
    return f"{files}: this is the state after iteration {number}. What was there is kept as {done.kept_as}." + "".join(
        f" {one}." for one in (*(f"Not as it was: {missed}" for missed in done.missed), *said)
    )


def _start(register: Register, _: str, form: FormFields) -> Done:
    """Starts a run in a worktree of a workspace that is known, by an agent that is found by its name."""
    goal, workspace, agent = form.get("goal", "").strip(), form.get("workspace", ""), form.get("agent", "")
    if not goal:
        raise UserError("there is no goal", "say what shall be true when it is done")
    if workspace not in register.workspaces():
        raise UserError(
            "that workspace is not known here", "name it with `ralph serve DIR`, or run something there first"
        )
    if agent and agent not in agents(register.env):
        raise UserError("that agent is not installed here", "choose one of the list")
    checks = tuple(line.strip() for line in form.get("checks", "").splitlines() if line.strip())
    limits = {"max_cost": "cost", "max_time": "time"}
    given = {name: _limit(name, form[field].strip()) for name, field in limits.items() if form.get(field, "").strip()}
    if form.get("iterations", "").strip():
        given["maximum_iterations"] = _limit("more", form["iterations"].strip())
    has_settings = os.path.exists(f"{workspace}/.ralph/settings.json")
    if not checks and not has_settings:
        given["preset"] = "guardrails"
    plan = NextRun(
        workspace=workspace,
        cap=None,
        agent=agent,
        checks=checks,
        given={**given, "worktree": True},
        has_settings=has_settings,
    )
    words = plan.words(goal.replace("\r\n", "\n"))
    return Done(_launch(words, register), f"Started: {one_line(goal, 80)}")


def agents(env: Mapping[str, str]) -> list[str]:
    """The agents that are installed, by the names they are known by."""
    found = []
    for name in known_agents.programs():
        with suppress(CannotStart):
            find_program(name, env, "/")
            found.append(name)
    return found


def _launch(words: list[str], register: Register) -> str:
    """The id of the run that a command has begun: before that, something may stand in its way. It is let go at once: it
    goes on when the page is gone."""
    launched = Launched.start(words, register.env)
    try:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            code = launched.exit_code
            found = next((run for run in register.runs() if launched.plays(run) and run.facts.workspace), None)
            if found and code != 2:
                return found.id
            if code is not None:
                raise UserError(launched.last_words() or "it ended at once")
            time.sleep(_GLANCE)
        raise UserError("it has not shown itself yet", "look at all runs in a moment")
    finally:
        launched.hand_over()


def _text(form: FormFields) -> str:
    text = form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise NotServed(400, "Say something first.")
    return text


def _limit(name: str, text: str) -> str:
    """A limit as it is typed for a command; refused where the command would not understand it."""
    try:
        if name == "max_time":
            parse_duration(text)
        elif name == "max_cost":
            text = text.removeprefix("$")
            if not 0 < float(text) < float("inf"):
                raise ValueError
        elif not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
            raise ValueError
    except ValueError:
        said = {"max_time": "a time such as 90s, 30m or 2h", "max_cost": "a sum of dollars such as 5"}
        raise UserError(
            f"{one_line(text, 40)!r} is no limit", f"give {said.get(name, 'a number such as 10')}"
        ) from None
    return text


ACTIONS: dict[str, PageAction] = {
    "tell": PageAction(Level.STEER, _on_a_run(_tell)),
    "answer": PageAction(Level.STEER, _on_a_run(_answer)),
    "pause": PageAction(Level.STEER, _on_a_run(_pause)),
    "resume": PageAction(Level.STEER, _on_a_run(_resume)),
    "stop": PageAction(Level.STEER, _on_a_run(_stop)),
    "rewind": PageAction(Level.START, _on_a_run(_rewind)),
    "start": PageAction(Level.START, _start),
}
