"""Play a run: open what its plan needs, run the loop, record how it ended. `play` lists these steps."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__, agents
from ralph.core import events
from ralph.core.judgement import results_so_far
from ralph.core.model import Outcome, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError, shortage
from ralph.git.client import require_git
from ralph.git.worktrees import Worktree, create, refuse_another, remove, remove_unstarted, worktree_lock, worktree_of
from ralph.loop import Agent, Parts, run_loop
from ralph.process.descendants import kill_run
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.run.agents import CliAgent, workers
from ralph.run.followups import clear_progress, tell_skipped_hook
from ralph.run.parts import make_parts
from ralph.run.plan import RunPlan
from ralph.run.policy import Policy, explain_missing_claim, is_verified, make_policy
from ralph.run.prove import prove_run
from ralph.run.publish import PullRequestPublisher
from ralph.run.request import RunRequest
from ralph.run.tuning import Tuning
from ralph.settings import settings_files
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import RunFolder, prepare, remember_red, workspace_lock
from ralph.store.journal import Journal, StoredRun, load_run
from ralph.store.mailbox import Mailbox, QuestionListener, obey_stop_request
from ralph.store.register import kill_orphans
from ralph.store.writer import LineSink, Registration, Teller, Writer, enlist
from ralph.verdict.context import Clock, Context, Tick
from ralph.verdict.copies import enter_worktree, prepare_worktree, quiet_context, remove_abandoned
from ralph.verdict.sandboxing import open_run_sandbox
from ralph.verdict.trees import GitTrees, Trees, make_trees

# Events about the loop itself, which a run of one turn leaves out.
LOOP_EVENTS = (events.IterationStarted, events.Converged, events.Stalled, events.Exhausted)
HOST_KEYS = frozenset({
    *("GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN"),
    *("ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"),
    *("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"),
})  # fmt: skip
"""Variables by which a program acts for the user at the host, or changes what a CI job does next: not for a run whose
goal comes from an issue."""


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
        home = replace(self.worktree.repository, deadline=None)  # the deadline was that of the run
        try:
            remove(replace(self.worktree, home=home))
        except UserError:
            return False
        return True


class OpenRun(Struct, frozen=True, kw_only=True):
    """What the steps of a run share. `tuning` measures the attempts of a run that optimises a number; `publisher` opens
    a pull request."""

    plan: RunPlan
    context: Context
    policy: Policy
    trees: Trees
    tuning: Tuning | None
    publisher: PullRequestPublisher | None


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
        watched = _watch_settings(plan)
        stack.callback(watched.end)
        with reporting(teller=teller):
            context = _make_context(plan, files, keeper, clock, deadline)
            registration = _register(plan, context)
            teller.subscribe(registration, *listeners)
            check_out = plan.place.check_out or partial(_create_worktree, plan)
            worktree = check_out(context, files.lock) if context.settings.worktree else None
            if worktree:
                context = quiet_context(context, worktree)
                is_strict = plan.place.check_out is not None or context.settings.preset == "tune"
                context = stack.enter_context(enter_worktree(context, worktree, is_strict=is_strict, tell=context.tell))
            context = _listen(plan, context, registration, teller, ticks=ticks)
            teller.subscribe(*(stack.enter_context(follow(context)) for follow in followers))
            context = _enter_sandbox(plan, context, stack)
            agent = plan.make_agent(context) if plan.make_agent else CliAgent(plan.agents, context)
            opened, run = _begin(plan, context, worktree, stack)
            parts = _make_parts(opened, agent)
            context.tell(_run_started(opened, parts, run))
            context.tell(*plan.notices, *(events.Notice(orphan.killed_words) for orphan in orphans))
            is_explained = plan.request.tells_claim or plan.story or plan.make_agent
            if not is_explained and (text := explain_missing_claim(opened.policy, plan.request)):
                context.tell(events.Notice(text, "info"))
            run, stop = _run_loop(opened, parts, run)
            run = prove_run(run, stop, plan.request, parts=parts, context=context, trees=opened.trees)
            run, stop = _finish(opened, run, stop, watched)
        return Played(run, stop, worktree)


def make_clock(request: RunRequest, story: StoredRun | None) -> Clock:
    """Return the clock of a run that starts or is resumed now."""
    return Clock(max_time=request.settings.max_time, before=story.elapsed if story else 0.0)


@contextmanager
def report_refusal(
    run_id: str,
    sinks: Sequence[LineSink],
    interrupt: Interrupt,
    *,
    teller: Teller | None = None,
    is_resumed: bool = False,
) -> Iterator[None]:
    """If the run cannot start, write that as its end, because a program may be reading its events."""
    try:
        yield
    except UserError as error:
        if not is_resumed and not (teller and teller.has_begun):
            write = teller.writer if teller else Writer(run_id, sinks)
            outcome = Outcome.INTERRUPTED if interrupt.level else Outcome.FATAL
            write(*events.closing_events(Run(id=run_id), Stop(outcome, error.advice), 0.0))
        if interrupt.level:
            raise KeyboardInterrupt from None
        raise


class RunFiles:
    """The folder, locks and journal of a run, open until `stack` is closed. What it writes is redacted."""

    folder: RunFolder
    teller: Teller

    def __init__(self, plan: RunPlan, stack: ExitStack) -> None:
        self._plan, self._stack = plan, stack
        self._locked: list[tuple[Path, Callable[[], None]]] = []
        self.redact = Redactor(secret_values(os.environ))

    def lock(self, folder: Path) -> None:
        """Lock a folder, in which no other run may work then."""
        self._locked.append((folder, self._stack.enter_context(workspace_lock(prepare(folder), self._plan.id))))

    def open(self, sinks: Sequence[LineSink], is_read: Callable[[], bool]) -> Teller:
        """Lock the place, save the request, and open the journal."""
        plan, place, settings = self._plan, self._plan.place, self._plan.request.settings
        if place.home is not None:
            prepare(place.home)
            if not (settings.worktree and place.home == Path(plan.request.workspace)):
                self.lock(place.home)
        self.folder = place.open((place.home or Path(plan.request.workspace)) / ".ralph", plan.id)
        self._stack.callback(self.folder.close)
        data = self.redact(requests.encode(plan.request))
        self._save_copy(data)
        journal = Journal(self.folder.journal, partial(self._restore, data)).open()
        self._stack.callback(journal.close)
        stored = load_run(self.folder.journal)  # a new run may have a few lines already, from a killed process
        if plan.story and stored.seq != plan.story.seq:
            raise UserError(f"run {plan.id} was continued by another process", "look at it, and try again")
        # The log of each turn has everything that the agent says; the journal has a share of it.
        most = max(settings.max_log // 8, 1) if settings.max_log else 1 << 62
        writer = Writer(plan.id, [journal, *sinks], seq=stored.seq, redact=self.redact, most=most, is_read=is_read)
        self.teller = Teller(writer, LOOP_EVENTS if plan.request.one_shot else ())
        try:
            requests.save(plan.id, data)
        except UserError as error:
            self.teller(events.Notice(f"this run cannot be resumed: {error.advice}"))
        return self.teller

    def _restore(self, data: bytes) -> None:
        """Create the folders again after an agent has removed them."""
        if self._plan.place.home is not None:
            prepare(self._plan.place.home)
        for folder, lock_again in self._locked:
            prepare(folder)
            lock_again()
        self._save_copy(data)

    def _save_copy(self, data: bytes) -> None:
        """Write the request to the run's folder, where only people read it."""
        self.folder.make()
        self.folder.write(requests.REQUEST_FILE, data)


