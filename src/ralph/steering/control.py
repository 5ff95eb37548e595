"""What can a person ask of a run, and what stands against it? To stop, to pause, to go on, to be told something, to be
answered: asked from a terminal, a full screen or a page, it is the same request with the same objections.

A run that another process plays is brought to a stop by the signals that Ctrl-C stands for; in a program that has its
own use for them, by a word in the run's mailbox."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ralph.core.model import STOP_REQUEST, Question
from ralph.errors import UserError
from ralph.processes.descendants import deliver, is_held, is_living
from ralph.processes.interrupt import NUDGE, Interrupt
from ralph.processes.spawning import MARK
from ralph.records.folder import workspace_lock
from ralph.records.journal import Seal, noted_outcome
from ralph.records.register import Listed, listed
from ralph.repository.git import obeying
from ralph.steering.mailbox import Mailbox
from ralph.steering.which_run import Objection, has_not_begun, owner, refuse_foreign, repository_of

if TYPE_CHECKING:
    from ralph.repository.checkpoints import Rewound

IS_DONE, AT_WORK = "is done", "is at work"
FOR_ONE_TURN = "was started by the agent of a task, for one turn"


class Objected(UserError):
    """Something stands against what is asked of a run: `why` is the end of a sentence that begins with its name."""

    def __init__(self, run: str, why: str, hint: str = "`ralph ps -a` lists all runs") -> None:
        super().__init__(f"run {run} {why}", hint)
        self.run, self.why = run, why


def not_at_work(run: Listed) -> str:
    """Objects to a run that no process plays."""
    return "" if run.is_alive else f"is not at work: {run.state}"


def cannot_be_told(run: Listed) -> str:
    if run.facts.kind == "work":
        return "is the work on a backlog: name one of its items"
    if run.facts.outcome == "done":
        return IS_DONE
    return f"{FOR_ONE_TURN}: tell the task" if run.is_child else ""


def cannot_go_on(run: Listed) -> str:
    """Why a run cannot be the one that shall go on."""
    if run.is_alive and run.state not in ("paused", "asking") and not Mailbox(run.place).read().is_paused:
        return AT_WORK
    if run.is_child and not run.is_alive:
        return f"{FOR_ONE_TURN}: the task itself can go on"
    if run.facts.work and not run.is_alive:
        return f"is for an item of work {run.facts.work}: that can go on, and `ralph work retry` is for its items"
    # An agent can write into the folder of its run that all is done: what ralph noted elsewhere decides.
    is_done = run.facts.outcome == "done" and noted_outcome(run.id, os.environ) in (None, "done")
    if is_done and not run.facts.task:
        return IS_DONE
    if run.facts.kind == "plan" and not run.is_alive:
        return "was to make a plan, and made none: ask again with `ralph plan`"
    return "" if run.facts.workspace else has_not_begun(run)


def present(run: Listed, objection: Objection) -> Listed:
    """The run as it is at this moment: what a person looks at may be a second old. Refused where something stands
    against what is asked of it, or where it is another user's."""
    now = listed(run.place)
    if now is None:
        raise Objected(run.id, "is no longer on record", "was its folder removed?")
    refuse_foreign(now)
    if why := objection(now):
        raise Objected(run.id, why)
    return now


def stop(run: Listed, now: bool = False, env: Mapping[str, str] = os.environ) -> bool:
    """Asks the run to end after what it does; `now`, or asked again: to end that too. Whether it ends now."""
    run = present(run, not_at_work)
    mailbox, asking = Mailbox(run.place), env.get(MARK)
    mailbox.sign_stop("its own agent" if asking == run.id else f"the agent of run {asking}" if asking else "")
    if run.facts.deaf:
        mailbox.stop(now)
    elif not now:
        _send(run, signal.SIGTERM)
    elif _ignores_hangup(run.facts.pid):
        if not run.facts.stopping:  # a third signal would mean: without any grace
            _send(run, signal.SIGTERM)
        _send(run, signal.SIGINT)  # two signals of one kind may arrive as one
    else:
        _send(run, signal.SIGHUP)
    with suppress(UserError):  # it has just ended
        _send(run, signal.SIGCONT)  # one that its agent has stopped hears nothing else
        if now and is_held(run.facts.pid):  # nor does one that a debugger holds: its keeper ends the rest
            _send(run, signal.SIGKILL)
    return now or run.state == "stopping"


