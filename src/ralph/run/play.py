"""Play a run: open what its plan needs, run the loop, record how it ended. `play` lists these steps."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.errors import UserError, shortage
from ralph.git.worktrees import Worktree, remove
from ralph.loop import Parts, run_loop
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run.agents import CliAgent
from ralph.run.open_run import OpenRun, begin_run, make_run_parts
from ralph.run.plan import RunPlan
from ralph.run.policy import explain_missing_claim
from ralph.run.prove import prove_run
from ralph.run.request import RunRequest
from ralph.run.run_context import enter_sandbox, listen, make_context, register, watch_settings
from ralph.run.run_files import RunFiles, create_worktree, report_refusal
from ralph.run.start_and_end import finish_run, run_started, tell_end
from ralph.store.journal import StoredRun
from ralph.store.register import kill_orphans
from ralph.store.writer import LineSink
from ralph.verdict.context import Clock, Context, Tick
from ralph.verdict.copies import enter_worktree, quiet_context, remove_abandoned

Follower = Callable[[Context], AbstractContextManager[events.TellAll]]
"""Opens a listener for the time of a run."""


class Played(Struct, frozen=True):
    """A run that has ended. `worktree` is where it worked, if that wasn't the workspace."""

    run: Run
    stop: Stop
    worktree: Worktree | None = None

    def remove_worktree(self) -> bool:
        """Remove the worktree; return False if there is none, or if it contains work that exists nowhere else."""
        if self.worktree is None:
            return False
        repository = replace(self.worktree.repository, deadline=None)  # the deadline was that of the run
        try:
            remove(replace(self.worktree, repository=repository))
        except UserError:
            return False
        return True


def play(
    plan: RunPlan,
    *,
    listeners: Sequence[events.TellAll] = (),
    followers: Sequence[Follower] = (),
    sinks: Sequence[LineSink] = (),
    is_read: Callable[[], bool] = lambda: True,
    ticks: Sequence[Tick] = (),
    keeper: Keeper | None = None,
    interrupt: Interrupt | None = None,
    clock: Clock | None = None,
) -> Played:
    """Play a run to its end, and record that end, even if it is a bug.

    `listeners` get every event, and so do those that `followers` open for the time of the run. `sinks` get every line
    of the journal. While `is_read` returns False, listeners may miss some of the agent's text. `ticks` are called from
    time to time while nothing happens.
    """
    with ExitStack() as stack:
        interrupt = interrupt or stack.enter_context(Interrupt())
        clock = clock or make_clock(plan.request, plan.story)
        deadline = Deadline(interrupt, plan.id, plan.request.settings.grace, clock.time_left)
        reporting = partial(report_refusal, plan.id, sinks, interrupt, is_resumed=plan.story is not None)
        with reporting():
            keeper = keeper or stack.enter_context(Keeper.start())
            orphans = kill_orphans(time_left=deadline.remaining)
            remove_abandoned()
            keeper.watch_run(plan.id)
            files = RunFiles(plan, stack)
            teller = files.open(sinks, is_read)
        watched = watch_settings(plan)
        stack.callback(watched.end)
        with reporting(teller=teller):
            context = make_context(plan, files, keeper, clock, deadline)
            registration = register(plan, context)
            teller.subscribe(registration, *listeners)
            check_out = plan.place.check_out or partial(create_worktree, plan)
            worktree = check_out(context, files.lock) if context.settings.worktree else None
            if worktree:
                context = quiet_context(context, worktree)
                is_strict = plan.place.check_out is not None or context.settings.traits.measures
                context = stack.enter_context(enter_worktree(context, worktree, is_strict=is_strict, tell=context.tell))
            context = listen(plan, context, registration, teller, ticks=ticks)
            teller.subscribe(*(stack.enter_context(follow(context)) for follow in followers))
            context = enter_sandbox(plan, context, stack)
            agent = plan.make_agent(context) if plan.make_agent else CliAgent(plan.agents, context)
            opened, run = begin_run(plan, context, worktree, stack)
            parts = make_run_parts(opened, agent)
            context.tell(run_started(opened, parts, run))
            context.tell(*plan.notices, *(events.Notice(orphan.killed_words) for orphan in orphans))
            is_explained = plan.request.tells_claim or plan.story or plan.make_agent
            if not is_explained and (text := explain_missing_claim(opened.policy, plan.request)):
                context.tell(events.Notice(text, "info"))
            run, stop = _run_loop(opened, parts, run)
            run = prove_run(run, stop, plan.request, parts=parts, context=context, trees=opened.trees)
            run, stop = finish_run(opened, run, stop, watched)
        return Played(run, stop, worktree)


def make_clock(request: RunRequest, story: StoredRun | None) -> Clock:
    """Return the clock of a run that starts or is resumed now."""
    return Clock(max_time=request.settings.max_time, before=story.elapsed if story else 0.0)


def _run_loop(opened: OpenRun, parts: Parts, run: Run) -> tuple[Run, Stop]:
    """Run the loop. If it fails with a bug, record that as the end."""
    plan = opened.plan
    try:
        is_open = plan.story is not None and plan.story.is_open
        run, stop = run_loop(parts, run, followed=len(run.iterations) - is_open)
        stop = opened.tuning.finish(run, stop) if opened.tuning else stop
        plan.place.end(run, stop, opened.context)
        return run, stop
    except BaseException as error:
        if short := shortage(error):
            return run, Stop(Outcome.FATAL, short.advice)
        bug = Stop(Outcome.FATAL, f"internal error: {type(error).__name__}: {error}")
        stop = Stop(Outcome.INTERRUPTED, "KeyboardInterrupt") if isinstance(error, KeyboardInterrupt) else bug
        tell_end(opened, run, stop)
        raise
