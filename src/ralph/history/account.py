"""What is there to tell about a run? All that `ralph show` and every report are made of."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events as e
from ralph.core.events import NAMES, Event
from ralph.core.model import Check, Iteration, Usage
from ralph.core.text import clean, head, short
from ralph.errors import UserError
from ralph.records.folder import RunFolder
from ralph.records.journal import decoded, unreadable
from ralph.records.register import Listed
from ralph.show.talk import exit_words
from ralph.show.tally import outcome_sentence
from ralph.show.words import duration


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


ANSWER_SHOWN = 1500
MOST_NOTICES = 100


class Accountant:
    """A listener that writes an account."""

    def __init__(self, run: str) -> None:
        self.account = Account(run)
        self._last = 0.0
        self._open: Stretch | None = None
        self._ears: dict[type, Callable[[Any, float], None]] = {
            e.RunStarted: self._run_started,
            e.IterationStarted: self._iteration_started,
            e.AgentStarted: self._agent_started,
            e.AgentFinished: self._agent_finished,
            e.TurnNotCounted: self._turn_not_counted,
            e.CheckStarted: lambda event, at: self._begin("check", at, short(event.name, 200)),
            e.CheckFinished: lambda event, at: self._close(at),
            e.ClaimRejected: self._claim_rejected,
            e.Waiting: lambda event, at: self._begin("wait", at, short(event.reason, 300)),
            e.Paused: lambda event, at: self._begin("pause", at, short(event.reason, 300)),
            e.Continued: lambda event, at: self._close(at),
            e.QuestionAsked: self._question_asked,
            e.PersonTold: self._person_told,
            e.Spent: self._spent,
            e.ScmFinished: self._scm_finished,
            e.Notice: self._notice,
            e.IterationFinished: self._iteration_finished,
            e.RunFinished: self._run_finished,
        }

    @property
    def kinds(self) -> frozenset[str]:
        """The events that matter. All others may be left unread: they are most of a journal."""
        return frozenset(e.NAMES[kind] for kind in self._ears)

    def hear(self, event: e.Event, at: float) -> None:
        heard = self._ears.get(type(event))
        if heard is not None:
            heard(event, at)
        self._last = max(at, self._last)

    def so_far(self, state: str = "", now: float = 0.0) -> Account:
        """The account as it stands, which may be asked for while it goes on; `state` is what is known of a run that has
        no outcome yet, `now` the moment at which it is still at work: the last event may be an hour old."""
        account, last = replace(self.account), max(self._last, now)
        if self._open is not None:
            doing = replace(self._open, ended=max(last, self._open.began))
            account.stretches = [*account.stretches, doing]
        if not account.outcome:
            account.ended, account.state = last, state or "running"
            account.seconds = max(last - account.began, 0.0)
            at = f" in iteration {account.chapters[-1].number}" if account.chapters else ""
            account.sentence = f"ralph: {account.state}{at}"
        for chapter in account.chapters:
            account.usage = account.usage.plus(chapter.usage)
        account.cost_usd = account.usage.cost_usd
        return account

    def _run_started(self, event: e.RunStarted, at: float) -> None:
        account = self.account
        self._close(self._last)
        account.resumed += event.resumed
        if not account.began:
            account.began, account.goal, account.base_tree = at, clean(event.goal), event.base_tree
        account.agent, account.preset, account.workspace = event.agent, event.preset, event.workspace
        account.claims, account.gates, account.checks = event.claims, event.gates, list(event.checks)
        account.max_iterations, account.version = event.max_iterations, event.version
        account.worktree, account.branch = event.worktree, event.branch
        account.outcome = account.reason = ""
        if account.chapters:
            account.chapters[-1].is_unjudged = False

    def _iteration_started(self, event: e.IterationStarted, at: float) -> None:
        self._chapter(event.iteration, at)

    def _agent_started(self, event: e.AgentStarted, at: float) -> None:
        chapters = self.account.chapters
        if event.purpose == "work" and (not chapters or chapters[-1].is_whole):
            self._chapter(len(chapters) + 1, at)
        if event.purpose == "work":
            chapters[-1].agent = short(event.agent, 80)
        self._begin("turn", at, event.purpose)

    def _agent_finished(self, event: e.AgentFinished, at: float) -> None:
        self._close(at)
        if self.account.chapters:
            self.account.chapters[-1].tool_errors += event.tool_errors

    def _turn_not_counted(self, event: e.TurnNotCounted, at: float) -> None:
        if self.account.chapters:
            chapter = self.account.chapters[-1]
            chapter.uncounted += 1
            chapter.usage = chapter.usage.plus(event.turn.usage)

    def _claim_rejected(self, event: e.ClaimRejected, at: float) -> None:
        if self.account.chapters:
            refused = Refused(short(event.claim, 100), short(event.gate, 40), short(event.reason, 500))
            self.account.chapters[-1].refused.append(refused)

    def _question_asked(self, event: e.QuestionAsked, at: float) -> None:
        if event.id not in {question.id for question in self.account.questions}:
            self.account.questions.append(Asked(event.id, clean(event.text)))

    def _person_told(self, event: e.PersonTold, at: float) -> None:
        answers = {note.answers.id: note.text for note in event.notes if note.answers}
        for question in self.account.questions:
            question.answer = clean(answers.get(question.id, question.answer))

    def _spent(self, event: e.Spent, at: float) -> None:
        for chapter in self.account.chapters:
            if chapter.number == event.iteration:
                chapter.usage = chapter.usage.plus(event.usage)

    def _scm_finished(self, event: e.ScmFinished, at: float) -> None:
        for chapter in self.account.chapters:
            if chapter.number == event.iteration:
                chapter.scm.append((short(event.task, 40), event.ok, short(event.detail, 300)))

    def _notice(self, event: e.Notice, at: float) -> None:
        notices = self.account.notices
        if event.level == "warning" and event.text not in notices and len(notices) < MOST_NOTICES:
            notices.append(short(event.text, 500))

    def _iteration_finished(self, event: e.IterationFinished, at: float) -> None:
        chapters = self.account.chapters
        if not chapters or chapters[-1].is_whole:
            self._chapter(event.iteration, at)
        _fill(chapters[-1], event.record, at)

    def _run_finished(self, event: e.RunFinished, at: float) -> None:
        account = self.account
        self._close(at)
        account.outcome = account.state = short(event.outcome, 40)
        account.reason, account.verified, account.exit_code = clean(event.reason), event.verified, event.exit_code
        account.ended, account.seconds = at, event.duration_s
        account.worktree, account.branch = event.worktree or account.worktree, event.branch or account.branch
        account.untouched = event.untouched
        if account.chapters:
            account.chapters[-1].is_accepted = account.outcome == "done"
            account.chapters[-1].is_unjudged = account.outcome == "interrupted"
        account.sentence = outcome_sentence(event, [check.name for check in account.failing])

    def _chapter(self, number: int, at: float) -> None:
        chapters = self.account.chapters
        if chapters and not chapters[-1].is_whole:  # it was cut off, and is begun anew
            number, kept = chapters[-1].number, chapters.pop()
            chapters.append(Chapter(number, kept.began, usage=kept.usage, uncounted=kept.uncounted))
        else:
            chapters.append(Chapter(number, at))

    def _begin(self, kind: str, at: float, what: str) -> None:
        self._close(at)
        number = self.account.chapters[-1].number if self.account.chapters else 0
        self._open = Stretch(kind, at, at, what, number)

    def _close(self, at: float) -> None:
        if self._open is not None:
            self._open.ended = max(at, self._open.began)
            self.account.stretches.append(self._open)
            self._open = None


def _fill(chapter: Chapter, record: Iteration, at: float) -> None:
    turn = record.turn
    chapter.number, chapter.ended, chapter.seconds = record.number, at, record.duration
    chapter.agent = chapter.agent or short(turn.agent, 80)
    chapter.usage = chapter.usage.plus(record.usage)
    chapter.tool_calls, chapter.ended_by = turn.tool_calls, turn.ended_by
    chapter.answer = head(clean(turn.text[: 4 * ANSWER_SHOWN]).strip(), ANSWER_SHOWN, " …")
    chapter.failure = short(turn.failure.reason, 500) if turn.failure else ""
    chapter.checks = [
        Verified(short(check.name, 200), check.passed, check.duration, _how(check), short(check.log, 300))
        for check in record.checks
    ]
    chapter.reviews = [(short(review.name, 80), review.passed) for review in record.reviews]
    chapter.restored = [short(path, 300) for path in record.touched]
    chapter.told = [clean(note.text) for note in record.told]
    chapter.tree, chapter.is_whole = record.tree, True


def _how(check: Check) -> str:
    if check.passed:
        return ""
    return f"timed out after {duration(check.timeout)}" if check.timeout else exit_words(check.exit_code)


_BUFFER = 1 << 16  # lines are longer than the eight KB of the default


def account_now(run: Listed) -> Account:
    """The account of a run as it stands at this moment."""
    return account_of(run.folder, run.state, time.time() if run.is_alive else 0.0)


def account_of(folder: RunFolder, state: str = "", now: float = 0.0) -> Account:
    """The account of a run; `state` is what is known of one that has no outcome yet, `now` when it is still at work."""
    accountant = Accountant(folder.id)
    heard = False
    for event, at in _told(folder.journal, accountant.kinds):
        accountant.hear(event, at)
        heard = True
    if not heard:
        raise UserError(
            f"there is nothing to read in {folder.journal}", "it is empty, or was written by another version of ralph"
        )
    return with_changes(accountant.so_far(state, now))


def _told(journal: Path, kinds: frozenset[str]) -> Iterator[tuple[Event, float]]:
    """The events of these kinds. Lines of another kind are most of a large journal, and are not even decoded."""
    others = tuple(b'{"type":"%s"' % name.encode() for name in NAMES.values() if name not in kinds)
    try:
        with open(journal, "rb", buffering=_BUFFER) as lines:
            for line in lines:
                if line.startswith(others):
                    continue
                entry = decoded(line)
                event = entry.event() if entry and entry.type in kinds else None
                if entry and event is not None:
                    yield event, entry.at
    except OSError as error:
        raise unreadable(journal, error) from None


def with_changes(account: Account) -> Account:
    """The account with git's word on what each iteration changed, where git has one."""
    pairs = account.pairs()
    workspace = Path(account.workspace)
    if not pairs or ":" not in (account.base_tree or "") or not workspace.is_dir():
        return account
    from ralph.repository.changes import changes_between
    from ralph.repository.git import find_repository

    try:
        repository = find_repository(workspace)
        found = changes_between(repository, list(pairs.values())) if repository else {}
    except UserError:  # a repository that is broken by now: the rest of the account stands
        return account
    return with_files(
        account,
        {
            number: [Changed(one.status, one.path, one.added, one.deleted) for one in found[pair]]
            for number, pair in pairs.items()
            if pair in found
        },
    )
