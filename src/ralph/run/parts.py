"""Make the parts of a loop from settings, a policy and a context. Used by `play` and by the stop hook."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ralph.agents.reader import price_hint
from ralph.core import events, rules
from ralph.core.events import Notice, Tell
from ralph.core.gains import is_measurable
from ralph.core.model import Iteration, Note, Run, Wait
from ralph.errors import UserError
from ralph.git.client import find_git
from ralph.git.protect import Protected
from ralph.git.worktrees import Worktree
from ralph.loop import UNCOUNTED, Agent, Parts
from ralph.run.checks import Checks
from ralph.run.context import Context
from ralph.run.exams import ExamReferee
from ralph.run.followups import make_followups
from ralph.run.policy import Policy, make_composer
from ralph.run.request import refuse_hidden_link
from ralph.run.review_claims import Reviewers
from ralph.run.trees import GitTrees, Trees
from ralph.run.tuning import Tuning
from ralph.run.workspace import LocalWorkspace, TasksFile
from ralph.settings import Protection, Settings
from ralph.show.words import money
from ralph.store.mailbox import Mail, Mailbox, wait_for_person

LONG_WAIT = 1.5  # seconds; shorter waits are not announced


def make_trees(
    settings: Settings, context: Context, worktree: Worktree | None = None, green_is_enough: bool = False
) -> Trees:
    """Return what keeps the states of the workspace: git or, without a usable repository, fingerprints of the files if
    a rule needs them."""
    root = context.root.resolve()
    # Starting git would take longer than the rest of a small run, so look for `.git` first.
    if any(os.path.lexists(parent / ".git") for parent in (root, *root.parents)):
        try:
            if git := find_git(context.root, context.deadline):
                return GitTrees(context, git, worktree)
        except UserError as error:
            context.tell(Notice(f"no checkpoints, no diff: {error.advice}"))
    return Trees(context, worktree, walks=settings.min_tool_calls > 0 or settings.stuck > 0 or green_is_enough)


def make_workspace(
    settings: Settings, policy: Policy, context: Context, trees: Trees, goal_file: str = ""
) -> LocalWorkspace:
    """Return the workspace that the rules look at, with the checks that verify the work."""
    undoes = context.looks_only and trees.can_undo
    protect = settings.protect
    if context.looks_only:
        protect = Protection() if undoes else Protection(("**",), "refuse")
    protected = _protect(protect, context) if protect.globs else None
    # A check may write anything if everything is protected.
    watch = protected.watch if protected and not context.looks_only else None
    if settings.parallel_checks > 1 and context.sandbox and context.sandboxes_checks:
        context.tell(Notice("sandboxed checks run one at a time: --parallel-checks is ignored"))
    return LocalWorkspace(
        context,
        Checks(context, settings.checks, settings, watch),
        done_files=tuple(context.home / claim.text for claim in policy.claims if claim.kind == "file"),
        wait_file=context.home / rules.WAIT_FILE if settings.wait_signals else None,
        tasks=_tasks_file(settings, context) if settings.tasks else None,
        tree=None if undoes else trees.tree,  # after an undo the tree is as it was
        protected=protected,
        undo=trees.undo if undoes else None,
        restore=trees.restore if trees.can_undo and not undoes else None,
        goal_file=goal_file,
    )


def _protect(protect: Protection, context: Context) -> Protected:
    return Protected(
        context.root,
        protect.globs,
        refuses_new=protect.new == "refuse",
        store=Path(context.order_folder) / "protected",
        aside=context.folder.path / "protected" / "aside",
        wants_end=context.interrupt.must_end,
    )


def _tasks_file(settings: Settings, context: Context) -> TasksFile:
    def refuse_link(path: str) -> None:
        refuse_hidden_link(path, settings, str(context.root))

    return TasksFile(context.root / settings.tasks, context.order_folder, refuse_link)


def make_parts(
    settings: Settings,
    policy: Policy,
    context: Context,
    *,
    agent: Agent,
    workspace: LocalWorkspace,
    trees: Trees,
    goal: Callable[[], str],
    cap: int | None = None,
    tells_claim: bool = False,
    finished: frozenset[tuple[int, str]] = frozenset(),
    referees: Sequence[Callable[[Run, Iteration, Parts], Iteration]] = (),
    tuning: Tuning | None = None,
) -> Parts:
    """Return everything that the loop needs. `finished` are the SCM tasks of earlier iterations that are done;
    `tuning` measures and settles each attempt of a run that optimises a number."""
    mailbox = Mailbox(context.folder.path)
    exams = ExamReferee(context, settings, trees) if settings.exams else None
    compose = make_composer(
        settings, policy, goal, diff=trees.diff, redact=context.redact.text, tells_claim=tells_claim
    )
    has_budget = bool(settings.max_cost or settings.max_tokens)
    if not has_budget:
        compose = with_forecast(compose, policy.cap, context.tell)
    return Parts(
        agent=agent,
        workspace=workspace,
        rules=policy.rules,
        compose=compose,
        tell=context.tell,
        wait=_make_wait(context, settings.poll_interval, mailbox, settings.on_question == "wait"),
        followups=(
            *make_followups(
                settings.scm,
                agent,
                context,
                trees=trees,
                workspace=workspace,
                finished=finished,
                settle=tuning.settle if tuning else None,
            ),
            *((warn_if_unmeasured(settings.max_cost, settings.max_tokens, context.tell),) if has_budget else ()),
            lambda run, iteration: mailbox.forget(iteration.told),
        ),
        referees=(
            *((tuning.measure,) if tuning else Reviewers(settings, goal, context, trees).referees),
            *((exams.examine,) if exams else ()),
            *referees,
        ),
        is_claimed=is_measurable if tuning else policy.is_claimed,
        examine_start=exams.take_baseline if exams and settings.baseline is not False else lambda: None,
        cap=cap,
        uncounted=("fatal",) if settings.every_turn_counts else UNCOUNTED,
        baseline=bool(settings.baseline and settings.checks),
        measure_start=tuning.measure_start if tuning else None,
    )


def _make_wait(
    context: Context, poll: float | None, mailbox: Mailbox, awaits_answers: bool
) -> Callable[[Wait, Run], None]:
    """Return a function that waits until the next look is due, and announces a long wait once."""
    announced: set[object] = set()

    def sleep(seconds: float) -> bool:
        """Sleep; return True if the run has to end: it is interrupted, or out of time."""
        tick, left = context.tick, context.clock.time_left()
        # With no time left the run is done, and only waits for its children.
        is_interrupted = context.interrupt.wait(min(seconds, left or seconds), (lambda _: tick()) if tick else None)
        return is_interrupted or seconds >= left

    def is_paused(mail: Mail) -> bool:
        return mail.is_paused or (awaits_answers and bool(mail.questions))

    def pause(seconds: float) -> bool:
        tick = context.tick
        return context.interrupt.wait(seconds, (lambda _: tick()) if tick else None)

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            is_question = asked.until == "answer"
            context.tell(events.Paused(asked.reason, asks=is_question))
            seconds = wait_for_person(mailbox, is_paused, sleep if is_question else pause)
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


def warn_if_unmeasured(max_cost: float | None, max_tokens: int | None, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Return a followup that warns about each agent whose stream doesn't report what the budget limits."""
    seen: set[str] = set()

    def warn(run: Run, iteration: Iteration) -> None:
        turn, usage = iteration.turn, iteration.turn.usage
        if turn.agent in seen or turn.failure:
            return
        seen.add(turn.agent)
        name = turn.agent or "the agent"
        if max_cost and usage.cost_usd is None:
            hint = f"{price_hint()}, or use --max-tokens" if usage.tokens else "use --max-time"
            tell(Notice(f"{name} does not tell what it costs: --max-cost cannot end this run; {hint}"))
        if max_tokens and not usage.tokens:
            tell(Notice(f"{name} tells of no tokens: --max-tokens cannot end this run; use --max-time"))

    return warn


def with_forecast(
    compose: Callable[[Run, tuple[Note, ...]], str], cap: int, tell: Tell
) -> Callable[[Run, tuple[Note, ...]], str]:
    """Return `compose`, which says after a third of the iterations what all of them will cost.

    It does so before the next turn: a run that has ended costs nothing more.
    """
    is_told = cap < 3

    def composed(run: Run, notes: tuple[Note, ...]) -> str:
        nonlocal is_told
        done = run.number - 1
        if not is_told and done == -(-cap // 3) and (cost := run.usage.cost_usd):
            is_told = True
            text = f"{money(cost)} so far, {money(cost / done)} an iteration"
            about = f"about {money(cost / done * cap)} by iteration {cap}; --max-cost ends it at a sum that you choose"
            tell(Notice(f"{text}: {about}", "info"))
        return compose(run, notes)

    return composed
