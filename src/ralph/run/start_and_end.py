"""Record how a run starts and how it ends."""

import os

from msgspec.structs import replace

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.errors import UserError
from ralph.loop import Parts
from ralph.run.open_run import OpenRun
from ralph.run.policy import is_verified
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import remember_red


def run_started(opened: OpenRun, parts: Parts, run: Run) -> events.RunStarted:
    plan, request, worktree = opened.plan, opened.plan.request, opened.trees.worktree
    rights = {"--yolo": request.settings.yolo, "--sandbox": request.settings.sandbox.enabled}
    return events.RunStarted(
        goal=run.goal,
        preset=request.settings.preset,
        agent=plan.agents[0].name if plan.agents else "python",
        workspace=request.workspace,
        max_iterations=parts.cap,
        checks=tuple(check.command for check in request.settings.checks),
        claims=tuple(map(str, opened.policy.claims)),
        gates=tuple(opened.policy.gates),
        pid=os.getpid(),
        stuck=request.settings.stuck,
        version=__version__,
        base_tree=run.base_tree,
        worktree=worktree.path if worktree else "",
        branch=worktree.branch if worktree else "",
        copies=("in-place" if opened.context.namespace else "plain") if worktree else "",
        resumed=plan.story is not None,
        task=request.task,
        work=request.work,
        backlog_task=request.backlog_task,
        rights=tuple(name for name, is_on in rights.items() if is_on),
    )


def finish_run(opened: OpenRun, run: Run, stop: Stop, watched: SettingsWatch) -> tuple[Run, Stop]:
    """Publish the result if that was asked for, and record the end."""
    request, context = opened.plan.request, opened.context
    results = (run.baseline or (), *(iteration.checks for iteration in run.iterations))
    red = [check.name for checks in results for check in checks if not check.passed]
    remember_red(context.folder.path.parent.parent, red)
    if opened.publisher:
        stop = opened.publisher.finish(run, stop)
    # With `looks_only`, a rule has verified the answer.
    verified = stop.outcome is Outcome.DONE and (is_verified(run, request.settings) or request.looks_only)
    try:
        if changed := watched.end():
            text = f"the settings have changed during the run: {', '.join(changed)}"
            context.tell(events.Notice(f"{text}; the next run asks about it, and so does `ralph trust`"))
        tell_end(opened, run, stop, verified)
    except UserError as error:  # the journal can't be written, but the listeners get the end
        stop = Stop(Outcome.FATAL, error.advice)
        tell_end(opened, run, stop)
    return replace(run, seen=replace(run.seen, elapsed=context.clock.elapsed())), stop


def tell_end(opened: OpenRun, run: Run, stop: Stop, verified: bool = False) -> None:
    request, worktree = opened.plan.request, opened.trees.worktree
    cap = -1 if request.unlimited else request.settings.maximum_iterations
    for event in events.closing_events(run, stop, opened.context.clock.elapsed(), cap, verified):
        if isinstance(event, events.RunFinished) and worktree:
            untouched = opened.trees.is_untouched()
            event = replace(event, worktree=worktree.path, branch=worktree.branch, untouched=untouched)
            canary = opened.context.canary
            event = replace(event, untested=canary is not None and canary.alarm)
        opened.context.tell(event)
