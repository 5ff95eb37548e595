"""Fold the events of a run into its history, for `ralph show`, reports, the TUI and the web UI."""

import os

from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.backlog import Board
from ralph.core.backlog_events import BacklogStarted
from ralph.core.gains import attempt_result, is_kept, read_idea
from ralph.core.model import Check, Iteration, Refusal, Usage
from ralph.core.progress import MeasuredCheck, ProgressStep, best_step, measure, measure_checks, steps_of
from ralph.core.state import after
from ralph.core.text import clean, head, short
from ralph.history.backlog_history import board_after, todo_of
from ralph.history.run_history import AskedQuestion, CheckResult, PastIteration, RunHistory
from ralph.settings.presets import find_preset

ANSWER_SHOWN = 1500
MOST_NOTICES = 100
USUAL_STUCK = 8  # iterations in a row in which new output alone counts as progress, if the run sets no such limit
UNCOUNTED = frozenset({
    *(e.AgentText, e.AgentProgress, e.AgentResult, e.ToolStarted, e.ToolFinished, e.PermissionDenied),
    *(e.ReviewStarted, e.ReviewFinished, e.ProofAsked, e.Converged, e.Stalled, e.Exhausted),
})  # fmt: skip
"""Events that change nothing in a history. They are most of a journal, and need not be decoded."""
_COUNTED = e.NAMES.keys() - UNCOUNTED


