"""Requests of a person to a run: stop, pause, continue, tell, answer. The CLI, TUI and web UI make the same requests
and get the same objections.

The run is played by another process, which gets the signals of Ctrl-C. If it ignores signals, because it is part of a
larger program, the request is a file in its mailbox.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from ralph.core.model import Question
from ralph.errors import UserError
from ralph.history.overview import DISMISSED
from ralph.process.descendants import MARK, is_living, signal_if
from ralph.process.signals import NUDGE
from ralph.store.mailbox import Mailbox
from ralph.store.register import Listed, Objection, owner, refuse_foreign, run_at, why_not_begun

IS_DONE, AT_WORK = "is done", "is running"
FOR_ONE_TURN = "was started by the agent of a task, for one turn"


class Objected(UserError):
    """A request that a run refuses. `why` completes the sentence "run ID …"."""

    def __init__(self, run: str, why: str, hint: str = "`ralph ps -a` lists all runs") -> None:
        super().__init__(f"run {run} {why}", hint)
        self.run, self.why = run, why


def why_not_running(run: Listed) -> str:
    """Return why a run that must be running is not; "" if it is."""
    return "" if run.is_alive else f"is not running: {run.state}"


def why_not_tell(run: Listed) -> str:
    """Return why a run cannot be given a note; "" if it can."""
    if why := run.facts.why_not_tell():
        return why
    return f"{FOR_ONE_TURN}: tell the task" if run.is_child else ""


def why_not_resume(run: Listed, accepts_files: bool = False) -> str:
    """Return why a run can neither be resumed nor unpaused; "" if it can. `accepts_files`: a person accepts its test
    and protected files as they are, which is possible after it is done as well."""
    if run.is_alive and run.state not in ("paused", "asking") and not Mailbox(run.place).read().is_paused:
        return AT_WORK
    if run.is_child and not run.is_alive:
        return f"{FOR_ONE_TURN}: resume the task"
    if run.facts.work and not run.is_alive:
        return f"is for a task of work {run.facts.work}: resume that, or try again with `ralph work retry`"
    has_reason = accepts_files or run.facts.task or Mailbox(run.place).read().notes
    if run.facts.outcome == "done" and not has_reason:
        return IS_DONE
    if run.facts.kind == "plan" and not run.is_alive:
        return "ended without a plan: start `ralph plan` again"
    return "" if run.facts.workspace else why_not_begun(run)


def reload(run: Listed, objection: Objection) -> Listed:
    """Return the current state of a run, because a listing may be a second old. Raise if there is an objection, or if
    the run belongs to another user."""
    now = run_at(run.place)
    if now is None:
        raise Objected(run.id, "is no longer on record", "was its folder removed?")
    refuse_foreign(now)
    if why := objection(now):
        raise Objected(run.id, why)
    return now


def stop(run: Listed, now: bool = False, env: Mapping[str, str] = os.environ) -> bool:
    """Ask a run to end after its turn. With `now`, or if it was asked before, it ends at once: then return True."""
    run = reload(run, why_not_running)
    mailbox, asking = Mailbox(run.place), env.get(MARK)
    mailbox.sign_stop("its own agent" if asking == run.id else f"the agent of run {asking}" if asking else "")
    if run.facts.ignores_signals:
        mailbox.stop(now)
    elif not now:
        _send(run, signal.SIGTERM)
    elif _ignores_hangup(run.facts.pid):
        if run.state != "stopping":  # a third signal would end it without any grace
            _send(run, signal.SIGTERM)
        _send(run, signal.SIGINT)  # two signals of one kind may arrive as one
    else:
        _send(run, signal.SIGHUP)
    with suppress(UserError):  # the run has just ended
        _send(run, signal.SIGCONT)  # a stopped process handles no other signal
    return now or run.state == "stopping"


def dismiss(run: Listed) -> None:
    """Record that a person has seen the run's outcome, so that it no longer needs them."""
    reload(run, lambda now: AT_WORK if now.is_alive else "").folder.write(DISMISSED, b"")


def pause(run: Listed) -> None:
    Mailbox(reload(run, why_not_running).place).pause()


def unpause(run: Listed) -> bool:
    """End the pause of a running run. Return whether it was waiting for an answer, and continues without one."""
    run = reload(run, why_not_resume)
    mailbox = Mailbox(run.place)
    mailbox.unpause()
    if run.state == "asking":
        mailbox.dismiss()
    return run.state == "asking"


def tell(run: Listed, text: str, env: Mapping[str, str] = os.environ) -> tuple[Question, ...]:
    """Answer the oldest question of a run or, if there is none, leave a note for its next prompt. Return the questions
    that were open."""
    mailbox = _mailbox_to_tell(run, env)
    questions = mailbox.read().questions
    mailbox.tell(text, questions[0] if questions else None)
    return questions


def answer(run: Listed, question: str, text: str, env: Mapping[str, str] = os.environ) -> Question:
    """Answer the question with this id. If it is no longer open, raise: the answer must not become a note."""
    mailbox = _mailbox_to_tell(run, env)
    asked = _open_question(run, mailbox, question)
    mailbox.tell(text, asked)
    return asked


def continue_unanswered(run: Listed, question: str) -> None:
    """Let a run that waits for the answer to this question continue without an answer."""
    _open_question(run, Mailbox(reload(run, why_not_running).place), question)
    unpause(run)


def _open_question(run: Listed, mailbox: Mailbox, question: str) -> Question:
    asked = next((candidate for candidate in mailbox.read().questions if candidate.id == question), None)
    if asked is None:
        raise Objected(run.id, "no longer asks that", "it was answered, or the run continued without an answer")
    return asked


def _mailbox_to_tell(run: Listed, env: Mapping[str, str]) -> Mailbox:
    run = reload(run, why_not_tell)
    task = env.get("JRUN_TASK_FOLDER")
    if env.get(MARK) == run.id or (task and task == run.facts.task):  # the agent of the run, or of a child
        raise UserError("only a person can tell a run something", 'an agent can ask: ralph ask "QUESTION"')
    return Mailbox(run.place)


def wake(run: Listed) -> None:
    """Wake the run if it sleeps, so that it looks into its mailbox."""
    with suppress(UserError):  # it has just ended, or belongs to another user
        _send(run, NUDGE)


def _send(run: Listed, number: signal.Signals) -> None:
    try:
        signal_if(number, run.facts.pid, lambda: is_living(run.facts.pid, run.facts.start))
    except ProcessLookupError:
        raise UserError(f"run {run.id} has just ended", "`ralph show` says how") from None
    except PermissionError:
        raise UserError(f"run {run.id} belongs to {owner(run.place)}", "only that user may stop it") from None


def _ignores_hangup(pid: int) -> bool:
    """Return whether the process was started with `nohup`, so that SIGHUP does not reach it."""
    try:
        with open(f"/proc/{pid}/status") as status:
            ignored = next((line for line in status if line.startswith("SigIgn:")), "SigIgn: 1")
    except OSError:
        return True  # unknown: both signals do no harm
    return bool(int(ignored.split()[1], 16) & 1)
