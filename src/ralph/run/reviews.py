"""Let other agents review a claim."""

import os
from collections.abc import Callable

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Review, Run, Turn
from ralph.core.prompts import own_words
from ralph.core.referees import (
    ASK_AGAIN,
    DIFF_FILE,
    DIFF_SHOWN,
    NO_VERDICT,
    read_verdict,
    review_prompt,
)
from ralph.loop import Parts
from ralph.settings import ReviewPrompt
from ralph.store.folder import write
from ralph.verdict.context import Context
from ralph.verdict.trees import Trees

LARGEST_DIFF = 4 << 20  # characters in the file


def review_claim(
    asked: ReviewPrompt,
    run: Run,
    iteration: Iteration,
    parts: Parts,
    *,
    goal: Callable[[], str],
    context: Context,
    trees: Trees,
) -> Iteration:
    """Let a reviewer take a turn, and a second one after an answer without a verdict. Return the iteration with the
    review."""
    parts.tell(events.ReviewStarted(asked.name))
    diff = trees.diff(LARGEST_DIFF)
    if len(diff) > DIFF_SHOWN:
        context.restore_home()
        write(context.home / DIFF_FILE, diff.encode("utf-8", "replace"))
    prompt = first = review_prompt(
        asked.prompt,
        run,
        iteration,
        goal=own_words(goal()),
        diff=diff,
        protected=context.settings.protect.globs,
        nonce=os.urandom(4).hex(),
    )
    turns: list[Turn] = []
    changes: str | None = None
    problem = NO_VERDICT
    while len(turns) < 2 and changes is None:
        turns.append(turn := parts.agent.take_turn(prompt, run, purpose=f"review-{asked.name}"))
        iteration = _undo_review(iteration, parts, trees)
        if turn.failure or turn.ended_by:
            problem = turn.failure.reason if turn.failure else f"ended by {turn.ended_by}"
            break
        changes, prompt = read_verdict(turn.text, first), first + ASK_AGAIN
    problem = problem if changes is None else ""
    review = Review(asked.name, changes == "", tuple(turns), changes=changes or "", problem=problem)
    parts.tell(events.ReviewFinished(asked.name, review.passed, review.agent, review.changes, problem))
    return replace(iteration, reviews=(*iteration.reviews, review))


def _undo_review(iteration: Iteration, parts: Parts, trees: Trees) -> Iteration:
    """Undo what a reviewer has changed; without git, run the checks again instead."""
    touched = (*iteration.touched, *parts.workspace.guard())
    if trees.can_undo and iteration.tree:
        trees.undo_since(iteration, "the reviewer changed files")
        return replace(iteration, touched=touched)
    checks = parts.workspace.check(iteration.number)
    return replace(iteration, checks=checks or (), checked=checks is not None, touched=touched)