def _watch_settings(plan: RunPlan) -> SettingsWatch:
    """Remember the settings files as they are now."""
    workspace = Path(plan.request.workspace)
    files = settings_files(workspace, os.environ)
    files += [Path(plan.request.config)] if plan.request.config else []
    watched = SettingsWatch(workspace, plan.id, files, os.environ)
    watched.begin()
    return watched


def _make_context(plan: RunPlan, files: RunFiles, keeper: Keeper, clock: Clock, deadline: Deadline) -> Context:
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


def _register(plan: RunPlan, context: Context) -> Registration:
    """Make the run visible to `ralph ps`."""
    request, kind = plan.request, "plan" if plan.request.looks_only else ""
    more = {"work": request.work, "backlog_task": request.backlog_task, "kind": kind}
    registration = Registration(context.folder, plan.story, context.interrupt.ignores_signals, **more)
    registration.begin()
    return registration


def _create_worktree(plan: RunPlan, context: Context, lock: Callable[[Path], None]) -> Worktree:
    """Return the run's own worktree, locked and prepared. A workspace can have any number of worktrees."""
    resumed = plan.story.run if plan.story else None
    home = require_git(context.root, context.deadline)
    worktree, notice = worktree_of(home, plan.id), ""
    exists = resumed is not None and Path(worktree.workspace).is_dir()
    if resumed and resumed.iterations and not exists:
        raise UserError(f"the run's worktree is gone: {worktree.path}", "start a new run")
    if exists:
        refuse_another(worktree)
    with worktree_lock(home):
        if not exists:
            remove_unstarted(home, context.folder.path.parent)
            notice = create(worktree)
        lock(Path(worktree.workspace))
    if notice:
        context.tell(events.Notice(notice))
    prepare_worktree(worktree, context)
    return worktree


