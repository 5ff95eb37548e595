"""Let other agents review a change that nobody's loop made."""

import os

from msgspec.structs import replace

from ralph.core.judgement import Cell
from ralph.core.model import Iteration, Review, Run, Turn
from ralph.core.referees import ASK_AGAIN, NO_VERDICT, read_verdict, review_prompt
from ralph.git.checkpoints import patch
from ralph.run.agents import CliAgent, choices
from ralph.settings import AgentChoice
from ralph.settings.schema import ReviewPrompt
from ralph.verdict.context import Context
from ralph.verdict.copies import open_copy
from ralph.verdict.judge import Change

MAX_DIFF = 1 << 20  # bytes that are read of it
MAX_MESSAGES = 4000  # characters


def review_change(change: Change, cell: Cell, context: Context) -> list[Review]:
    """Return the reviews of a change, each in a throwaway copy; `cell` has the results of its checks."""
    reviews = context.settings.reviews
    assert reviews is not None
    messages = change.home.run("log", "--format=%B", f"{change.base}..{change.head}").decode("utf-8", "replace")
    goal = messages.strip()[:MAX_MESSAGES] or "What the change itself shows."
    diff = b"".join(patch(change.home, change.base, change.head))[:MAX_DIFF].decode("utf-8", "replace")
    results = []
    for asked in reviews.asked:
        prompt = review_prompt(
            asked.prompt,
            Run(id=context.folder.id, goal=goal),
            Iteration(number=1, turn=Turn(text=""), checks=cell),
            goal=goal,
            diff=diff,
            protected=context.settings.protect.globs,
            nonce=os.urandom(4).hex(),
        )
        results.append(_review(asked, prompt, goal, change, context))
        if results[-1].changes:
            break
    return results


def _review(asked: ReviewPrompt, prompt: str, goal: str, change: Change, context: Context) -> Review:
    """Return the review by one agent; after an answer without a verdict it is asked once more."""
    settings = context.settings
    name = asked.agent or (settings.reviews.agent if settings.reviews else "") or settings.agent.command
    settings = replace(settings, agent=AgentChoice(command=name, model=asked.model), reviews=None, then=())
    turns: list[Turn] = []
    changes, problem, first = None, NO_VERDICT, prompt
    run = Run(id=context.folder.id, goal=goal)
    with open_copy(replace(context, settings=settings), change.home, change.head, name="-review") as copy:
        agent = CliAgent(choices(settings, context.env, str(copy.context.root)), copy.context)
        while len(turns) < 2 and changes is None:
            turns.append(turn := agent.take_turn(prompt, run, purpose=f"review-{asked.name}"))
            if turn.failure or turn.ended_by:
                problem = turn.failure.reason if turn.failure else f"ended by {turn.ended_by}"
                break
            changes, prompt = read_verdict(turn.text, first), first + ASK_AGAIN
    problem = problem if changes is None else ""
    return Review(asked.name, changes == "", tuple(turns), changes=changes or "", problem=problem)
