"""A run before it starts: `prepare` validates a request and returns a frozen `RunPlan`, which `play` in play.py plays.
`Place` is where the run works."""

import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.agents.protocol import Choice
from ralph.core import events
from ralph.core.model import Outcome, Rule, Run, Stop
from ralph.errors import UserError, to_install
from ralph.git.client import require_git
from ralph.git.worktrees import Worktree
from ralph.loop import Agent, Parts
from ralph.process.signals import Deadline
from ralph.run.agents import choices
from ralph.run.policy import load_rules, refuse_endless
from ralph.run.prove import refuse_unprovable
from ralph.run.publish_target import Describe, PublishTarget, find_publish_target, last_answer
from ralph.run.request import RunRequest
from ralph.settings.trust import refuse_untrusted
from ralph.store.folder import RunFolder, new_run_id
from ralph.store.journal import StoredRun
from ralph.verdict.context import Context
from ralph.verdict.copies import find_copy_method
from ralph.verdict.exam_commands import COULD_READ, validate_exams
from ralph.verdict.sandboxing import validate_sandbox


class Place(Struct, frozen=True, kw_only=True):
    """The place where a run works: data, and hooks for what differs from a plain run."""

    home: Path | None
    """Files are kept in its .ralph, and it is locked, except in a worktree. None: `open` chooses; no lock."""
    run_id: str = field(default_factory=lambda: new_run_id(time.time()))
    task: Path | None = None
    """The folder for markers, progress and logs of checks; by default the workspace."""
    writable: tuple[str, ...] = ()
    """Folders outside the workspace where the agent has to write."""
    takes_questions: bool = True
    """An agent may leave questions in a file of the workspace."""
    open: Callable[[Path, str], RunFolder] = RunFolder
    """Returns the run's folder, once `home` is locked."""
    check_out: "Callable[[Context, Callable[[Path], None]], Worktree] | None" = None
    """Creates the run's worktree; the second argument locks a folder."""
    adapt: Callable[[Parts, Context], Parts] = lambda parts, context: parts
    """Returns the parts of the loop with this place's changes."""
    end: Callable[[Run, Stop, Context | None], None] = lambda run, stop, context: None
    """Gets the outcome before the listeners do, without a context if no agent could be started."""


class RunPlan(Struct, frozen=True, kw_only=True):
    """A run that can start: its request is valid and its agents are installed. Nothing has been created yet."""

    id: str
    request: RunRequest
    place: Place
    agents: tuple[Choice, ...] = ()
    """Empty if the caller has its own agent."""
    make_agent: Callable[[Context], Agent] | None = None
    """Makes the caller's own agent."""
    rules: tuple[Rule, ...] = ()
    """Added to ralph's own rules."""
    notices: tuple[events.Notice, ...] = ()
    """Shown when the run has started."""
    story: StoredRun | None = None
    """The run so far, if it is resumed."""
    accepts_files: bool = False
    """A person accepts test and protected files as they are now."""
    publish_to: PublishTarget | None = None


def prepare(
    request: RunRequest,
    *,
    place: Place | None = None,
    make_agent: Callable[[Context], Agent] | None = None,
    rules: Sequence[Rule] = (),
    notices: Sequence[events.Notice] = (),
    story: StoredRun | None = None,
    accepts_files: bool = False,
    deadline: Deadline | None = None,
    accept_settings: Callable[[str], bool] = lambda difference: False,
    describe: Describe = last_answer,
) -> RunPlan:
    """Validate a request and return the plan for it. Raise a UserError for anything that cannot work.

    `deadline` limits the time for git. `accept_settings` gets the settings that changed during an earlier run, as a
    diff, and returns whether the user accepts them. `describe` writes the text of a pull request.
    """
    settings, workspace, env = request.settings, Path(request.workspace), os.environ
    place = place or Place(home=workspace)
    run_id = story.run.id if story else place.run_id
    refuse_endless(settings, request.one_shot)
    refuse_unprovable(request, deadline)
    if story is None:  # a resumed run keeps the settings that it began with
        refuse_untrusted(workspace, env, accept_settings)
    target = find_publish_target(request, require_git(workspace, deadline), describe) if request.pr else None
    request = _keep_copies(request, story)
    settings = request.settings
    validate_exams(settings, request.workspace)
    _refuse_unsendable(settings.notify)
    if settings.sandbox.enabled:
        validate_sandbox(settings, request.workspace, env, is_in_process=make_agent is not None)
    rules = load_rules(settings.rules, rules, workspace)
    agents: tuple[Choice, ...] = ()
    if make_agent is None:
        try:
            agents = choices(settings, env, request.workspace)
        except UserError as error:
            place.end(Run(id=run_id), Stop(Outcome.FATAL, error.advice), None)
            raise
    if settings.exams and not settings.sandbox.enabled and story is None:
        notices = (*notices, events.Notice(COULD_READ))
    return RunPlan(
        id=run_id,
        request=request,
        place=place,
        agents=agents,
        make_agent=make_agent,
        rules=tuple(rules),
        notices=tuple(notices),
        story=story,
        accepts_files=accepts_files,
        publish_to=target,
    )


def _refuse_unsendable(targets: Sequence[str]) -> None:
    """Raise if a notification could not be sent, because its program is not installed."""
    if any("://" in target for target in targets) and find_spec("apprise") is None:
        raise UserError("--notify with a URL needs Apprise", to_install("notify"))


def _keep_copies(request: RunRequest, story: StoredRun | None) -> RunRequest:
    """Return the request of a run that sees its worktree as it did when it began: agents keep their sessions by path.
    Raise a UserError if that isn't possible."""
    settings, began = request.settings, ""
    if story and story.started and story.started.worktree:
        began = story.started.copies or "plain"
    if began == "plain" or (began and settings.copies == "plain"):
        settings = replace(settings, copies=began)
    try:
        if "in-place" in (began, settings.copies):
            find_copy_method(replace(settings, copies="in-place"))
    except UserError as error:
        if story is None:
            raise
        raise UserError(f"the run began with its copy in place of your tree: {error.message}", error.hint) from None
    return replace(request, settings=settings)