class Fold:
    """Builds a history from events, one by one. `running` are the names of the checks that are running."""

    def __init__(self, run: str) -> None:
        self.history = RunHistory(run=run)
        self._todo: tuple[e.TodoItem, ...] = ()
        self.running: set[str] = set()
        self._finished: dict[str, CheckResult] = {}  # checks of the unfinished iteration, by name
        self._last = 0.0
        self._asked: dict[str, AskedQuestion] = {}  # by the id of the question
        self._numbered: dict[int, PastIteration] = {}
        self._board: Board | None = None
        self._goal = ""  # of the first start; the summary cuts it
        self._baseline: tuple[MeasuredCheck, ...] = ()
        self._measured: list[ProgressStep] = []
        self._is_measurable = False  # by checks or tasks

    @property
    def _root(self) -> str:
        return self.history.worktree or self.history.workspace

    @property
    def last_results(self) -> dict[str, CheckResult | None]:
        """The latest result of each check; None if it has none yet."""
        results = (self.history.baseline, *(iteration.checks for iteration in self.history.iterations))
        results_by_name = {check.name: check for checks in results for check in checks} | self._finished
        return {
            name: results_by_name.get(name)
            for name in (*self.history.check_names, *results_by_name, *sorted(self.running))
        }

    def add(self, event: e.Event, at: float) -> None:
        if type(event) in _COUNTED:
            self.history = after(self.history, event, at)
            self._add_to_iteration(event, at)
            if self.history.iterations:  # earlier ones do not change any more
                self.history.iterations[-1].judge()
        elif type(event) not in e.NAMES:
            if isinstance(event, BacklogStarted):
                self.history.check_names = [*event.checks]
            self._board = board_after(self._board, event, at)
        self._last = max(at, self._last)

    @property
    def todo(self) -> tuple[e.TodoItem, ...]:
        """The agent's todo list, or the tasks of a backlog."""
        return self._todo if self._board is None else todo_of(self._board)

    def as_of(self, now: float = 0.0, state: str = "") -> RunHistory:
        """Return the history so far.

        `state` is the state of a run without an outcome. `now` is the time if it is running: its last event may be old.
        """
        self._judge_progress()
        history, last = self.history, max(self._last, now)
        for iteration in history.iterations[-1:]:
            if not iteration.is_whole:
                iteration.checks = [*self._finished.values()]
        if history.outcome:
            return replace(history)
        return replace(history, state=state or "running", ended=last, seconds=max(last - history.began, 0.0))

    def _run_started(self, event: e.RunStarted) -> None:
        history = self.history
        self.running.clear()
        history.resumed += event.resumed
        history.proof = None
        if not history.base_tree:
            history.base_tree = event.base_tree
        self._goal = self._goal or clean(event.goal)
        history.goal = self._goal
        history.claims, history.gates, history.stuck = event.claims, event.gates, event.stuck
        history.check_names = [short(name, 200) for name in event.checks]
        for iteration in history.iterations[-1:]:
            iteration.is_accepted = iteration.is_unjudged = False

    def _start(self, number: int, at: float) -> None:
        iterations = self.history.iterations
        fresh = PastIteration(number=number, began=at)
        if iterations and not iterations[-1].is_whole:  # it was cut off and starts again
            cut = iterations.pop()
            fresh.number, fresh.began, fresh.usage = cut.number, cut.began, cut.usage
        iterations.append(fresh)
        self._finished.clear()
        self._numbered[fresh.number] = fresh

    def _add_to_iteration(self, event: e.Event, at: float) -> None:
        iterations = self.history.iterations
        match event:
            case e.IterationStarted():
                self._start(event.iteration, at)
            case e.AgentStarted():
                if event.purpose == "work":
                    self._todo = ()
                    if not iterations or iterations[-1].is_whole:
                        self._start(len(iterations) + 1, at)
                    iterations[-1].agent = short(event.agent, 80)
            case e.IterationFinished():
                if not iterations or iterations[-1].is_whole:
                    self._start(event.iteration, at)
                self.running.clear()
                self._finished.clear()
                _fill(iterations[-1], event.record, at, self._root)
                if self.history.first_numbers:
                    iterations[-1].idea = read_idea(event.record.turn.text)
                    iterations[-1].gain = attempt_result(event.record, self.history.first_numbers.metric)
                self._spend(iterations[-1:], event.record.usage)
                self._measure(event.record)
            case e.FilesAccepted() if past := self._numbered.get(event.iteration):
                self.running.clear()
                past.refused.clear()
                _fill(past, event.record, past.ended, self._root)
                self._spend([past], event.record.review_usage)
            case e.TodoUpdated():
                self._todo = event.items
            case e.TurnNotCounted():
                self._spend(iterations[-1:], event.turn.usage)
            case e.Baseline():
                self._baseline = measure_checks(event.checks)
                self.history.baseline = [_check_result(check, check.duration, self._root) for check in event.checks]
            case e.StartMeasured():
                self.history.first_numbers = event.start
            case e.EndMeasured():
                self.history.end_numbers = event.comparison
            case e.CheckStarted():
                self.running.add(short(event.name, 200))
            case e.CheckFinished():
                name = short(event.name, 200)
                self.running.discard(name)
                if iterations and not iterations[-1].is_whole:  # its record replaces this
                    self._finished[name] = _check_result(event, event.duration_s, self._root)
            case e.ClaimRejected():
                refusal = Refusal(short(event.claim, 100), short(event.gate, 40), short(event.reason, 500))
                for iteration in iterations[-1:]:
                    if refusal not in iteration.refused:  # a resumed run looks at its last claim again
                        iteration.refused.append(refusal)
            case _:
                self._add_to_run(event, at)

    def _add_to_run(self, event: e.Event, at: float) -> None:
        """Handle events between iterations, or about a finished one."""
        match event:
            case e.RunStarted():
                self._run_started(event)
            case e.Waiting():
                for iteration in self.history.iterations[-1:]:
                    iteration.awaits_children = bool(event.children)
            case e.QuestionAsked() if event.id not in self._asked:
                self._asked[event.id] = AskedQuestion(event.id, clean(event.text))
                self.history.questions.append(self._asked[event.id])
            case e.PersonTold():
                for note in event.notes:
                    if note.answers and note.answers.id in self._asked:
                        self._asked[note.answers.id].answer = clean(note.text)
            case e.HandedOver() if past := self._numbered.get(event.hand_over.after):
                past.hand_over = event.hand_over
            case e.Spent():
                self._spend([past] if (past := self._numbered.get(event.iteration)) else [], event.usage)
            case e.ScmFinished() if past := self._numbered.get(event.iteration):
                past.scm.append((short(event.task, 40), event.ok, short(event.detail, 300)))
            case e.Notice() if event.level == "warning" and len(self.history.notices) < MOST_NOTICES:
                if event.text not in self.history.notices:
                    self.history.notices.append(short(event.text, 500))
            case e.ProofStarted():
                for iteration in self.history.iterations[-1:]:  # only what is done is proved
                    iteration.is_accepted = True
            case e.ProofFinished():
                self.history.proof = event.proof
                if event.tree and (past := self._numbered.get(event.iteration)):
                    past.tree = event.tree
            case e.RunFinished():
                history = self.history
                self.running.clear()
                self._judge_progress()
                history.outcome = history.state = event.outcome.value
                history.reason, history.ended = clean(event.reason), at
                for iteration in history.iterations[-1:]:
                    iteration.is_accepted = history.outcome == "done" and history.first_numbers is None
                    iteration.is_unjudged = history.outcome == "interrupted"

    def _measure(self, record: Iteration) -> None:
        """Store the measurements by which the progress of an iteration is judged."""
        before = self._numbered.get(record.number - 1)
        tree = self.history.base_tree
        if before:
            tree = before.hand_over.tree if before.hand_over and before.hand_over.start else before.tree
        self._measured.append(measure(record, tree))
        self._is_measurable = bool(record.checks) or record.tasks_done is not None

    def _judge_progress(self) -> None:
        """Set the progress of all iterations: a later one may show that a check is flaky."""
        if not self._is_measurable or find_preset(self.history.preset).measures:
            return
        steps = steps_of(self._measured, self._baseline, self.history.stuck or USUAL_STUCK)
        for iteration, step in zip(self.history.whole, steps, strict=False):
            iteration.step = step
        self.history.best = best_step(steps)

    def _spend(self, iterations: list[PastIteration], usage: Usage) -> None:
        for iteration in iterations:
            iteration.usage = iteration.usage.plus(usage)
        self.history.usage = self.history.usage.plus(usage)


