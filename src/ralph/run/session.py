"""How is one run put together and played? Lock, journal, keeper, worktree: opened in order, closed whatever happens."""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec.structs import replace

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Rule, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError, shortage
from ralph.git.client import require_git
from ralph.git.worktrees import Worktree, remove
from ralph.loop import Agent, Parts, ending, run_loop
from ralph.process.deadline import Deadline
from ralph.process.descendants import kill_run
from ralph.process.keeper import Keeper
from ralph.process.signals import Interrupt
from ralph.run import order as orders
from ralph.run.agents import Choice, CliAgent, choices, may_write, out_of_reach, unheard_limit, unused_roles, workers
from ralph.run.context import Context, Place, Tick, without_tokens
from ralph.run.control import obey_stop_request
from ralph.run.followups import ProgressFile, carried, learned, read_notes
from ralph.run.hosting import Publishing, prepared
from ralph.run.notify import Notifier, refuse_what_cannot_be_told
from ralph.run.order import Order, refuse_link_out
from ralph.run.policy import (
    Policy,
    own_rules,
    parts_of,
    policy,
    refuse_what_cannot_end,
    trees_of,
    unsaid_claim,
    workspace_of,
)
from ralph.run.prepare_worktree import prepare_worktree
from ralph.run.sandboxing import open_run_sandbox, path_outside, validate_sandbox
from ralph.run.workspace import Trees
from ralph.settings import settings_files
from ralph.settings.trust import Watched, refuse_untrusted
from ralph.show.report import leave
from ralph.store.folder import RunFolder, new_run_id, remember_red
from ralph.store.journal import Journal
from ralph.store.mailbox import Mailbox, QuestionListener
from ralph.store.orphans import kill_orphans
from ralph.store.stored_run import StoredRun, load_run
from ralph.store.writer import LineSink, Registration, Teller, Writer, enlist

# One shot is no loop: what frames a loop is not told.
FRAMING = (events.IterationStarted, events.Converged, events.Stalled, events.Exhausted)