def pause(run: Listed) -> None:
    Mailbox(present(run, not_at_work).place).pause()


def go_on(run: Listed) -> bool:
    """Ends the pause of a run that a process plays. Whether it goes on without the answer that it waited for."""
    run = present(run, cannot_go_on)
    mailbox = Mailbox(run.place)
    mailbox.unpause()
    if run.state == "asking":
        mailbox.dismiss()
    return run.state == "asking"


def tell(run: Listed, text: str, env: Mapping[str, str] = os.environ) -> tuple[Question, ...]:
    """Leaves a note for the next prompt, or an answer to the oldest question. The questions that were open."""
    mailbox = _mailbox_to_tell(run, env)
    questions = mailbox.read().questions
    mailbox.tell(text, questions[0] if questions else None)
    return questions


def answer(run: Listed, question: str, text: str, env: Mapping[str, str] = os.environ) -> Question:
    """Answers this very question, by its id: one that comes late never becomes a note about something else."""
    mailbox = _mailbox_to_tell(run, env)
    found = _open_question(run, mailbox, question)
    mailbox.tell(text, found)
    return found


def leave_unanswered(run: Listed, question: str) -> None:
    """Lets a run go on that stands still until this question is answered."""
    _open_question(run, Mailbox(present(run, not_at_work).place), question)
    go_on(run)


def rewind(run: Listed, number: int) -> "Rewound":
    """Makes the files what they were after iteration `number`; what is there now is kept. Not while somebody works on
    them: a run in a worktree does not hold the lock of the workspace."""
    from ralph.repository.checkpoints import Checkpoints
    from ralph.repository.configuration import Configuration
    from ralph.repository.index import PrivateIndex

    with workspace_lock(run.folder.path.parent.parent, run.id):
        run = present(run, lambda run: AT_WORK if run.is_alive else has_not_begun(run))
        Seal(run.id, run.folder.path, os.environ).refuse_what_was_changed()  # its journal says whose files they are
        repository = repository_of(run)
        configuration = Configuration(repository)
        is_known = configuration.recall(run.facts.work or run.id)
        with obeying(configuration if is_known else None):
            index = PrivateIndex(repository, run.folder.path / "rewind-index")
            index.begin(configuration.settings if is_known else None)
            return Checkpoints(repository, run.id).rewind(number, index, by_filters=is_known)


def _open_question(run: Listed, mailbox: Mailbox, question: str) -> Question:
    found = next((one for one in mailbox.read().questions if one.id == question), None)
    if found is None:
        raise Objected(run.id, "no longer asks that", "it was answered meanwhile, or the run went on without")
    return found


def _mailbox_to_tell(run: Listed, env: Mapping[str, str]) -> Mailbox:
    run = present(run, cannot_be_told)
    task = env.get("JRUN_TASK_FOLDER")
    if env.get(MARK) == run.id or (task and task == run.facts.task):  # its own agent says it, or that of a child
        raise UserError("only a person can tell a run something", 'an agent can ask: ralph ask "QUESTION"')
    return Mailbox(run.place)


def heed(mailbox: Mailbox, interrupt: Interrupt) -> None:
    """What the run itself does with such a word."""
    level = 2 if mailbox.take_stop(now=True) else interrupt.level + 1 if mailbox.take_stop() else 0
    interrupt.raise_to(level, STOP_REQUEST)


def nudge(run: Listed) -> None:
    """Wakes the run, should it sleep: there is something for it to look at."""
    with suppress(UserError):  # it has just ended, or is somebody else's: it will look when it looks
        _send(run, NUDGE)


def _send(run: Listed, number: signal.Signals) -> None:
    try:
        deliver(number, run.facts.pid, lambda: is_living(run.facts.pid, run.facts.start))
    except ProcessLookupError:
        raise UserError(f"run {run.id} has just ended", "`ralph show` says how") from None
    except PermissionError:
        raise UserError(f"run {run.id} belongs to {owner(run.place)}", "only that user may stop it") from None


def _ignores_hangup(pid: int) -> bool:
    """Whether the run was started with `nohup`: what means "the terminal is gone" does not reach it then."""
    try:
        with open(f"/proc/{pid}/status") as status:
            ignored = next((line for line in status if line.startswith("SigIgn:")), "SigIgn: 1")
    except OSError:
        return True  # nothing is known: both signals do no harm
    return bool(int(ignored.split()[1], 16) & 1)
