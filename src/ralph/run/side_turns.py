"""Turns that only ask the agent something: for a commit message, a note, a review. Their changes are undone."""

from ralph.core import events
from ralph.core.model import Iteration, Run, Turn, Usage
from ralph.loop import Agent
from ralph.run.trees import Trees


def ask_agent(agent: Agent, question: str, run: Run, purpose: str, *, number: int, tell: events.Tell) -> Turn:
    """Return the agent's turn about a question, after reporting what it cost as part of iteration `number`."""
    turn = agent.take_turn(question, run, purpose=purpose)
    if turn.usage != Usage():
        tell(events.Spent(number, purpose, turn.usage))
    return turn


def undo_changes(trees: Trees, after: Iteration, what: str, tell: events.Tell) -> None:
    """Restore the files of an iteration if they have changed since; `what` says who changed them."""
    if trees.has_changed(after):
        _, kept_as = trees.restore(after)
        tell(events.Notice(f"{what}: its changes were undone, and are saved as {kept_as}"))
