"""What is open while a run goes on? Lock, journal, keeper, worktree: opened in order, closed whatever happens."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph import __version__
from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.loop import Agent, Parts, run_loop
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.records.folder import RunFolder, new_run_id, prepare, workspace_lock
from ralph.records.journal import Journal, Story, recall
from ralph.records.registration import Registration, enlist
from ralph.records.writer import Sink, Writer
from ralph.repository.checkpoints import History
from ralph.run import order as orders
from ralph.run import parts as wiring
from ralph.run.agents import choices
from ralph.run.context import Context
from ralph.run.order import Order
from ralph.run.policy import Policy, policy, refuse_what_cannot_end
from ralph.steering.mailbox import Mailbox
from ralph.steering.questions import Inquiry

if TYPE_CHECKING:
    from ralph.repository.worktrees import Worktree
    from ralph.run.agents import Choice


class Session:
    """One run, from its first event to its last.

    `agent` makes an agent for the context of the run; without it the settings' agent is a child process. `listeners`
    hear every event, `sinks` get every line of the journal; while `is_read` denies that a listener would show what the
    agent says, they may hear of it without its words. `story` is the run so far where one is resumed.
    """

    takes_files = True  # questions that an agent leaves in the workspace

    def __init__(
        self,
        order: Order,
        *,
        agent: Callable[[Context], Agent] | None = None,
        listeners: Sequence[events.TellAll] = (),
        is_read: Callable[[], bool] = lambda: True,
        sinks: Sequence[Sink] = (),
        tick: Callable[[], bool] | None = None,
        keeper: Keeper | None = None,
        interrupt: Interrupt | None = None,
        env: Mapping[str, str] = os.environ,
        notices: Sequence[events.Notice] = (),
        story: Story | None = None,
    ) -> None:
        self.order, self.settings, self.workspace = order, order.settings, Path(order.workspace)
        self.worktree: Worktree | None = None
        self._history: History | None = None
        self.id = story.run.id if story else new_run_id(time.time())
        self._make_agent = agent
        self._listeners, self._is_read, self._sinks, self._tick = tuple(listeners), is_read, tuple(sinks), tick
        self._keeper, self._interrupt, self._env = keeper, interrupt, env
        self._notices, self._story = tuple(notices), story
        self._move_in_again: Callable[[], None] = lambda: None
        self._writer: Writer | None = None
        self._has_begun = self._story is not None

    def play(self) -> tuple[Run, Stop]:
        """Runs the loop to its end, and tells of it whatever that end is."""
        with ExitStack() as stack:
            stack.push(self._refused)
            self._refuse_what_is_in_vain()
            chosen = () if self._make_agent else self._choices()
            context = self._open(stack)
            self.worktree = self._place(context, stack)
            self._enclose(context, chosen, stack)
            plan = policy(self.settings, tuple(choice.name for choice in chosen), self.order.one_shot)
            agent = self._make_agent(context) if self._make_agent else wiring.cli_agent(chosen, self.settings, context)
            history = self._history = History(context, self.worktree, walks=self.settings.min_tool_calls > 0)
            run = self._begin(history)
            parts = wiring.parts(self.settings, plan, context, agent, history, self.order.goal, self._settled(history))
            parts.cap = None if self.order.unlimited else plan.cap
            self._equip(parts, context)
            context.tell(self._started(run, plan, parts, chosen))
            for notice in self._notices:
                context.tell(notice)
            played = self._finish(context, plan, *self._played(parts, run, context))
        self._leave_report(context.folder)
        return played

    def _refuse_what_is_in_vain(self) -> None:
        refuse_what_cannot_end(self.settings)
        if self.settings.notify:
            from ralph.run.notify import refuse_what_cannot_be_told

            refuse_what_cannot_be_told(self.settings.notify)
        if self.settings.sandbox.enabled:
            from ralph.processes.bubblewrap import find_bubblewrap
            from ralph.run.belongings import refuse_what_has_no_box

            refuse_what_has_no_box(self.settings, is_in_process=self._make_agent is not None)
            find_bubblewrap(self._env, str(self.workspace))

    def _refused(self, kind: object, error: BaseException | None, trace: object) -> None:
        """A run that could not begin has an end all the same: somebody may be waiting for it."""
        if isinstance(error, UserError) and not self._has_begun:
            self._has_begun = True
            write, fatal = self._writer or Writer(self.id, [*self._sinks]), Outcome.FATAL
            write(events.RunFinished(fatal.value, error.advice, 0, None, 0.0, fatal.exit_code, verified=False))

    def _leave_report(self, folder: RunFolder) -> None:
        """The run is over and its outcome stands: nothing that is written about it now may change that."""
        from ralph.show.report import leave

        try:
            leave(folder, self._env)
        except Exception:  # noqa: BLE001 - whatever goes wrong here is a bug to be found in the run's folder
            import traceback

            with suppress(UserError):
                folder.write("report-error.txt", traceback.format_exc().encode("utf-8", "replace"))

    def _choices(self) -> "tuple[Choice, ...]":
        return choices(self.settings, self.order.agent_args, self._env, str(self.workspace))

    def _open(self, stack: ExitStack) -> Context:
        interrupt = self._interrupt or stack.enter_context(Interrupt())
        keeper = self._keeper or stack.enter_context(Keeper.start())
        redact = Redactor(secret_values(self._env))
        folder = self._folder(stack)
        self._furnish(folder, redact)
        if self._story and recall(folder.journal).seq != self._story.seq:
            raise UserError(f"run {self.id} has gone on in the meantime", "look at it, and try again")
        settings = self.settings
        context = Context(
            self.workspace,
            folder,
            keeper,
            interrupt,
            self._teller(folder, redact, stack),
            dict(self._env),
            redact,
            self._tick,
            settings.max_time,
            settings.max_log,
            settings.grace,
            settings.keep_children,
            time.monotonic(),
            self._story.elapsed if self._story else 0.0,
        )
        self._attend(context, stack)
        return context

    def _attend(self, context: Context, stack: ExitStack) -> None:
        """Lets people find the run, hear what its agent asks them, and be told of it elsewhere."""
        is_deaf, mailbox = context.interrupt.is_deaf, Mailbox(context.folder.path)
        registration = Registration(context.folder, self._story, is_deaf)
        stack.callback(registration.close)
        inquiry = Inquiry(mailbox, context, self.settings.on_question == "wait", self.takes_files)
        self._listeners = (registration, *self._listeners, inquiry.hear)
        screen_tick = self._tick

        def tick() -> bool:
            registration.tick(is_stopping=context.interrupt.level > 0)
            inquiry()
            return screen_tick is not None and screen_tick()

        context.tick = tick
        if is_deaf:
            self._obey_letters(context, mailbox, tick)
        if self.settings.notify:
            from ralph.run.notify import Notifier

            notifier = Notifier(self.settings.notify, context, self.workspace)
            stack.callback(notifier.close)
            self._listeners = (*self._listeners, notifier)
        if problem := enlist(context.folder, self._env):
            context.tell(events.Notice(problem, "info"))

    def _obey_letters(self, context: Context, mailbox: Mailbox, tick: Callable[[], bool]) -> None:
        """Where signals are left to the program around the run, its mailbox is looked into: at each event, and once a
        second."""
        from ralph.steering.control import heed

        def tick_and_heed() -> bool:
            heed(mailbox, context.interrupt)
            tick()
            return True

        context.tick = tick_and_heed
        self._listeners = (*self._listeners, lambda *_: heed(mailbox, context.interrupt))

    def _folder(self, stack: ExitStack) -> RunFolder:
        """The run's folder, in a workspace that no other run works in; with a worktree, that is the worktree."""
        ralph = prepare(self.workspace)
        if not self.settings.worktree:
            self._occupy(self.workspace, stack)
        return RunFolder(ralph, self.id)

    def _place(self, context: Context, stack: ExitStack) -> "Worktree | None":
        """Where the work is done, if not in the workspace itself."""
        resumed = self._story.run if self._story else None
        return wiring.place(self.settings, context, resumed, lambda folder: self._occupy(folder, stack))

    def _occupy(self, folder: Path, stack: ExitStack) -> None:
        lock_again = stack.enter_context(workspace_lock(prepare(folder), self.id))

        def move_in_again() -> None:
            prepare(self.workspace)
            prepare(folder)
            lock_again()

        self._move_in_again = move_in_again

    def _enclose(self, context: Context, chosen: "Sequence[Choice]", stack: ExitStack) -> None:
        """Puts a box around all that the run starts, where that is asked for."""
        if not self.settings.sandbox.enabled:
            return
        from ralph.run.belongings import enclose

        box = context.box = enclose(context, self.settings, chosen, str(self.workspace))
        context.boxes_checks = self.settings.sandbox.checks
        stack.callback(box.close)

    def _furnish(self, folder: RunFolder, redact: Redactor) -> None:
        folder.make()
        folder.write("run.json", redact(orders.encode(self.order)))

    def _teller(self, folder: RunFolder, redact: Redactor, stack: ExitStack) -> events.TellAll:
        def restore() -> None:
            self._move_in_again()
            self._furnish(folder, redact)

        journal = Journal(folder.journal, restore)
        stack.callback(journal.close)
        seq = self._story.seq if self._story else 0
        # The rest of what an agent says is in the log of its turn.
        most = max(self.settings.max_log // 8, 1) if self.settings.max_log else 1 << 62
        writer = Writer(self.id, [journal, *self._sinks], seq, redact, most, self._is_read)
        self._writer = writer
        stack.push(self._refused)
        # One shot is no loop: what frames a loop is not told.
        framing = (events.IterationStarted, events.Converged, events.Stalled, events.Exhausted)
        unheard: tuple[type, ...] = framing if self.order.one_shot else ()
        early: list[events.Event] | None = []  # what is noticed before the run has started is told right after
        opening: list[events.Event] = []  # that an iteration begins is shown with what comes of it: one look for both

        def tell(*happened: events.Event) -> None:
            nonlocal early, opening
            heard = [event for event in happened if not isinstance(event, unheard)] if unheard else happened
            if early is not None:
                if not any(isinstance(event, events.RunStarted) for event in heard):
                    early += heard
                    return
                heard, early = [*heard, *early], None
            written = opening + writer(*heard)
            self._has_begun = True
            opening = written if written and isinstance(written[-1], events.IterationStarted) else []
            for listener in self._listeners if written and not opening else ():
                listener(*written)

        return tell

    def _equip(self, parts: Parts, context: Context) -> None:
        """What else the parts of the run need to know, in sessions of another kind."""

    def _begin(self, history: History) -> Run:
        """A new run, or the one that is resumed, once nothing of its earlier life is left."""
        if self._story is None or self._story.started is None:
            return Run(self.id, self.order.goal(), history.begin())
        from ralph.processes.descendants import sweep_marked

        sweep_marked(self.id)
        history.begin(self._story.run.base_tree)
        return self._story.resumed()

    def _settled(self, history: History) -> frozenset[tuple[int, str]]:
        """The SCM tasks that need not be done again. One that was cut off before it could be recorded shows in git."""
        if self._story is None:
            return frozenset()
        last = self._story.run.last
        made = {(last.number, "commit")} if last and history.has_moved(last) else set()
        return self._story.settled | made

    def _played(self, parts: Parts, run: Run, context: Context) -> tuple[Run, Stop]:
        """The loop's end, or what went wrong in it as an end of its own."""
        try:
            is_open = self._story is not None and self._story.is_open
            return run_loop(parts, run, followed=len(run.iterations) - is_open)
        except BaseException as error:
            bug = Stop(Outcome.FATAL, f"internal error: {type(error).__name__}: {error}")
            stop = Stop(Outcome.INTERRUPTED, "KeyboardInterrupt") if isinstance(error, KeyboardInterrupt) else bug
            self._end(context, run, stop, verified=False)
            raise

    def _started(self, run: Run, plan: Policy, parts: Parts, chosen: "Sequence[Choice]") -> events.RunStarted:
        return events.RunStarted(
            run.goal,
            self.settings.preset,
            chosen[0].name if chosen else "python",
            str(self.workspace),
            parts.cap,
            tuple(guardrail.command for guardrail in self.settings.guardrails),
            tuple(map(str, plan.claims)),
            tuple(plan.gates),
            os.getpid(),
            __version__,
            run.base_tree,
            self.worktree.path if self.worktree else "",
            self.worktree.branch if self.worktree else "",
            self._story is not None,
            self.order.task,
        )

    def _finish(self, context: Context, plan: Policy, run: Run, stop: Stop) -> tuple[Run, Stop]:
        try:
            self._conclude(context, plan, run, stop)
        except UserError as error:  # what cannot be written down is told to those who still listen
            stop = Stop(Outcome.FATAL, error.advice)
            self._end(context, run, stop, verified=False)
        return replace(run, seen=replace(run.seen, elapsed=context.elapsed())), stop

    def _conclude(self, context: Context, plan: Policy, run: Run, stop: Stop) -> None:
        last = len(run.iterations)
        if stop.outcome is Outcome.DONE:
            context.tell(events.Converged(last, stop.claim))
        elif stop.outcome is Outcome.STALLED:
            context.tell(events.Stalled(last, stop.reason))
        elif stop.outcome is Outcome.EXHAUSTED:
            context.tell(events.Exhausted(last, plan.cap))
        self._end(context, run, stop, verified=stop.outcome is Outcome.DONE and plan.verifies)

    def _end(self, context: Context, run: Run, stop: Stop, verified: bool) -> None:
        context.tell(
            events.RunFinished(
                stop.outcome.value,
                stop.reason,
                len(run.iterations),
                run.usage.cost_usd,
                context.elapsed(),
                stop.outcome.exit_code,
                verified,
                self.worktree.path if self.worktree else "",
                self.worktree.branch if self.worktree else "",
                self.worktree is not None and self._history is not None and self._history.is_untouched(),
            )
        )

    def remove_worktree(self) -> bool:
        """Removes the run's worktree unless it holds work that is nowhere else."""
        from ralph.repository.worktrees import remove

        if self.worktree is None:
            return False
        try:
            remove(self.worktree)
        except UserError:
            return False
        return True
