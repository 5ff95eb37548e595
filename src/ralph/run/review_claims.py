"""Ask reviewers about a claim whose checks are green. Changes by a reviewer are undone."""

import os
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Review, Run, Turn
from ralph.core.prompts import own_words
from ralph.core.referees import (
    ASK_AGAIN,
    DIFF_SHOWN,
    NO_VERDICT,
    ReviewAnswer,
    ReviewBrief,
    read_verdict,
    review_prompt,
)
from ralph.loop import Parts
from ralph.run.context import Context
from ralph.run.trees import Trees
from ralph.settings import ReviewPrompt, Settings
from ralph.store.folder import write

DIFF_FILE = ".ralph/review.diff"
LARGEST_DIFF = 4 << 20  # characters in the file


class Reviewers:
    """The reviews that the settings ask for. Each is a referee of the loop."""

    def __init__(self, settings: Settings, goal: Callable[[], str], context: Context, trees: Trees) -> None:
        self._reviews, self._protected = settings.reviews, settings.protect.globs
        self._goal, self._context, self._trees = goal, context, trees

    @property
    def referees(self) -> tuple[Callable[[Run, Iteration, Parts], Iteration], ...]:
        asked = self._reviews.asked if self._reviews else ()
        return tuple(partial(self._review, one) for one in asked)

    def _review(self, asked: ReviewPrompt, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """Ask a reviewer, once more if its answer is no verdict; return the iteration with the review."""
        parts.tell(events.ReviewStarted(asked.name))
        prompt = first = review_prompt(asked.prompt, self._make_brief(run, iteration))
        turns: list[Turn] = []
        said = ReviewAnswer()
        while len(turns) < 2 and not said.is_verdict:
            turns.append(turn := parts.agent.take_turn(prompt, run, purpose=f"review-{asked.name}"))
            iteration = self._undo(iteration, parts)
            if turn.failure or turn.ended_by:
                break
            said, prompt = read_verdict(turn.text, first), first + ASK_AGAIN
        problem = "" if said.is_verdict else _why_no_verdict(turns[-1])
        review = Review(asked.name, said.approves, tuple(turns), changes=said.changes, problem=problem)
        parts.tell(events.ReviewFinished(asked.name, review.passed, review.agent, said.changes, problem))
        return replace(iteration, reviews=(*iteration.reviews, review))

    def _make_brief(self, run: Run, iteration: Iteration) -> ReviewBrief:
        context, diff = self._context, self._trees.diff(LARGEST_DIFF)
        if len(diff) > DIFF_SHOWN:
            context.restore_home()
            write(context.home / DIFF_FILE, diff.encode("utf-8", "replace"))
        return ReviewBrief(
            goal=own_words(self._goal()),
            checks=iteration.checks,
            baseline=run.baseline,
            protected=self._protected,
            diff=diff,
            whole=DIFF_FILE,
            nonce=os.urandom(4).hex(),
        )

    def _undo(self, iteration: Iteration, parts: Parts) -> Iteration:
        """Undo what a reviewer has changed. Without git the checks run again instead."""
        touched = (*iteration.touched, *parts.workspace.guard())
        if self._trees.can_undo and iteration.tree:
            if self._trees.has_changed(iteration):
                kept = self._trees.restore(iteration)
                text = "the reviewer changed files, which were restored; its version is kept as"
                self._context.tell(events.Notice(f"{text} {kept}"))
            return replace(iteration, touched=touched)
        checks = parts.workspace.check(iteration.number)
        return replace(iteration, checks=checks or (), checked=checks is not None, touched=touched)


def _why_no_verdict(turn: Turn) -> str:
    if turn.failure:
        return turn.failure.reason
    return f"ended by {turn.ended_by}" if turn.ended_by else NO_VERDICT