class Session:
    """One run, from its first event to its last.

    `agent` makes an agent for the context of the run; without it the settings' agent is a child process. `rules` are
    asked beside ralph's own. `listeners` hear every event, `sinks` get every line of the journal; while `is_read`
    denies that a listener would show what the agent says, they may hear of it without its words. `story` is the run so
    far where one is resumed.
    """

    def __init__(
        self,
        order: Order,
        *,
        place: Place | None = None,
        agent: Callable[[Context], Agent] | None = None,
        rules: Sequence[Rule] = (),
        listeners: Sequence[events.TellAll] = (),
        is_read: Callable[[], bool] = lambda: True,
        sinks: Sequence[LineSink] = (),
        tick: Tick | None = None,
        keeper: Keeper | None = None,
        interrupt: Interrupt | None = None,
        env: Mapping[str, str] = os.environ,
        notices: Sequence[events.Notice] = (),
        story: StoredRun | None = None,
    ) -> None:
        self.order, self.settings = order, order.settings
        self.place = place or Place(Path(order.workspace), in_worktree=order.settings.worktree)
        self.id = story.run.id if story else self.place.run_id or new_run_id(time.time())
        self.worktree: Worktree | None = None
        self._make_agent, self._rules = agent, tuple(rules)
        self._listeners, self._is_read, self._sinks, self._tick = tuple(listeners), is_read, tuple(sinks), tick
        self._keeper, self._interrupt, self._env = keeper, interrupt, env
        self._notices, self._story = tuple(notices), story
        self._trees: Trees | None = None
        self._publishing: Publishing | None = None
        self._teller: Teller | None = None
        self._watched: Watched | None = None

    def play(self) -> tuple[Run, Stop]:
        """Runs the loop to its end, and tells of it whatever that end is."""
        with ExitStack() as stack:
            self._interrupt = self._interrupt or stack.enter_context(Interrupt())
            self._deadline = Deadline(self._interrupt, self.id, self.settings.grace)
            return self._play()

    def is_late(self) -> bool:
        """Whether nothing more is to be waited for: the time that the run may take is over."""
        return self._deadline.is_over()

    def _play(self) -> tuple[Run, Stop]:
        with ExitStack() as stack:
            stack.push(self._refused)
            rules = self._refuse_what_is_in_vain()
            chosen = self._chosen()
            env = dict(self._env)
            if self.order.issue:
                env = without_tokens(env, {key for choice in chosen for key in choice.module.KEYS})
            context = self._open(stack, env)
            if self.settings.worktree:
                resumed = self._story.run if self._story else None
                self.worktree = self.place.move_to_worktree(context, resumed, stack)
                prepare_worktree(self.worktree, context, self.settings, self.order.workspace, self.settings.work.setup)
            self._enclose(context, chosen, stack)
            green = self.order.green_is_enough
            plan = policy(self.settings, workers(chosen), self.order.one_shot, rules, green)
            agent = self._make_agent(context) if self._make_agent else CliAgent(chosen, self.settings, context)
            trees = self._trees = trees_of(self.settings, context, self.worktree, green)
            run = self._begin(trees)
            ProgressFile(context).clear()
            workspace = workspace_of(self.settings, plan, context, trees, self.order.goal_file)
            workspace.begin()
            parts = parts_of(
                self.settings,
                plan,
                context,
                agent=agent,
                workspace=workspace,
                trees=trees,
                goal=self.order.goal,
                tells_claim=self.order.tells_claim,
                settled=self._settled(trees),
            )
            parts.cap = None if self.order.unlimited else plan.cap
            self.place.equip(parts, context)
            if self._publishing:
                self._publishing.equip(parts, context, trees)
            context.tell(self._started(run, plan, parts, chosen))
            is_own_prompt = not self.order.tells_claim and self._story is None and self._make_agent is None
            if is_own_prompt and (unsaid := unsaid_claim(self.settings, plan, self.order.goal())):
                self._notices += (events.Notice(unsaid, "info"),)
            for notice in self._notices:
                context.tell(notice)
            run, stop = self._played(parts, run, context)
            if self.settings.learn and not self.order.looks_only:
                path = Path(self.order.workspace) / self.settings.learn
                run = learned(
                    run,
                    stop,
                    agent=agent,
                    context=context,
                    trees=trees,
                    path=path,
                    claims=plan.claims,
                    read=self._notes,
                )
            played = self._finish(context, run, stop)
        self._leave_report(context.folder)
        return played

    def _refuse_what_is_in_vain(self) -> tuple[Rule, ...]:
        """Says before anything is made or spent what cannot work; gives the rules of the user's own."""
        refuse_what_cannot_end(self.settings, self.order.one_shot)
        if self._story is None:  # one that goes on does so with what it began with
            refuse_untrusted(self.place.workspace, self._env)
        if self.order.pr:
            self._publishing = prepared(self.order, require_git(Path(self.order.workspace), self._deadline))
        if self.settings.notify:
            refuse_what_cannot_be_told(self.settings.notify)
        if self.settings.sandbox.enabled:
            self.place.refuse_box()
            validate_sandbox(self.settings, self.order.workspace, self._env, self._make_agent is not None)
        rules = own_rules(self.settings.rules, self._rules, self.place.workspace)
        if self.settings.learn and not self.order.looks_only:  # what earlier runs learned here is in every prompt
            notes = self._notes()
            rules = (*rules, carried(notes)) if notes else rules
        return rules

    def _notes(self) -> list[str]:
        """Return the notes of earlier runs. A sandboxed agent may have made their file a link."""
        path = Path(self.order.workspace) / self.settings.learn
        refuse_link_out(str(path), self.settings, self.order.workspace)
        return read_notes(path)

    def _refused(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell the end of a run that could not start: somebody may be waiting for it."""
        if not isinstance(error, UserError):
            return
        if self._watched:
            self._watched.end()  # settings that the user edits now were not changed during a run
        is_cut_off = self._interrupt is not None and self._interrupt.level > 0
        has_begun = self._story is not None or (self._teller is not None and self._teller.has_begun)
        if not has_begun:
            writer = self._teller.writer if self._teller else Writer(self.id, [*self._sinks])
            outcome = Outcome.INTERRUPTED if is_cut_off else Outcome.FATAL
            writer(*ending(Run(id=self.id), Stop(outcome, error.advice), 0.0))
            if self._teller:
                self._teller.has_begun = True
        if is_cut_off:
            raise KeyboardInterrupt from None

    def _chosen(self) -> tuple[Choice, ...]:
        """The agents that may work, and what a person should hear about them; none where the caller brings one."""
        if self._make_agent:
            if unused := unused_roles(self.settings):
                self._notices += (events.Notice(unused),)
            return ()
        try:
            chosen = choices(self.settings, self._env, self.order.workspace)
        except UserError as error:
            self.place.refuse(error)
            raise
        if self.place.lends and not may_write(chosen[0], self.settings, self.place.lends):
            self._notices += (events.Notice(out_of_reach(chosen[0].name, self.place.lends)),)
        if limited := unheard_limit(chosen[0], self.settings.agent.max_turns):
            self._notices += (events.Notice(limited),)
        return chosen

    def _open(self, stack: ExitStack, env: Mapping[str, str]) -> Context:
        """All that is open while the run goes on. The order is that of the needs: who comes later closes first."""
        assert self._interrupt is not None
        keeper = self._keeper or stack.enter_context(Keeper.start())
        redact = Redactor(secret_values(self._env))
        self._kill_orphans()
        keeper.watch_run(self.id)
        folder = self.place.open(self.id, stack)
        self._keep_order(folder, redact)
        if self._story and load_run(folder.journal).seq != self._story.seq:
            raise UserError(f"run {self.id} has gone on in the meantime", "look at it, and try again")
        settings = self.settings
        context = Context(
            root=Path(self.order.workspace),
            folder=folder,
            keeper=keeper,
            interrupt=self._interrupt,
            tell=self._open_teller(folder, redact, stack),
            env=env,
            redact=redact,
            max_time=settings.max_time,
            max_log=settings.max_log,
            grace=settings.grace,
            keep_children=settings.keep_children,
            looks_only=self.order.looks_only,
            before=self._story.elapsed if self._story else 0.0,
            deadline=self._deadline,
        )
        self._deadline.time_left = context.time_left
        self.place.enter(context)
        self._attend(context, stack)
        return context

    def _kill_orphans(self) -> None:
        """Kill what dead runs left running, and remember the settings files as they are now."""
        for orphan in kill_orphans(self._env, self._deadline.remaining):
            self._notices += (
                events.Notice(f"run {orphan.run} was killed earlier; ended what it left running: {orphan}"),
            )
        files = settings_files(self.place.workspace, self._env)
        files += [Path(self.order.config)] if self.order.config else []
        self._watched = Watched(self.place.workspace, self.id, files, self._env)
        self._watched.begin()

    def _keep_order(self, folder: RunFolder, redact: Redactor) -> None:
        """Write down what was asked for: where the agent doesn't work, and a copy for people."""
        data = redact(orders.encode(self.order))
        try:
            orders.keep(self.id, data, self._env)
        except UserError as error:
            self._notices += (events.Notice(f"this run cannot be resumed: {error.advice}"),)
        self._copy_order(folder, data)

    def _copy_order(self, folder: RunFolder, data: bytes) -> None:
        folder.make()
        folder.write(orders.ORDER, data)

    def _open_teller(self, folder: RunFolder, redact: Redactor, stack: ExitStack) -> Teller:
        def restore() -> None:
            self.place.restore()
            self._copy_order(folder, redact(orders.encode(self.order)))

        journal = Journal(folder.journal, restore).open()
        stack.callback(journal.close)
        # The rest of what an agent says is in the log of its turn.
        most = max(self.settings.max_log // 8, 1) if self.settings.max_log else 1 << 62
        # An earlier life may have come to nothing but a few lines: they are numbered, too.
        seq = self._story.seq if self._story else load_run(folder.journal).seq
        writer = Writer(self.id, [journal, *self._sinks], seq=seq, redact=redact, most=most, is_read=self._is_read)
        self._teller = Teller(writer, FRAMING if self.order.one_shot else ())
        stack.push(self._refused)  # while the journal is still open
        return self._teller

    def _attend(self, context: Context, stack: ExitStack) -> None:
        """Who hears of the run, and what is looked after while it goes on: people find it, hear what its agent asks
        them, and are told of it elsewhere."""
        assert self._teller is not None
        settings, mailbox, interrupt = self.settings, Mailbox(context.folder.path), context.interrupt
        part, kind = (
            {"work": self.order.work, "backlog_task": self.order.backlog_task},
            "plan" if self.order.looks_only else "",
        )
        registration = Registration(context.folder, self._story, interrupt.ignores_signals, **part, kind=kind)
        registration.begin()
        stack.callback(registration.close)
        root = (lambda: context.root) if self.place.takes_questions else None
        questions = QuestionListener(mailbox, context.tell, settings.on_question == "wait", root)
        questions.begin()
        notifiers = []
        if settings.notify:
            place, folder = self.place.workspace, context.folder
            notifier = Notifier(
                settings.notify, place, folder, env=context.env, tell=context.tell, deadline=self._deadline
            )
            notifiers = [notifier]
            stack.callback(notifiers[0].close)
        obeying, heeding = list[Tick](), list[events.TellAll]()
        if interrupt.ignores_signals:  # the program around the run handles them; look into the mailbox instead

            def obey() -> bool:
                obey_stop_request(mailbox, interrupt)
                return True  # it looks again in a second

            obeying, heeding = [obey], [lambda *happened: obey_stop_request(mailbox, interrupt)]
        self._teller.listeners = [registration, *self._listeners, questions.hear, *heeding, *notifiers]
        ticks: list[Tick] = [
            *obeying,
            lambda: registration.tick(is_stopping=interrupt.level > 0),
            questions,
            *self.place.ticks(context),
            *([self._tick] if self._tick else []),
        ]
        # Every tick is due each time: none may keep the others from theirs.
        context.tick = lambda: any([tick() for tick in ticks])  # noqa: C419
        if problem := enlist(context.folder, self._env):
            context.tell(events.Notice(problem, "info"))

    def _enclose(self, context: Context, chosen: Sequence[Choice], stack: ExitStack) -> None:
        """Puts a box around all that the run starts, where that is asked for."""
        if not self.settings.sandbox.enabled:
            return

        # For good: after the run, too, its report asks git.
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = path_outside(path, str(context.root), self.order.workspace)
        box = context.box = open_run_sandbox(context, self.settings, chosen, self.order.workspace)
        context.boxes_checks = self.settings.sandbox.checks
        stack.callback(box.close)

    def _begin(self, trees: Trees) -> Run:
        """A new run, or the one that is resumed, once nothing of its earlier life is left."""
        if self._story is None or self._story.started is None:
            return Run(id=self.id, goal=self.order.title, base_tree=trees.begin())
        if not self.settings.keep_children:
            kill_run(self.id, time_left=self._deadline.remaining)
        last = self._story.run.last
        trees.begin(self._story.run.base_tree, last.number if last else 0)
        return self._story.resumed()

    def _settled(self, trees: Trees) -> frozenset[tuple[int, str]]:
        """The SCM tasks that need not be done again. One that was cut off before it could be recorded shows in git."""
        if self._story is None:
            return frozenset()
        last = self._story.run.last
        made = {(last.number, "commit")} if last and trees.has_moved(last) else set()
        return frozenset(self._story.settled | made)

    def _played(self, parts: Parts, run: Run, context: Context) -> tuple[Run, Stop]:
        """The loop's end, or what went wrong in it as an end of its own."""
        try:
            is_open = self._story is not None and self._story.is_open
            run, stop = run_loop(parts, run, followed=len(run.iterations) - is_open)
            self.place.end(run, stop, context)
            return run, stop
        except BaseException as error:
            if short := shortage(error):
                return run, Stop(Outcome.FATAL, short.advice)
            bug = Stop(Outcome.FATAL, f"internal error: {type(error).__name__}: {error}")
            stop = Stop(Outcome.INTERRUPTED, "KeyboardInterrupt") if isinstance(error, KeyboardInterrupt) else bug
            self._end(context, *ending(run, stop, context.elapsed()))
            raise

    def _started(self, run: Run, plan: Policy, parts: Parts, chosen: Sequence[Choice]) -> events.RunStarted:
        return events.RunStarted(
            goal=run.goal,
            preset=self.settings.preset,
            agent=chosen[0].name if chosen else "python",
            workspace=self.order.workspace,
            max_iterations=parts.cap,
            checks=tuple(check.command for check in self.settings.checks),
            claims=tuple(map(str, plan.claims)),
            gates=tuple(plan.gates),
            pid=os.getpid(),
            version=__version__,
            base_tree=run.base_tree,
            worktree=self.worktree.path if self.worktree else "",
            branch=self.worktree.branch if self.worktree else "",
            resumed=self._story is not None,
            task=self.order.task,
            work=self.order.work,
            backlog_task=self.order.backlog_task,
        )

    def _finish(self, context: Context, run: Run, stop: Stop) -> tuple[Run, Stop]:
        # An answer that is wanted for itself was looked at by the rule that ended the run.
        verified = stop.outcome is Outcome.DONE and (self.settings.verifies or self.order.looks_only)
        results = (run.baseline or (), *(iteration.checks for iteration in run.iterations))
        red = [check.name for checks in results for check in checks if not check.passed]
        remember_red(context.folder.path.parent.parent, red)
        if self._publishing:
            stop = self._publishing.finish(run, stop, verified)
            verified = verified and stop.outcome is Outcome.DONE
        try:
            if self._watched and (changed := self._watched.end()):
                what = f"the settings have changed while the run was at work: {', '.join(changed)}"
                context.tell(events.Notice(f"{what}; the next run asks about it, and so does `ralph trust`"))
            cap = -1 if self.order.unlimited else self.settings.maximum_iterations
            self._end(context, *ending(run, stop, context.elapsed(), cap, verified))
        except UserError as error:  # what cannot be written down is told to those who still listen
            stop = Stop(Outcome.FATAL, error.advice)
            self._end(context, *ending(run, stop, context.elapsed()))
        return replace(run, seen=replace(run.seen, elapsed=context.elapsed())), stop

    def _end(self, context: Context, *told: events.Event) -> None:
        for event in told:
            if isinstance(event, events.RunFinished) and self.worktree:
                untouched = self._trees is not None and self._trees.is_untouched()
                event = replace(event, worktree=self.worktree.path, branch=self.worktree.branch, untouched=untouched)
            context.tell(event)

    def _leave_report(self, folder: RunFolder) -> None:
        """The run is over and its outcome stands: nothing that is written about it now may change that."""

        try:
            leave(folder, self._env)
        except Exception:  # noqa: BLE001 - whatever goes wrong here is a bug to be found in the run's folder
            with suppress(UserError):
                folder.write("report-error.txt", traceback.format_exc().encode("utf-8", "replace"))

    def remove_worktree(self) -> bool:
        """Removes the run's worktree unless it holds work that is nowhere else."""

        if self.worktree is None:
            return False
        try:
            remove(self.worktree)
        except UserError:
            return False
        return True