def _listen(
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


def _enter_sandbox(plan: RunPlan, context: Context, stack: ExitStack) -> Context:
    """Open the run's sandbox, if it has one. From then on ralph runs no program from where the agent can write."""
    if not context.settings.sandbox.enabled:
        return context
    context.deadline.untrusted = (str(context.root), context.workspace)
    return replace(context, sandbox=stack.enter_context(open_run_sandbox(context, plan.agents)))


def _begin(plan: RunPlan, context: Context, worktree: Worktree | None, stack: ExitStack) -> tuple[OpenRun, Run]:
    """Open what the loop needs. Return it with the new run; or with the resumed one, after killing what its earlier
    process left running."""
    request, story = plan.request, plan.story
    settings, trees = request.settings, make_trees(context, worktree, request.green_is_enough)
    policy = make_policy(settings, workers(plan.agents), request.one_shot, plan.rules, request.green_is_enough)
    if story is None or story.started is None:
        run = Run(id=plan.id, goal=request.title, base_tree=trees.begin())
    else:
        if not settings.keep_children:
            kill_run(plan.id, time_left=context.deadline.remaining)
        trees.begin(story.run.base_tree, story.run.last.number if story.run.last else 0)
        run = story.resumed()
    opened = OpenRun(
        plan=plan,
        context=context,
        policy=policy,
        trees=trees,
        tuning=_open_tuning(context, trees, stack) if settings.traits.measures else None,
        publisher=PullRequestPublisher(request, plan.publish_to, context, trees) if plan.publish_to else None,
    )
    return opened, run


def _open_tuning(context: Context, trees: Trees, stack: ExitStack) -> Tuning:
    """Return the `Tuning` that measures the attempts of a run that optimises a number."""
    if not isinstance(trees, GitTrees) or trees.worktree is None:
        raise UserError("ralph tune needs git and a worktree", "git init, and commit once")
    tuning = Tuning(context, trees, trees.worktree, stack)
    tuning.begin()
    return tuning


def _make_parts(opened: OpenRun, agent: Agent) -> Parts:
    plan, context, trees, publisher = opened.plan, opened.context, opened.trees, opened.publisher
    request, story = plan.request, plan.story
    clear_progress(context)
    if publisher:
        tell_skipped_hook(context)
    finished = {*story.settled} if story else set()
    if story and story.run.last and trees.has_moved(story.run.last):
        # The work was committed, but ralph was killed before it recorded that.
        finished.add((story.run.last.number, "commit"))
    parts = make_parts(
        request,
        opened.policy,
        context,
        agent=agent,
        trees=trees,
        earlier=results_so_far(story.run) if story else (),
        finished=frozenset(finished),
        referees=(publisher.await_host_checks,) if request.pr == "wait" and publisher else (),
        tuning=opened.tuning,
    )
    return plan.place.adapt(parts, context)


def _run_started(opened: OpenRun, parts: Parts, run: Run) -> events.RunStarted:
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
        _tell_end(opened, run, stop)
        raise


def _finish(opened: OpenRun, run: Run, stop: Stop, watched: SettingsWatch) -> tuple[Run, Stop]:
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
        _tell_end(opened, run, stop, verified)
    except UserError as error:  # the journal can't be written, but the listeners get the end
        stop = Stop(Outcome.FATAL, error.advice)
        _tell_end(opened, run, stop)
    return replace(run, seen=replace(run.seen, elapsed=context.clock.elapsed())), stop


def _tell_end(opened: OpenRun, run: Run, stop: Stop, verified: bool = False) -> None:
    request, worktree = opened.plan.request, opened.trees.worktree
    cap = -1 if request.unlimited else request.settings.maximum_iterations
    for event in events.closing_events(run, stop, opened.context.clock.elapsed(), cap, verified):
        if isinstance(event, events.RunFinished) and worktree:
            untouched = opened.trees.is_untouched()
            event = replace(event, worktree=worktree.path, branch=worktree.branch, untouched=untouched)
            canary = opened.context.canary
            event = replace(event, untested=canary is not None and canary.alarm)
        opened.context.tell(event)
