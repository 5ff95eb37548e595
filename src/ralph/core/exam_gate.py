"""Exams, the checks that the agent doesn't see: a claim counts once they pass. The agent learns pass or fail only."""

from collections.abc import Sequence

from msgspec.structs import replace

from ralph.core.claims import Claim, Reading, sighted
from ralph.core.model import Note, Opinions, Outcome, Rule, Run, Stop, configured
from ralph.core.text import plural
from ralph.core.wording import NOT_LAST

REFUSAL = (
    "{opening}{count}. What it asks follows from the goal. Read the goal again and look for cases that no check shows; "
    "do not look for the exam."
)
NOT_EXAMINED = "The hidden exam has not been run on this state of the work. If all of it is done, claim it again."


@configured
def passed_exams(
    run: Run, number: int, tries: int, claims: Sequence[Claim], reading: Reading, *, others: Sequence[Rule]
) -> Opinions:
    """Gate: every one of the `number` exams passes. End the run as blocked after `tries` refused claims.

    Exams are not run while one of the `others`, which are gates, objects; its objection is enough then.
    """
    last = run.last
    if last is None or run.retries:
        yield Note(NOT_EXAMINED, about="exam")
        return
    failed = next((exam for exam in last.exams if not exam.passed), None)
    if failed is None:
        if len(last.exams) < number and not any(opinion for gate in others for opinion in gate(run)):
            yield Note(NOT_EXAMINED, about="exam")
        return
    if failed.shows:  # the gate of the checks says why
        return
    refused = count_refusals(run, claims, reading)
    count = f" (refusal {refused} of {tries})" if _uses_try(run, claims, reading) else ""
    opening = "The checks pass, but the hidden exam does not" if last.checks else "The hidden exam does not pass"
    text = REFUSAL.format(opening=opening, count=count)
    yield Note("\n".join(filter(None, (text, failed.hint))), about="exam")
    if refused >= tries:
        yield Stop(Outcome.BLOCKED, f"the exam refused {plural(refused, 'claim')}: a person should look")


def count_refusals(run: Run, claims: Sequence[Claim], reading: Reading) -> int:
    """Return how many claims the exams have refused since the run was started or resumed.

    A claim is free if its marker doesn't end the answer: it may not have been meant as one.
    """
    refused = [one for one in run.recent if any(not exam.passed and not exam.shows for exam in one.exams)]
    past = (replace(run, iterations=run.iterations[: one.number], retries=()) for one in refused)
    return sum(_uses_try(then, claims, reading) for then in past)


def _uses_try(run: Run, claims: Sequence[Claim], reading: Reading) -> bool:
    place = Reading(strict=reading.strict)
    claimed = [claim for claim in claims if (found := sighted(claim, run, reading)) and not found.doubt]
    return any((found := sighted(claim, run, place)) and found.doubt != NOT_LAST for claim in claimed)
