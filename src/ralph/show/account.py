"""What is there to tell about a run? All that `ralph show` and every report are made of."""

from collections.abc import Iterable

from msgspec import Struct

from ralph.core.model import Usage


class Verified(Struct):
    """One check of one iteration. `how` says in what way it failed."""

    name: str
    passed: bool
    seconds: float
    how: str = ""
    log: str = ""


class Refused(Struct):
    """A claim that was not believed."""

    claim: str
    gate: str
    reason: str


class Changed(Struct):
    """A file that differs: A added, D deleted, M modified, T another type. No counts for a binary one."""

    status: str
    path: str
    added: int | None = None
    deleted: int | None = None


class Chapter(Struct):
    """One iteration. `uncounted` are turns that a limit or a passing fault ended; `files` is None where that is not
    known; `is_whole`: it was finished; `is_accepted`: the run was done with it; `is_unjudged`: the run was interrupted
    before it looked for a claim."""

    number: int
    began: float
    ended: float = 0.0
    agent: str = ""
    seconds: float = 0.0
    usage: Usage = Usage()
    tool_calls: int | None = None
    tool_errors: int = 0
    uncounted: int = 0
    answer: str = ""
    failure: str = ""
    ended_by: str = ""
    checks: list[Verified] = []
    refused: list[Refused] = []
    reviews: list[tuple[str, bool]] = []
    restored: list[str] = []
    told: list[str] = []
    scm: list[tuple[str, bool, str]] = []
    tree: str | None = None
    files: list[Changed] | None = None
    is_whole: bool = False
    is_accepted: bool = False
    is_unjudged: bool = False

    @property
    def happened(self) -> str:
        """What came of it, in a few words."""
        if not self.is_whole:
            return "not finished"
        if self.failure:
            return f"failed: {self.failure}"
        if self.refused:
            gates = ", ".join(dict.fromkeys(refused.gate for refused in self.refused))
            return f"claim refused: {gates}"
        if self.is_accepted:
            return "done"
        if not all(check.passed for check in self.checks):
            return "checks failed"
        return "interrupted" if self.is_unjudged else "no claim"


class Stretch(Struct):
    """What the run did for a while: turn, check, wait or pause."""

    kind: str
    began: float
    ended: float
    what: str
    iteration: int


class Asked(Struct):
    """A question of the agent's, and the answer it got."""

    id: str
    text: str
    answer: str = ""


class Account(Struct):
    """A run from its first event to its last. `state` is its outcome, or what it does; times are epoch seconds."""

    run: str
    state: str = "running"
    sentence: str = ""
    goal: str = ""
    agent: str = ""
    preset: str = ""
    workspace: str = ""
    worktree: str = ""
    branch: str = ""
    untouched: bool = False
    claims: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    checks: list[str] = []
    max_iterations: int | None = None
    began: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    resumed: int = 0
    outcome: str = ""
    reason: str = ""
    verified: bool = True
    exit_code: int | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    version: str = ""
    base_tree: str | None = None
    chapters: list[Chapter] = []
    stretches: list[Stretch] = []
    questions: list[Asked] = []
    notices: list[str] = []
    files: list[Changed] | None = None

    @property
    def failing(self) -> list[Verified]:
        """The checks that were red after the last iteration."""
        whole = [chapter for chapter in self.chapters if chapter.is_whole]
        return [check for check in whole[-1].checks if not check.passed] if whole else []

    def pairs(self) -> dict[int, tuple[str, str]]:
        """The trees before and after each iteration that left one; under 0, those around the whole run."""
        before, found = self.base_tree, {}
        for chapter in self.chapters:
            if before and chapter.tree:
                found[chapter.number] = (before, chapter.tree)
                before = chapter.tree
        if found and self.base_tree and before:
            found[0] = (self.base_tree, before)
        return found


def with_files(account: Account, changed: dict[int, Iterable[Changed]]) -> Account:
    """The account with what is known of changed files: by iteration, and under 0 for the whole run."""
    for chapter in account.chapters:
        if chapter.number in changed:
            chapter.files = list(changed[chapter.number])
    account.files = list(changed[0]) if 0 in changed else None
    return account