def _check_result(check: Check | e.CheckFinished, seconds: float, root: str) -> CheckResult:
    return CheckResult(
        name=short(check.name, 200),
        passed=check.passed,
        seconds=seconds,
        exit_code=check.exit_code,
        timeout=check.timeout,
        log=short(os.path.join(root, check.log), 1000) if check.log else "",
        void=short(check.void, 300),
    )


def _fill(past: PastIteration, record: Iteration, at: float, root: str) -> None:
    turn = record.turn
    past.number, past.ended, past.seconds = record.number, at, record.duration
    past.agent = past.agent or short(turn.agent, 80)
    past.tool_calls, past.ended_by = turn.tool_calls, turn.ended_by
    past.answer = head(clean(turn.text[: 4 * ANSWER_SHOWN]).strip(), ANSWER_SHOWN, " …") if turn.text else ""
    past.failure = short(turn.failure.reason, 500) or turn.failure.kind if turn.failure else ""
    past.checks = [_check_result(check, check.duration, root) for check in record.checks]
    past.reviews = [
        (short(review.agent or review.name, 80), review.passed, short(review.problem or review.changes, 500))
        for review in record.reviews
    ]
    past.exams = [(short(exam.name, 200), exam.passed) for exam in record.exams]
    past.restored = [short(path, 300) for path in record.touched]
    past.denials = tuple(short(tool, 80) for tool in turn.denials)
    past.told = [clean(note.text) for note in record.told]
    past.measured, past.is_kept = record.measured, is_kept(record)
    past.tree, past.is_checked, past.is_whole = record.tree, record.checked, True
