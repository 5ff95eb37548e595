"""The history of a run, folded from its events. `ralph show`, reports, the TUI and the web UI put it into words."""

import os
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.backlog import Board
from ralph.core.gains import attempt_result, is_kept, read_idea
from ralph.core.measuring import Comparison, Start
from ralph.core.model import Check, FileChange, HandOver, Iteration, Refusal, Usage
from ralph.core.progress import (
    MeasuredCheck,
    MeasuredIteration,
    ProgressStep,
    best_step,
    measure,
    measure_checks,
    steps_of,
)
from ralph.core.proof import Proof
from ralph.core.state import RunSummary, after
from ralph.core.text import clean, head, short
from ralph.core.work_events import WorkStarted
from ralph.history.work_history import board_after, todo_of

ANSWER_SHOWN = 1500
MOST_NOTICES = 100
USUAL_STUCK = 8  # iterations in a row in which new output alone counts as progress, if the run sets no such limit
UNCOUNTED = frozenset({
    *(e.AgentText, e.AgentProgress, e.AgentResult, e.ToolStarted, e.ToolFinished, e.PermissionDenied),
    *(e.ReviewStarted, e.ReviewFinished, e.ProofAsked, e.Converged, e.Stalled, e.Exhausted),
})  # fmt: skip
"""Events that change nothing in a history. They are most of a journal, and need not be decoded."""
_COUNTED = e.NAMES.keys() - UNCOUNTED

IterationResult = Literal[
    "unfinished",
    "done",
    "kept",
    "dropped",
    "failed",
    "refused",
    "checks failed",
    "not checked",
    "interrupted",
    "children at work",
    "no claim",
]
"""`refused`: its claim was rejected; `interrupted`: ralph did not look for a claim; `children at work`: its claim
counts once the processes that it started have ended."""


class CheckResult(Struct, kw_only=True):
    """One check of one iteration. `timeout`: it took longer than these seconds; `log` is an absolute path."""

    name: str
    passed: bool
    seconds: float
    exit_code: int | None = 0
    timeout: float | None = None
    log: str = ""


class ReviewResult(Struct):
    """One review of one iteration. `changes` are those that it asks for; `problem` says why there is no verdict."""

    name: str
    passed: bool
    agent: str = ""
    changes: str = ""
    problem: str = ""


class PastIteration(Struct, kw_only=True):
    """One iteration.

    `uncounted` counts the turns that ended by a usage limit or a temporary failure; `refused` are the objections to its
    claim; `exams` are names with whether they passed; `files` is None if unknown; `is_whole`: it finished;
    `is_accepted`: the run ended with it as done; `is_unjudged`: the run was interrupted before it looked for a
    claim; `awaits_children`: its claim waits for processes that it started. In a run that optimises a number, `idea`
    is what the agent tried and `gain` the result; else `step` is the progress, None if nothing measures it.
    `hand_over`: another agent took over after it.
    """

    number: int
    began: float
    ended: float = 0.0
    result: IterationResult = "unfinished"
    agent: str = ""
    seconds: float = 0.0
    usage: Usage = Usage()
    tool_calls: int | None = None
    tool_errors: int = 0
    uncounted: int = 0
    answer: str = ""
    failure: str = ""
    ended_by: str = ""
    checks: list[CheckResult] = []
    is_checked: bool = True
    refused: list[Refusal] = []
    reviews: list[ReviewResult] = []
    exams: list[tuple[str, bool]] = []
    restored: list[str] = []
    told: list[str] = []
    denials: tuple[str, ...] = ()
    scm: list[tuple[str, bool, str]] = []
    tree: str | None = None
    measured: Comparison | None = None
    idea: str = ""
    gain: str = ""
    is_kept: bool = False
    files: list[FileChange] | None = None
    is_whole: bool = False
    is_accepted: bool = False
    is_unjudged: bool = False
    awaits_children: bool = False
    step: ProgressStep | None = None
    hand_over: HandOver | None = None

    @property
    def is_green(self) -> bool:
        """Whether its turn and its checks succeeded, even if its claim was refused."""
        return self.is_accepted or (self.is_whole and not self.failure and not self._problem)

    @property
    def _problem(self) -> IterationResult | None:
        if any(not check.passed for check in self.checks):
            return "checks failed"
        return None if self.is_checked else "not checked"

    @property
    def lacks_claim_alone(self) -> bool:
        """Whether it ended without a claim, or with a marker in the wrong place."""
        is_misplaced = self.result == "refused" and all(one.gate == "wording" for one in self.refused)
        return self.result == "no claim" or is_misplaced

    def judge(self) -> None:
        """Set `result`. An accepted iteration is done even if its turn failed."""
        if self.gain:
            self.result = "kept" if self.is_kept else "dropped"
        elif not self.is_whole or self.is_accepted:
            self.result = "done" if self.is_whole else "unfinished"
        elif self.failure or self.refused:
            self.result = "failed" if self.failure else "refused"
        elif self.awaits_children:
            self.result = self._problem or "children at work"
        else:
            self.result = self._problem or ("interrupted" if self.is_unjudged else "no claim")


