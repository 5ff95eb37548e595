"""Make the parts of a loop from a policy and a context. Used by `play` and by the stop hook."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ralph.agents.prices import price_hint
from ralph.core import events
from ralph.core.events import Notice, Tell
from ralph.core.gains import is_measurable
from ralph.core.judgement import Cell
from ralph.core.model import Iteration, Run, Wait
from ralph.loop import UNCOUNTED, Agent, Parts
from ralph.run.exam_referee import ExamReferee
from ralph.run.followups import make_followups
from ralph.run.policy import Policy, make_composer
from ralph.run.request import RunRequest
from ralph.run.reviews import review_claim
from ralph.run.tests_referee import TestsReferee
from ralph.run.tuning import Tuning
from ralph.run.workspace import LocalWorkspace
from ralph.settings import Settings
from ralph.store.mailbox import Mail, Mailbox, wait_for_person
from ralph.verdict.context import Context
from ralph.verdict.trees import Trees

LONG_WAIT = 1.5  # seconds; shorter waits are not announced

Referee = Callable[[Run, Iteration, Parts], Iteration]


def make_parts(
    request: RunRequest,
    policy: Policy,
    context: Context,
    *,
    agent: Agent,
    trees: Trees,
    earlier: Iterable[Cell] = (),
    finished: frozenset[tuple[int, str]] = frozenset(),
    referees: Sequence[Referee] = (),
    tuning: Tuning | None = None,
    is_resumed: bool = False,
    accepts_files: bool = False,
) -> Parts:
    """Return the parts of the loop. `earlier` are the results of the checks so far; `finished` are the SCM tasks of
    earlier iterations that are done; `tuning` measures each attempt of a run that optimises a number, and keeps or
    undoes it. `accepts_files`: a person accepts test and protected files as they are now."""
    settings, mailbox = context.settings, Mailbox(context.folder.path)
    workspace = LocalWorkspace(context, policy.claims, trees, request.goal_file, earlier)
    workspace.begin(is_resumed=is_resumed, accepts_files=accepts_files)
    exams = ExamReferee(context, trees) if settings.exams else None
    reviews = settings.reviews.asked if settings.reviews else ()
    reviewers = [partial(review_claim, review, goal=request.goal, context=context, trees=trees) for review in reviews]
    settle = tuning.settle if tuning else None
    followups = make_followups(agent, context, trees=trees, workspace=workspace, finished=finished, settle=settle)
    if settings.max_cost or settings.max_tokens:
        followups.append(warn_if_unmeasured(settings, context.tell))
    return Parts(
        agent=agent,
        workspace=workspace,
        rules=policy.rules,
        compose=make_composer(
            settings,
            policy,
            request.goal,
            diff=trees.diff,
            redact=context.redact.text,
            tells_claim=request.tells_claim,
        ),
        tell=context.tell,
        wait=_make_wait(context, mailbox),
        followups=(*followups, lambda run, iteration: mailbox.forget(iteration.told)),
        referees=(
            *((TestsReferee(context, trees, settings.tests_rule).compare,) if settings.tests_rule else ()),
            *((tuning.measure,) if tuning else reviewers),
            *((exams.examine,) if exams else ()),
            *referees,
        ),
        is_claimed=is_measurable if tuning else policy.is_claimed,
        check_start=partial(workspace.check, 0) if settings.baseline and settings.checks else None,
        examine_start=exams.take_baseline if exams and settings.baseline is not False else lambda: None,
        cap=None if request.unlimited else policy.cap,
        uncounted=("fatal",) if settings.every_turn_counts else UNCOUNTED,
        measure_start=tuning.measure_start if tuning else None,
        accepts_files=accepts_files and not tuning,
    )


def _make_wait(context: Context, mailbox: Mailbox) -> Callable[[Wait, Run], None]:
    """Return a function that waits until the rules have to be asked again, and announces each long wait once."""
    poll, awaits_answers = context.settings.poll_interval, context.settings.on_question == "wait"
    announced: set[object] = set()

    def sleep(seconds: float) -> bool:
        """Sleep; return True if the run has to end: it is interrupted, or out of time."""
        seconds_left = context.clock.time_left()
        # If no time is left, the run is done and only waits for its children.
        return context.wait(min(seconds, seconds_left or seconds)) or seconds >= seconds_left

    def is_paused(mail: Mail) -> bool:
        return mail.is_paused or (awaits_answers and bool(mail.questions))

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            is_question = asked.until == "answer"
            context.tell(events.Paused(asked.reason, asks=is_question))
            seconds = wait_for_person(mailbox, is_paused, sleep if is_question else context.wait)
            if not is_question:
                context.clock.exclude(seconds)  # a pause doesn't count against --max-time
            if not context.interrupt.level and context.clock.time_left() > 0:
                context.tell(events.Continued(seconds))
            return
        occasion = (asked.reason, len(run.iterations), len(run.retries))
        if asked.seconds >= LONG_WAIT and occasion not in announced:
            announced.clear()
            announced.add(occasion)
            until = run.seen.at + asked.seconds
            context.tell(events.Waiting(asked.seconds, asked.reason, until, asked.children, limited=asked.limited))
        sleep(min(asked.seconds, poll or asked.seconds))

    return wait


def warn_if_unmeasured(settings: Settings, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Return a followup that warns about each agent that doesn't report what the budget limits."""
    warned: set[str] = set()

    def warn(run: Run, iteration: Iteration) -> None:
        turn, usage = iteration.turn, iteration.turn.usage
        if turn.agent in warned or turn.failure:
            return
        warned.add(turn.agent)
        name = turn.agent or "the agent"
        if settings.max_cost and usage.cost_usd is None:
            hint = f"{price_hint()}, or use --max-tokens" if usage.tokens else "use --max-time"
            tell(Notice(f"{name} doesn't report its cost: --max-cost cannot end this run; {hint}"))
        if settings.max_tokens and not usage.tokens:
            tell(Notice(f"{name} doesn't report its tokens: --max-tokens cannot end this run; use --max-time"))

    return warn
