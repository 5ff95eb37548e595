"""Make what surrounds the loop of a run: its context, registration, listeners and sandbox."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from ralph import agents
from ralph.core import events
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline
from ralph.run.plan import RunPlan
from ralph.run.run_files import RunFiles
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.mailbox import Mailbox, QuestionListener, obey_stop_request
from ralph.store.writer import Registration, Teller, enlist
from ralph.verdict.context import Clock, Context, Tick
from ralph.verdict.sandboxing import open_run_sandbox

HOST_KEYS = frozenset({
    *("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
    *("ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"),
    *("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"),
})  # fmt: skip
"""Variables by which a program acts for the user at the host, or changes what a CI job does next: not for a run whose
goal comes from an issue."""


def watch_settings(plan: RunPlan) -> SettingsWatch:
    """Remember the settings files as they are now."""
    workspace = Path(plan.request.workspace)
    files = settings_files(workspace, os.environ)
    files += [Path(plan.request.config)] if plan.request.config else []
    watched = SettingsWatch(workspace, plan.id, files, os.environ)
    watched.begin()
    return watched


def make_context(plan: RunPlan, files: RunFiles, keeper: Keeper, clock: Clock, deadline: Deadline) -> Context:
    request, env = plan.request, dict(os.environ)
    if request.issue:
        needed = {key for choice in plan.agents for key in agents.keys(choice.module.NAME)}
        env = {name: value for name, value in env.items() if name not in HOST_KEYS or name in needed}
    return Context(
        root=Path(request.workspace),
        workspace=request.workspace,
        settings=request.settings,
        folder=files.folder,
        keeper=keeper,
        deadline=deadline,
        tell=files.teller,
        env=env,
        redact=files.redact,
        clock=clock,
        task=plan.place.task,
        writable=plan.place.writable,
        looks_only=request.looks_only,
    )


def register(plan: RunPlan, context: Context) -> Registration:
    """Make the run visible to `ralph ps`."""
    request, kind = plan.request, "plan" if plan.request.looks_only else ""
    more = {"work": request.work, "backlog_task": request.backlog_task, "kind": kind}
    registration = Registration(context.folder, plan.story, context.interrupt.ignores_signals, **more)
    registration.begin()
    return registration


def listen(
    plan: RunPlan,
    context: Context,
    registration: Registration,
    teller: Teller,
    *,
    ticks: Sequence[Tick],
) -> Context:
    """Subscribe what else follows the run. Return the context with `tick`, which does what is due while nothing
    happens."""
    mailbox, interrupt = Mailbox(context.folder.path), context.interrupt
    root = (lambda: context.root) if plan.place.takes_questions else None
    questions = QuestionListener(mailbox, context.tell, root)
    questions.begin()

    def look_for_stop(*happened: events.Event) -> None:
        obey_stop_request(mailbox, interrupt)

    # If the program around the run handles the signals, a request to stop comes by the mailbox.
    stops = [look_for_stop] if interrupt.ignores_signals else []
    teller.subscribe(questions.hear, *stops)
    if problem := enlist(context.folder, os.environ):
        context.tell(events.Notice(problem, "info"))
    every: list[Tick] = [
        *stops,
        lambda: bool(stops),
        lambda: registration.tick(is_stopping=interrupt.level > 0),
        questions,
        *ticks,
    ]
    # A list: every tick must be called each time.
    return replace(context, tick=lambda: any([tick() for tick in every]))  # noqa: C419


def enter_sandbox(plan: RunPlan, context: Context, stack: ExitStack) -> Context:
    """Open the run's sandbox, if it has one. From then on ralph runs no program from where the agent can write."""
    if not context.settings.sandbox.enabled:
        return context
    context.deadline.untrusted = (str(context.root), context.workspace)
    return replace(context, sandbox=stack.enter_context(open_run_sandbox(context, plan.agents)))