class Span(Struct):
    """A period of the run. `kind` is turn, check, measurement, wait or pause; `what` is a name within its kind."""

    kind: str
    began: float
    ended: float
    what: str
    iteration: int


class AskedQuestion(Struct):
    """A question from the agent, and its answer."""

    id: str
    text: str
    answer: str = ""


class FactsNow(Struct, frozen=True):
    """Current facts about a run that are not in its journal. The defaults are those of a run that has just ended.

    `open_questions` are ids, None if unknown; `is_parked`: the run is for a task that can be retried.
    """

    has_branch: bool = True
    open_questions: tuple[str, ...] | None = None
    is_parked: bool = False

    def is_open(self, question: str, outcome: str) -> bool:
        """Return whether the question can still be answered."""
        return outcome != "done" and (self.open_questions is None or question in self.open_questions)


class RunHistory(RunSummary, omit_defaults=False, kw_only=True):
    """The summary of a run with everything that happened in it.

    `state` is its outcome, or its state while it has none; `check_names` are the checks it was started with, `baseline`
    their results before the first turn, `red_before` those that failed in an earlier run in this workspace. `proof` is
    the result of `--prove` or `ralph prove` for its last state. If it optimises a number, `first_numbers` are those of
    the start, and `end_numbers` compare the best version with it. `stuck` limits the iterations in a row without
    progress, 0: no limit; `best` is the number of its best iteration, 0 if nothing measures that.
    """

    state: str = "running"
    ended: float = 0.0
    resumed: int = 0
    base_tree: str | None = None
    claims: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    check_names: list[str] = field(default_factory=list)
    baseline: list[CheckResult] = field(default_factory=list)
    first_numbers: Start | None = None
    end_numbers: Comparison | None = None
    usage: Usage = Usage()
    iterations: list[PastIteration] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    questions: list[AskedQuestion] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    proof: Proof | None = None
    files: list[FileChange] | None = None
    red_before: list[str] = field(default_factory=list)
    stuck: int = 0
    best: int = 0
    now: FactsNow = FactsNow()

    @property
    def restored(self) -> list[str]:
        """The protected files that ralph restored, and the new ones that it removed."""
        return sorted({path for past in self.iterations for path in past.restored})

    @property
    def aside(self) -> str:
        """The folder with the agent's versions of the restored files."""
        return f"{self.task or self.workspace}/.ralph/runs/{self.run}/protected/aside"

    @property
    def whole(self) -> list[PastIteration]:
        """The finished iterations."""
        return [one for one in self.iterations if one.is_whole]

    @property
    def proven(self) -> list[str]:
        """The checks that failed at least once, in this run or an earlier one."""
        results = (self.baseline, *(one.checks for one in self.iterations))
        red = {check.name for checks in results for check in checks if not check.passed}
        known = red.union(self.red_before)
        return [name for name in self.checked if name in known]

    @property
    def unproven(self) -> list[str]:
        """The checks that never failed, and may be unable to fail."""
        proven = {*self.proven}
        return [name for name in self.checked if name not in proven]

    @property
    def checked(self) -> list[str]:
        """The names of the checks that have run."""
        return list(dict.fromkeys(check.name for one in self.iterations for check in one.checks))

    @property
    def failing(self) -> list[CheckResult]:
        """The checks that failed after the last iteration."""
        return [check for one in self.whole[-1:] for check in one.checks if not check.passed]

    @property
    def lacks_claim_alone(self) -> bool:
        """Whether only a valid claim is missing: every check passed after the last iteration."""
        return any(one.checks and one.is_green and one.lacks_claim_alone for one in self.whole[-1:] if self.claims)

    @property
    def is_refused_by_exam(self) -> bool:
        """Whether the run ended because its exams refused the agent's claims."""
        return self.state == "blocked" and any(not passed for one in self.whole[-1:] for _, passed in one.exams)

    @property
    def has_changes(self) -> bool:
        """Whether the run changed files, as far as git can tell."""
        is_known = ":" in (self.base_tree or "") and not self.untouched
        return is_known and any(one.tree not in (None, self.base_tree) for one in self.iterations)

    @property
    def denied_tools(self) -> list[str]:
        """The tools that the agent was not allowed to use."""
        return list(dict.fromkeys(tool for one in self.iterations for tool in one.denials))

    @property
    def refused_claims(self) -> int:
        """How many claims were refused. An iteration has at most one claim; several gates may refuse it."""
        return sum(bool(one.refused) for one in self.iterations)

    def trees(self) -> dict[int, tuple[str, str]]:
        """Return the git trees before and after each iteration that has one; under 0, those around the whole run.

        In a run that optimises a number, each attempt begins with the best version before it.
        """
        if ":" not in (self.base_tree or "") and not self.first_numbers:  # without git there is only a fingerprint
            return {}
        before, found = self.base_tree, {}
        for one in self.iterations:
            if before and one.tree:
                found[one.number] = (before, one.tree)
                if not self.first_numbers or one.result == "kept":
                    before = one.tree
        if found and self.base_tree and before:
            found[0] = (self.base_tree, before)
        return found


