"""The history of a run: its iterations, checks and questions. `fold.py` builds it from events."""

from typing import Literal

from msgspec import Struct, field

from ralph.core.measuring import Comparison, Start
from ralph.core.model import FileChange, Fingerprint, HandOver, Refusal, Usage
from ralph.core.progress import ProgressStep
from ralph.core.proof import Proof
from ralph.core.state import RunSummary

IterationResult = Literal[
    "unfinished", "done", "kept", "dropped", "failed", "refused", "checks failed", "not checked", "interrupted",
    "children at work", "no claim",
]  # fmt: skip
"""`refused`: its claim was rejected; `interrupted`: ralph did not look for a claim; `children at work`: its claim
counts once the processes that it started have ended."""


class CheckResult(Struct, kw_only=True):
    """One check of one iteration. `timeout`: it took longer than these seconds; `log` is an absolute path. `void`
    says why the result does not count."""

    name: str
    passed: bool
    seconds: float
    exit_code: int | None = 0
    timeout: float | None = None
    log: str = ""
    void: str = ""


class PastIteration(Struct, kw_only=True):
    """One iteration."""

    number: int
    began: float
    ended: float = 0.0
    result: IterationResult = "unfinished"
    agent: str = ""
    seconds: float = 0.0
    usage: Usage = Usage()
    tool_calls: int | None = None
    answer: str = ""
    failure: str = ""
    ended_by: str = ""
    checks: list[CheckResult] = []
    is_checked: bool = True
    refused: list[Refusal] = []
    """The objections to its claim."""
    reviews: list[tuple[str, bool, str]] = []
    """Each reviewer with whether they approved, and why not."""
    exams: list[tuple[str, bool]] = []
    """The name of each exam with whether it passed."""
    restored: list[str] = []
    told: list[str] = []
    denials: tuple[str, ...] = ()
    scm: list[tuple[str, bool, str]] = []
    tree: Fingerprint | None = None
    measured: Comparison | None = None
    idea: str = ""
    """What the agent tried, in a run that optimises a number."""
    gain: str = ""
    """The result of that attempt."""
    is_kept: bool = False
    files: list[FileChange] | None = None
    """None if unknown."""
    is_whole: bool = False
    """It finished."""
    is_accepted: bool = False
    """The run ended with it as done."""
    is_unjudged: bool = False
    """The run was interrupted before it looked for a claim."""
    awaits_children: bool = False
    """Its claim waits for processes that it started."""
    step: ProgressStep | None = None
    """The progress; None if nothing measures it."""
    hand_over: HandOver | None = None
    """Another agent took over after it."""

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
        is_misplaced = self.result == "refused" and all(refusal.gate == "wording" for refusal in self.refused)
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


class AskedQuestion(Struct):
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


class RunHistory(RunSummary, omit_defaults=False, kw_only=True):
    """The summary of a run with everything that happened in it."""

    state: str = "running"
    """Its outcome, or its state while it has none."""
    ended: float = 0.0
    resumed: int = 0
    base_tree: Fingerprint | None = None
    claims: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    check_names: list[str] = field(default_factory=list)
    """The checks it was started with."""
    baseline: list[CheckResult] = field(default_factory=list)
    """The results of the checks before the first turn."""
    first_numbers: Start | None = None
    """The measurements at the start, in a run that optimises a number."""
    end_numbers: Comparison | None = None
    """The best version compared with the start."""
    usage: Usage = Usage()
    iterations: list[PastIteration] = field(default_factory=list)
    questions: list[AskedQuestion] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    proof: Proof | None = None
    """The result of `--prove` or `ralph prove` for its last state."""
    files: list[FileChange] | None = None
    red_before: list[str] = field(default_factory=list)
    """The checks that failed in an earlier run in this workspace."""
    stuck: int = 0
    """The limit of iterations in a row without progress; 0: no limit."""
    best: int = 0
    """The number of its best iteration; 0 if nothing measures that."""
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
        return [iteration for iteration in self.iterations if iteration.is_whole]

    @property
    def proven(self) -> list[str]:
        """The checks that failed at least once, in this run or an earlier one."""
        results = (self.baseline, *(iteration.checks for iteration in self.iterations))
        red = {check.name for checks in results for check in checks if not check.passed}
        red_ever = red.union(self.red_before)
        return [name for name in self.checked if name in red_ever]

    @property
    def unproven(self) -> list[str]:
        """The checks that never failed, and may be unable to fail."""
        proven = {*self.proven}
        return [name for name in self.checked if name not in proven]

    @property
    def checked(self) -> list[str]:
        return list(dict.fromkeys(check.name for iteration in self.iterations for check in iteration.checks))

    @property
    def failing(self) -> list[CheckResult]:
        """The checks that failed after the last iteration."""
        return [check for iteration in self.whole[-1:] for check in iteration.checks if not check.passed]

    @property
    def lacks_claim_alone(self) -> bool:
        """Whether only a valid claim is missing: every check passed after the last iteration.

        With a tasks file it is not: nothing recorded whether all tasks were done.
        """
        last = self.whole[-1:] if self.claims and "tasks" not in self.gates else []
        return any(iteration.checks and iteration.is_green and iteration.lacks_claim_alone for iteration in last)

    @property
    def is_refused_by_exam(self) -> bool:
        """Whether the run ended because its exams refused the agent's claims."""
        return self.state == "blocked" and any(
            not passed for iteration in self.whole[-1:] for _, passed in iteration.exams
        )

    @property
    def is_in_git(self) -> bool:
        """Whether git can tell what changed."""
        return self.base_tree is not None and bool(self.base_tree.files)

    @property
    def has_changes(self) -> bool:
        """Whether the run changed files, as far as git can tell."""
        changed = any(iteration.tree not in (None, self.base_tree) for iteration in self.iterations)
        return self.is_in_git and not self.untouched and changed

    @property
    def refused_claims(self) -> int:
        """How many claims were refused. An iteration has at most one claim; several gates may refuse it."""
        return sum(bool(iteration.refused) for iteration in self.iterations)

    def trees(self) -> dict[int, tuple[str, str]]:
        """Return the git trees before and after each iteration that has one; under 0, those around the whole run.

        In a run that optimises a number, each attempt begins with the best version before it.
        """
        if not self.base_tree or not self.is_in_git:
            return {}
        base = before = self.base_tree.files
        pairs = {}
        for iteration in self.iterations:
            if iteration.tree:
                pairs[iteration.number] = (before, iteration.tree.files)
                if not self.first_numbers or iteration.result == "kept":
                    before = iteration.tree.files
        if pairs:
            pairs[0] = (base, before)
        return pairs
