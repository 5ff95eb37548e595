"""How does a person steer a run from the full screen? As from another terminal, and one sentence says what was done."""

from collections.abc import Callable

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.records.register import Listed, listed
from ralph.steering import control
from ralph.steering.mailbox import Mailbox
from ralph.steering.which_run import refuse_foreign
from ralph.ui.draw import nickname


def stop(run: Listed, now: bool = False) -> str:
    run = _living(run)
    control.stop(run, now)
    name = nickname(run.id)
    if now or run.state == "stopping":
        return f"{name} ends now"
    return f"{name} ends after what it does at this moment; S ends it now"


def pause(run: Listed) -> str:
    run = _living(run)
    Mailbox(run.folder.path).pause()
    return f"{nickname(run.id)} pauses before its next turn; r goes on"


def resume(run: Listed, launch: Callable[[list[str]], None]) -> str:
    """Ends a pause; a run that no process plays is taken up by a new one."""
    run = _present(run)
    name, mailbox = nickname(run.id), Mailbox(run.folder.path)
    if not run.is_alive:
        if run.standing.outcome == "done":
            raise UserError(f"{name} is done", "type a new goal")
        launch(["resume", run.id, "--quiet", "-C", run.standing.workspace])
        return f"{name} goes on"
    if run.state != "asking" and not mailbox.read().is_paused:
        raise UserError(f"{name} is at work", "p pauses it")
    mailbox.unpause()
    if run.state != "asking":
        return f"{name} goes on"
    mailbox.dismiss()
    return f"{name} goes on without an answer"


def tell(run: Listed, text: str) -> str:
    """A note for the next prompt; where the agent asks something, the answer to its oldest question."""
    run = _present(run)
    name, mailbox = nickname(run.id), Mailbox(run.folder.path)
    if run.standing.outcome == "done":
        raise UserError(f"{name} is done", "type a new goal")
    questions = mailbox.read().questions
    mailbox.tell(text, questions[0] if questions else None)
    if questions:
        return f"answered: {one_line(questions[0].text)}"
    return f"the next prompt of {name} carries it" + ("" if run.is_alive else ", once it goes on (r)")


def _present(run: Listed) -> Listed:
    """The run as it is now: what is on the screen may be a second old."""
    now = listed(run.folder.path)
    if now is None:
        raise UserError(f"{nickname(run.id)} is no longer on record", "was its folder removed?")
    refuse_foreign(now)
    return now


def _living(run: Listed) -> Listed:
    run = _present(run)
    if not run.is_alive:
        raise UserError(f"{nickname(run.id)} is not at work: {run.state}", "r goes on with a run that ended unfinished")
    return run
