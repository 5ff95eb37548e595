"""Is the work good, not only green? Every so many green iterations the agent reviews its own work, prompt by prompt.

Reviews belong to the iteration they follow and are not counted. The checks run after every review turn, and theirs is
the last word: a review that ends red makes its iteration red, so it is neither committed nor counted as done.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Iteration, Note, Review, Run, Turn
from ralph.core.prompts import Brief, check_message, guardrails
from ralph.loop import Parts


class ReviewPlan(Struct, frozen=True):
    """`every`: how many iterations lie between reviews; `prompts`: (name, prompt) in order; `retries`: how often a
    review that leaves the checks red is tried again."""

    every: int
    prompts: tuple[tuple[str, str], ...]
    retries: int = 3
    truncate: int = 5000


def reviewing(plan: ReviewPlan) -> Callable[[Run, Iteration, Parts], Iteration]:
    def review(run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        if not is_due(plan, run, iteration):
            return iteration
        for name, prompt in plan.prompts:
            parts.tell(events.ReviewStarted(name))
            iteration = _one_review(plan, name, prompt, run, iteration, parts)
            parts.tell(events.ReviewFinished(name, iteration.is_green))
            if not iteration.checked or iteration.reviews[-1].failure:
                break
        return iteration

    return review


def is_due(plan: ReviewPlan, run: Run, iteration: Iteration) -> bool:
    """Enough iterations since the last review that did not break off, and this one is green."""
    since = 1
    for earlier in reversed(run.iterations):
        if earlier.reviews and not any(review.failure for review in earlier.reviews):
            break
        since += 1
    return bool(plan.prompts) and 0 < plan.every <= since and iteration.is_green and iteration.turn.failure is None


def _one_review(plan: ReviewPlan, name: str, prompt: str, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
    turns: list[Turn] = []
    asked = prompt
    for _ in range(plan.retries + 1):
        turns.append(parts.agent.take_turn(asked, run, purpose=f"review-{name}"))
        touched = (*iteration.touched, *parts.workspace.guard())
        checks = parts.workspace.check(iteration.number)
        iteration = replace(iteration, checks=checks or (), checked=checks is not None, touched=touched)
        if iteration.is_green or not iteration.checked or turns[-1].failure:
            break
        red = [check for check in iteration.checks if not check.passed]
        notes = tuple(Note(check_message(check, plan.truncate), "checks", check.action) for check in red)
        asked = guardrails(Brief(goal=asked, number=1, notes=notes))
    done = Review(name, iteration.is_green and turns[-1].failure is None, tuple(turns))
    return replace(iteration, reviews=(*iteration.reviews, done))
