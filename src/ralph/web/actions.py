"""The actions of the web UI. Each one does the same as the ralph command of its name, and has the same errors."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ralph.actions import control, discard
from ralph.actions.launch import Launched, words_about
from ralph.core.text import one_line, plural
from ralph.errors import UserError
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


LEVEL_OF: Mapping[str, Level] = {
    **dict.fromkeys(("tell", "answer", "pause", "resume", "stop", "dismiss", "dismissall"), Level.STEER),
    **dict.fromkeys(("allow", "accept", "discard", "retry", "rewind"), Level.START),
}
"""The actions, with the level that each one needs."""


def carry_out(name: str, run_id: str, form: FormFields, register: Register) -> tuple[str, str]:
    """Carry out an action; return the id of its run, "" if there is none, and a message."""
    if name == "dismissall":
        ended = [
            status.run for status in register.survey(0.0).runs if status.present.needs_you and not status.run.is_alive
        ]
        for run in ended:
            control.dismiss(run)
        return "", f"{plural(len(ended), 'run')} dismissed"
    try:
        run = register.find(run_id)
    except RequestRefused:
        raise control.Objected(run_id, "is no longer on record", "was its folder removed?") from None
    return run.id, _act_on(run, name, form, register)


def _act_on(run: Listed, name: str, form: FormFields, register: Register) -> str:
    nick, question = nickname(run.id), form.get("question", "")
    match name:
        case "tell":
            if questions := control.tell(run, _text(form), register.env):
                return f"answered: {one_line(questions[0].text)}"
            return f"{nick} gets it with its next prompt" + ("" if run.is_alive else ", once it is resumed")
        case "answer" if form.get("skip"):
            control.continue_unanswered(run, question)
            return f"{nick} continues without an answer"
        case "answer":
            control.answer(run, question, _text(form), register.env)
            return f"answered: {nick} gets it with its next prompt"
        case "pause":
            control.pause(run)
            return f"{nick} pauses before its next turn"
        case "stop":
            ends_now = control.stop(run, now=form.get("now") == "1")
            return f"{nick} stops " + ("now" if ends_now else "after this turn")
        case "resume":
            limits = [option + form[name] for name, option in NEW_LIMITS.items() if form.get(name)]
            return _resume(run, limits, register)
        case "allow":  # resume a run whose agent was denied everything, with all rights
            return _resume(run, ["--sandbox" if form.get("sandbox") else "--yolo"], register)
        case "accept" | "discard":
            return _command(
                run,
                words_about(run, name, run.id),
                register,
                f"{nick} is {'merged' if name == 'accept' else 'discarded'}",
            )
        case "retry":
            return _retry(run, form, register)
        case "rewind":
            return _rewind(run, form.get("to", ""), register)
        case _:
            control.dismiss(run)
            return f"{nick} is dismissed"


def _resume(run: Listed, options: Sequence[str], register: Register) -> str:
    """End the pause of a running run, or resume an ended one with these options."""
    run = control.reload(run, control.why_not_resume)
    if run.is_alive:
        return f"{nickname(run.id)} resumed" + (" without an answer" if control.unpause(run) else "")
    _start_resumed(run, options, register)
    return f"{nickname(run.id)} resumed"


def _rewind(run: Listed, number: str, register: Register) -> str:
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise RequestRefused(400, "expected the number of an iteration")
    notes: list[str] = []
    result = discard.rewind(run, int(number), notes.append, register.env)
    messages = [
        f"{plural(result.files, 'file')} restored to iteration {number}",
        f"the files before are {result.kept_as}",
    ]
    messages += [f"not restored: {missed}" for missed in result.missed]
    return "; ".join((*messages, *notes))


def _retry(run: Listed, form: FormFields, register: Register) -> str:
    """Retry a parked task, with the note in the form, and resume its backlog if it has ended."""
    key, note = form.get("task", ""), one_line(form.get("text", ""), 4000)
    if not key:
        raise RequestRefused(400, "expected the key of a task")
    message = _command(run, words_about(run, "work", "retry", key, note), register, f"{key} is retried")
    if run.is_alive:
        return message
    _start_resumed(run, (), register)
    return f"{message}, {nickname(run.id)} resumed"


def _command(run: Listed, words: list[str], register: Register, success: str) -> str:
    """Run a ralph command about a run. If it takes long, it continues, and the page of the run shows its result."""
    running = register.commands.get(run.id)
    if running and running.result is None:
        raise UserError(f"{running.name} is still running", "its result appears here")
    command = RunningCommand()
    command.start(words, register.env)
    command.name = "retry" if words[0] == "work" else words[0]
    register.commands[run.id] = command
    result = _wait_for(lambda: command.result)
    if result is None:
        return f"{command.name} is running: its checks take a while"
    del register.commands[run.id]
    if result:
        raise UserError(result)
    return success


def _start_resumed(run: Listed, options: Sequence[str], register: Register) -> None:
    """Resume a run in a process that continues without the web UI, and wait until the run is recorded as running."""
    words = ["resume", run.id, "--quiet", "-C", run.facts.workspace, *options]
    launched = Launched()
    launched.start(words, register.env)

    def has_begun() -> bool | None:
        code, is_playing = launched.exit_code, launched.plays(register.find(run.id))
        if code is not None and (code == 2 or not is_playing):
            raise UserError(launched.error_text() or "the run ended at once")
        return is_playing or None

    try:
        has_begun_in_time = _wait_for(has_begun)
    finally:
        launched.hand_over()
    if not has_begun_in_time:
        raise UserError("the run has not started yet", "look at the list of runs in a moment")


def _wait_for(look: Callable[[], T | None]) -> T | None:
    """Call `look` until it returns something; return None after `START_TIMEOUT`."""
    until = time.monotonic() + START_TIMEOUT
    while (result := look()) is None and time.monotonic() < until:
        time.sleep(POLL_INTERVAL)
    return result


def _text(form: FormFields) -> str:
    text = form.get("text", "").replace("\r\n", "\n").strip()
    if not text:
        raise RequestRefused(400, "the text is empty")
    return text
