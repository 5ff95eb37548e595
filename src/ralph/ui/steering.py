"""How does a person steer a run from the full screen? As from another terminal, and one sentence says what was done."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.records.register import Listed
from ralph.steering import control
from ralph.ui.draw import nickname

HINTS = {"is at work": "p pauses it", "is done": "type a new goal"}


@contextmanager
def _in_its_words() -> Iterator[None]:
    """What stands against it, as it is said here."""
    try:
        yield
    except control.Objected as error:
        hint = HINTS.get(error.why, "r goes on with a run that ended unfinished" if "not at work" in error.why else "")
        raise UserError(f"{nickname(error.run)} {error.why}", hint or error.hint) from None


@_in_its_words()
def stop(run: Listed, now: bool = False) -> str:
    ends_now = control.stop(run, now)
    name = nickname(run.id)
    return f"{name} ends now" if ends_now else f"{name} ends after what it does at this moment; S ends it now"


@_in_its_words()
def pause(run: Listed) -> str:
    control.pause(run)
    return f"{nickname(run.id)} pauses before its next turn; r goes on"


@_in_its_words()
def resume(run: Listed, launch: Callable[[list[str]], None]) -> str:
    """Ends a pause; a run that no process plays is taken up by a new one."""
    run = control.present(run, control.cannot_go_on)
    name = nickname(run.id)
    if run.is_alive:
        return f"{name} goes on" + (" without an answer" if control.go_on(run) else "")
    launch(["resume", run.id, "--quiet", "-C", run.standing.workspace])
    return f"{name} goes on"


@_in_its_words()
def tell(run: Listed, text: str) -> str:
    """A note for the next prompt; where the agent asks something, the answer to its oldest question."""
    questions = control.tell(run, text)
    if questions:
        return f"answered: {one_line(questions[0].text)}"
    return f"the next prompt of {nickname(run.id)} carries it" + ("" if run.is_alive else ", once it goes on (r)")
