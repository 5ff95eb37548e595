"""How do settings become a run? Its parts are made here, each from what it needs and nothing more."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ralph.core import events, rules
from ralph.core.events import Notice, Tell
from ralph.core.model import Iteration, Run, Wait
from ralph.errors import to_install
from ralph.loop import Agent, Parts
from ralph.run.checks import Checks, reviewing
from ralph.run.context import Context
from ralph.run.policy import Policy, composer
from ralph.run.workspace import LocalWorkspace, TasksFile
from ralph.settings import Settings
from ralph.steering.mailbox import Mail, Mailbox

if TYPE_CHECKING:
    from ralph.run.trees import Trees


LONG_WAIT = 1.5  # seconds: shorter pauses are not worth telling


def workspace_of(settings: Settings, plan: Policy, context: Context, history: "Trees") -> LocalWorkspace:
    """What the rules are told of, and the checks that verify the work."""
    undoes = context.looks_only and history.can_undo
    if settings.parallel_checks > 1 and context.box and context.boxes_checks:
        context.tell(Notice("checks in a box run one at a time: --parallel-checks is left aside"))
    return LocalWorkspace(
        context,
        Checks(context, settings.guardrails, settings),
        done_files=tuple(context.home / claim.text for claim in plan.claims if claim.kind == "file"),
        wait_file=context.home / rules.WAIT_FILE if settings.wait_signals else None,
        tasks=TasksFile(context.root / settings.tasks, context.folder.path / "tasks.json") if settings.tasks else None,
        tree=None if undoes else history.tree,  # once all is put back, it is as it was
        protect=settings.protect if not context.looks_only else () if undoes else ("**",),
        undo=history.undo if undoes else None,
    )


def parts_of(
    settings: Settings,
    plan: Policy,
    context: Context,
    *,
    agent: Agent,
    workspace: LocalWorkspace,
    history: "Trees",
    goal: Callable[[], str],
    tells_claim: bool = False,
    settled: frozenset[tuple[int, str]] = frozenset(),
) -> Parts:
    """Everything that the loop needs."""
    from ralph.run.followups import followups

    mailbox = Mailbox(context.folder.path)
    made = Parts(
        agent=agent,
        workspace=workspace,
        rules=plan.rules,
        compose=composer(settings, plan, goal, diff=history.diff, redact=context.redact.text, tells_claim=tells_claim),
        tell=context.tell,
        wait=_waiter(context, settings.poll_interval, mailbox, settings.on_question == "wait"),
        followups=(
            *followups(settings.scm, agent, context, history=history, workspace=workspace, settled=settled),
            *_accountants(settings, plan, context),
            lambda run, iteration: mailbox.forget(iteration.told),
        ),
        cap=plan.cap,
    )
    if settings.reviews is not None:
        made.review = reviewing(settings.reviews, settings.quoted)
    if settings.every_turn_counts:
        made.uncounted = ("fatal",)
    return made


def _accountants(settings: Settings, plan: Policy, context: Context) -> tuple[Callable[[Run, Iteration], None], ...]:
    if not (settings.max_cost or settings.max_tokens):
        return (forecast(plan.cap, context.tell),)

    return (watched(settings.max_cost, settings.max_tokens, context.tell),)


def _waiter(
    context: Context, poll: float | None, mailbox: Mailbox, awaits_answers: bool
) -> Callable[[Wait, Run], None]:
    """Sleeps, at most until the next look around is due; tells once what is waited for after a turn."""
    told: set[object] = set()

    def sleep(seconds: float) -> bool:
        """True when there is no more to wait for: somebody wants an end, or the time of the whole run is over. What is
        done but for children that have to end is waited for beyond that."""
        tick, left = context.tick, context.time_left()
        is_interrupted = context.interrupt.wait(min(seconds, left or seconds), (lambda _: tick()) if tick else None)
        return is_interrupted or seconds >= left

    def is_held(mail: Mail) -> bool:
        return mail.is_paused or (awaits_answers and bool(mail.questions))

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            from ralph.steering.questions import wait_for_person

            context.tell(events.Paused(asked.reason, asks=asked.until == "answer"))
            seconds = wait_for_person(mailbox, is_held, sleep)
            if not context.interrupt.level and context.time_left() > 0:
                context.tell(events.Continued(seconds))
            return
        occasion = (asked.reason, len(run.iterations), len(run.retries))
        if asked.seconds >= LONG_WAIT and occasion not in told:
            told.clear()
            told.add(occasion)
            context.tell(events.Waiting(asked.seconds, asked.reason, run.seen.at + asked.seconds))
        sleep(min(asked.seconds, poll or asked.seconds))

    return wait


def watched(max_cost: float | None, max_tokens: int | None, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Looks after each iteration whether what the budget is about was told."""
    known: set[str] = set()

    def look(run: Run, iteration: Iteration) -> None:
        turn, usage = iteration.turn, iteration.turn.usage
        if turn.agent in known or turn.failure:
            return
        known.add(turn.agent)
        name = turn.agent or "the agent"
        if max_cost and usage.cost_usd is None:
            priced = f"name its model with --model and {to_install('prices')}, or use --max-tokens"
            hint = priced if usage.tokens else "use --max-time"
            tell(Notice(f"{name} does not tell what it costs: --max-cost cannot end this run; {hint}"))
        if max_tokens and not usage.tokens:
            tell(Notice(f"{name} tells of no tokens: --max-tokens cannot end this run; use --max-time"))

    return look


def forecast(cap: int, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Says after a third of the iterations what all of them would cost: nothing else guards this run's money."""

    def look(run: Run, iteration: Iteration) -> None:
        if cap < 3 or iteration.number != -(-cap // 3) or not (cost := run.usage.cost_usd):
            return
        from ralph.show.words import money

        mean = cost / iteration.number
        text = f"{money(cost)} so far, {money(mean)} an iteration: about {money(mean * cap)} by iteration {cap}"
        tell(Notice(f"{text}; --max-cost ends it at a sum that you choose", "info"))

    return look