class Fold:
    """Builds a history from events, one by one. `running` are the names of the checks that are running."""

    def __init__(self, run: str) -> None:
        self.history = RunHistory(run=run)
        self._todo: tuple[e.TodoItem, ...] = ()
        self.running: set[str] = set()
        self._last = 0.0
        self._open: dict[str, Span] = {}  # by what they are about
        self._results: dict[str, int] = {}  # position of each check in the current iteration
        self._refusals: set[Refusal] = set()  # of the last claim
        self._asked: dict[str, AskedQuestion] = {}  # by the id of the question
        self._numbered: dict[int, PastIteration] = {}
        self._board: Board | None = None
        self._goal = ""  # of the first start; the summary cuts it
        self._baseline: tuple[MeasuredCheck, ...] = ()
        self._measured: list[MeasuredIteration] = []
        self._is_measurable = False  # by checks or tasks

    @property
    def _root(self) -> str:
        return self.history.worktree or self.history.workspace

    @property
    def last_results(self) -> dict[str, CheckResult | None]:
        """The latest result of each check; None if it has none yet."""
        results = (self.history.baseline, *(one.checks for one in self.history.iterations))
        known = {check.name: check for checks in results for check in checks}
        return {name: known.get(name) for name in (*self.history.check_names, *known, *sorted(self.running))}

    def add(self, event: e.Event, at: float) -> None:
        if type(event) in _COUNTED:
            self.history = after(self.history, event, at)
            self._add_to_iteration(event, at)
            if self.history.iterations:  # earlier ones do not change any more
                self.history.iterations[-1].judge()
        elif type(event) not in e.NAMES:
            if isinstance(event, WorkStarted):
                self.history.check_names = [*event.checks]
            self._board = board_after(self._board, event, at)
        self._last = max(at, self._last)

    @property
    def todo(self) -> tuple[e.TodoItem, ...]:
        """The agent's todo list, or the tasks of a backlog."""
        if self._board is None:
            return self._todo
        return todo_of(self._board)

    def as_of(self, now: float = 0.0, state: str = "") -> RunHistory:
        """Return the history so far.

        `state` is the state of a run without an outcome. `now` is the time if it is running: its last event may be old.
        """
        self._judge_progress()
        history, last = self.history, max(self._last, now)
        spans = [*history.spans, *(replace(span, ended=max(last, span.began)) for span in self._open.values())]
        if history.outcome:
            return replace(history, spans=spans)
        seconds = max(last - history.began, 0.0)
        return replace(history, spans=spans, state=state or "running", ended=last, seconds=seconds)

    def _run_started(self, event: e.RunStarted, at: float) -> None:
        history = self.history
        self._close(self._last)
        history.resumed += event.resumed
        history.proof = None
        if not history.base_tree:
            history.base_tree = event.base_tree
        self._goal = self._goal or clean(event.goal)
        history.goal = self._goal
        history.claims, history.gates, history.stuck = event.claims, event.gates, event.stuck
        history.check_names = [short(name, 200) for name in event.checks]
        if history.iterations:
            history.iterations[-1].is_accepted = history.iterations[-1].is_unjudged = False

    def _start(self, number: int, at: float) -> None:
        iterations = self.history.iterations
        fresh = PastIteration(number=number, began=at)
        if iterations and not iterations[-1].is_whole:  # it was cut off and starts again
            cut = iterations.pop()
            fresh.number, fresh.began, fresh.usage, fresh.uncounted = cut.number, cut.began, cut.usage, cut.uncounted
        iterations.append(fresh)
        self._numbered[fresh.number], self._results, self._refusals = fresh, {}, set()

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
                self._begin("turn", at, event.purpose)
            case e.AgentFinished():
                self._close(at)
                for one in iterations[-1:]:
                    one.tool_errors += event.tool_errors
            case e.IterationFinished():
                if not iterations or iterations[-1].is_whole:
                    self._start(event.iteration, at)
                self._close(at)
                _fill(iterations[-1], event.record, at, self._root)
                if self.history.first_numbers:
                    iterations[-1].idea = read_idea(event.record.turn.text)
                    iterations[-1].gain = attempt_result(event.record, self.history.first_numbers.metric)
                self._spend(iterations[-1:], event.record.usage)
                self._measure(event.record)
            case e.TodoUpdated():
                self._todo = event.items
            case e.TurnNotCounted():
                for one in iterations[-1:]:
                    one.uncounted += 1
                self._spend(iterations[-1:], event.turn.usage)
            case e.Baseline():
                self._baseline = measure_checks(event.checks)
                self.history.baseline = [_check_result(check, check.duration, self._root) for check in event.checks]
            case e.StartMeasured():
                self._close(at)
                self.history.first_numbers = event.start
            case e.EndMeasured():
                self._close(at)
                self.history.end_numbers = event.comparison
            case e.MeasurementStarted():
                self._begin("measurement", at, "the number")
            case e.CheckStarted():
                self._begin("check", at, short(event.name, 200))
                self.running.add(short(event.name, 200))
            case e.CheckFinished():
                self._close(at, name := short(event.name, 200))
                for one in iterations[-1:]:
                    if not one.is_whole:  # its record replaces this
                        place = self._results.setdefault(name, len(one.checks))
                        one.checks[place : place + 1] = [_check_result(event, event.duration_s, self._root)]
            case e.ClaimRejected():
                refusal = Refusal(short(event.claim, 100), short(event.gate, 40), short(event.reason, 500))
                for one in iterations[-1:]:
                    if refusal not in self._refusals:  # a resumed run looks at its last claim again
                        self._refusals.add(refusal)
                        one.refused.append(refusal)
            case _:
                self._add_to_run(event, at)

    def _add_to_run(self, event: e.Event, at: float) -> None:
        """Handle events between iterations, or about a finished one."""
        match event:
            case e.RunStarted():
                self._run_started(event, at)
            case e.Waiting():
                self._begin("wait", at, short(event.reason, 300))
                for one in self.history.iterations[-1:]:
                    one.awaits_children = bool(event.children)
            case e.Paused():
                self._begin("pause", at, short(event.reason, 300))
            case e.Continued():
                self._close(at)
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
                for one in self.history.iterations[-1:]:  # only what is done is proved
                    one.is_accepted = True
            case e.ProofFinished():
                self.history.proof = event.proof
                if event.tree and (past := self._numbered.get(event.iteration)):
                    past.tree = event.tree
            case e.RunFinished():
                self._run_finished(event, at)

    def _run_finished(self, event: e.RunFinished, at: float) -> None:
        history = self.history
        self._close(at)
        self._judge_progress()
        history.outcome = history.state = short(event.outcome, 40)
        history.reason, history.ended = clean(event.reason), at
        if history.iterations:
            history.iterations[-1].is_accepted = history.outcome == "done" and history.first_numbers is None
            history.iterations[-1].is_unjudged = history.outcome == "interrupted"

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
        if not self._is_measurable or self.history.preset == "tune":
            return
        found = steps_of(self._measured, self._baseline, self.history.stuck or USUAL_STUCK)
        for one, step in zip(self.history.whole, found, strict=False):
            one.step = step
        self.history.best = best_step(found)

    def _spend(self, iterations: list[PastIteration], usage: Usage) -> None:
        for one in iterations:
            one.usage = one.usage.plus(usage)
        self.history.usage = self.history.usage.plus(usage)

    def _begin(self, kind: str, at: float, what: str) -> None:
        self._close(at, what if kind == "check" and self.running else "")  # checks may run side by side
        number = self.history.iterations[-1].number if self.history.iterations else 0
        self._open[what] = Span(kind, at, at, what, number)

    def _close(self, at: float, what: str = "") -> None:
        """End the open spans, or only the check with this name."""
        for one in [what] if what else [*self._open]:
            if span := self._open.pop(one, None):
                self.history.spans.append(replace(span, ended=max(at, span.began)))
            self.running.discard(one)


def _check_result(check: Check | e.CheckFinished, seconds: float, root: str) -> CheckResult:
    return CheckResult(
        name=short(check.name, 200),
        passed=check.passed,
        seconds=seconds,
        exit_code=check.exit_code,
        timeout=check.timeout,
        log=short(os.path.join(root, check.log), 1000) if check.log else "",
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
        ReviewResult(
            short(review.name, 80),
            review.passed,
            short(review.agent, 80),
            changes=short(review.changes, 500),
            problem=short(review.problem, 500),
        )
        for review in record.reviews
    ]
    past.exams = [(short(exam.name, 200), exam.passed) for exam in record.exams]
    past.restored = [short(path, 300) for path in record.touched]
    past.denials = tuple(short(tool, 80) for tool in turn.denials)
    past.told = [clean(note.text) for note in record.told]
    past.measured, past.is_kept = record.measured, is_kept(record)
    past.tree, past.is_checked, past.is_whole = record.tree, record.checked, True
