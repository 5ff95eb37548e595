"""How do settings become a run? Its parts are made here, each from what it needs and nothing more."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ralph.core import events, rules
from ralph.core.events import Notice, Tell
from ralph.core.model import Check, Iteration, Run, Snapshot, Task, Wait
from ralph.core.text import listed
from ralph.errors import UserError, to_install
from ralph.files import read_file, read_given
from ralph.loop import Agent, Parts
from ralph.records.folder import write
from ralph.run.checks import CheckManner, Checks, Guard, NamedFiles
from ralph.run.context import Context, marked, words_of
from ralph.run.policy import Policy, composer
from ralph.settings import Settings
from ralph.steering.mailbox import Mail, Mailbox, untold

if TYPE_CHECKING:
    from ralph.repository.protect import Protected
    from ralph.repository.worktrees import Worktree
    from ralph.run.agents import CliAgent
    from ralph.run.choices import Choice
    from ralph.run.trees import Trees


LONG_WAIT = 1.5  # seconds: shorter pauses are not worth telling


def cli_agent(chosen: Sequence["Choice"], settings: Settings, context: Context, looks_only: bool = False) -> "CliAgent":
    from ralph.run.agents import CliAgent, Manner

    # What an agent costs and does is known from its structured stream alone.
    measured = settings.max_cost or settings.max_tokens or settings.min_tool_calls or settings.session == "continue"
    manner = Manner(
        yolo=settings.yolo and not looks_only,
        looks_only=looks_only,
        stream=settings.stream_agent_output or bool(measured),
        continues=settings.session == "continue",
        max_turns=settings.agent.max_turns,
        timeout=settings.turn_timeout,
        idle_timeout=settings.idle_timeout,
        max_cost=settings.max_cost,
        max_tokens=settings.max_tokens,
    )
    return CliAgent(chosen, manner, context)


def workspace_of(
    settings: Settings, plan: Policy, context: Context, history: "Trees", looks_only: bool = False
) -> "LocalWorkspace":
    """What the rules are told of, and the checks that verify the work."""
    guards = [Guard(one.command, one.hint, one.fail_action) for one in settings.guardrails]
    manner = CheckManner(
        timeout=settings.check_timeout,
        truncate=settings.quoted,
        parallel=settings.parallel_checks,
        fail_fast=settings.fail_fast,
    )
    if manner.parallel > 1 and context.box and context.boxes_checks:
        context.tell(Notice("checks in a box run one at a time: --parallel-checks is left aside"))
    return LocalWorkspace(
        context,
        Checks(context, guards, manner),
        done_files=tuple(context.home / claim.text for claim in plan.claims if claim.kind == "file"),
        wait_file=context.home / rules.WAIT_FILE if settings.wait_signals else None,
        tasks=TasksFile(context.root / settings.tasks, context.folder.path / "tasks.json") if settings.tasks else None,
        tree=history.tree,
        protect=settings.protect if not looks_only else () if history.can_undo else ("**",),
        undo=history.undo if looks_only and history.can_undo else None,
    )


def parts_of(
    settings: Settings,
    plan: Policy,
    context: Context,
    *,
    agent: Agent,
    workspace: "LocalWorkspace",
    history: "Trees",
    goal: Callable[[], str],
    tells_claim: bool = False,
    settled: frozenset[tuple[int, str]] = frozenset(),
) -> Parts:
    """Everything that the loop needs."""
    from ralph.run.followups import followups

    mailbox = Mailbox(context.folder.path)
    made = Parts(
        agent=agent,
        workspace=workspace,
        rules=plan.rules,
        compose=composer(settings, plan, goal, history.diff, context.redact.text, tells_claim),
        tell=context.tell,
        wait=_waiter(context, settings.poll_interval, mailbox, settings.on_question == "wait"),
        followups=(
            *followups(settings.scm, agent, context, history=history, workspace=workspace, settled=settled),
            *_accountants(settings, plan, context),
            lambda run, iteration: mailbox.forget(iteration.told),
        ),
        cap=plan.cap,
    )
    if settings.reviews is not None:
        made.review = _reviewing(settings)
    if settings.every_turn_counts:
        made.uncounted = ("fatal",)
    return made


def _accountants(settings: Settings, plan: Policy, context: Context) -> tuple[Callable[[Run, Iteration], None], ...]:
    if not (settings.max_cost or settings.max_tokens):
        return (forecast(plan.cap, context.tell),)

    return (watched(settings.max_cost, settings.max_tokens, context.tell),)


def _waiter(
    context: Context, poll: float | None, mailbox: Mailbox, awaits_answers: bool
) -> Callable[[Wait, Run], None]:
    """Sleeps, at most until the next look around is due; tells once what is waited for after a turn."""
    told: set[object] = set()

    def sleep(seconds: float) -> bool:
        """True when there is no more to wait for: somebody wants an end, or the time of the whole run is over. What is
        done but for children that have to end is waited for beyond that."""
        tick, left = context.tick, context.time_left()
        is_interrupted = context.interrupt.wait(min(seconds, left or seconds), (lambda _: tick()) if tick else None)
        return is_interrupted or seconds >= left

    def is_held(mail: Mail) -> bool:
        return mail.is_paused or (awaits_answers and bool(mail.questions))

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            from ralph.steering.questions import wait_for_person

            context.tell(events.Paused(asked.reason, asks=asked.until == "answer"))
            seconds = wait_for_person(mailbox, is_held, sleep)
            if not context.interrupt.level and context.time_left() > 0:
                context.tell(events.Continued(seconds))
            return
        occasion = (asked.reason, len(run.iterations), len(run.retries))
        if asked.seconds >= LONG_WAIT and occasion not in told:
            told.clear()
            told.add(occasion)
            context.tell(events.Waiting(asked.seconds, asked.reason, run.seen.at + asked.seconds))
        sleep(min(asked.seconds, poll or asked.seconds))

    return wait


def _reviewing(settings: Settings) -> Callable[[Run, Iteration, Parts], Iteration]:
    from ralph.run.reviews import ReviewPlan, reviewing

    chosen = settings.reviews
    assert chosen is not None
    prompts = tuple((prompt.name, prompt.prompt) for prompt in chosen.prompts)
    return reviewing(ReviewPlan(chosen.review_after, prompts, chosen.guardrail_retry_limit, settings.quoted))


def move_to_worktree(context: Context, resumed: Run | None, occupy: Callable[[Path], None]) -> "Worktree":
    """Moves the work into a worktree, and occupies it: any number of them may work beside one run in the tree itself.
    What cannot be isolated is refused."""
    from ralph.repository.git import repository
    from ralph.repository.worktrees import alone, create, forget_unbegun, worktree_of

    home = repository(context.root)
    made, notice = worktree_of(home, context.folder.id), ""
    is_there = resumed is not None and Path(made.workspace).is_dir()
    if resumed and resumed.iterations and not is_there:
        raise UserError(f"the run's worktree is gone: {made.path}", "start a new run")
    with alone(home):
        if not is_there:
            forget_unbegun(home, context.folder.path.parent)
            notice = create(home, made)
        occupy(Path(made.workspace))
    if notice:
        context.tell(events.Notice(notice))
    context.root = Path(made.workspace)
    return made


class LocalWorkspace:
    """The workspace of a run, or the worktree that stands in for it."""

    def __init__(
        self,
        context: Context,
        checks: Checks,
        *,
        done_files: tuple[Path, ...] = (),
        wait_file: Path | None = None,
        tasks: "TasksFile | None" = None,
        tree: Callable[[int], str | None] | None = None,
        protect: Sequence[str] = (),
        undo: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        self._context, self._checks, self._undo = context, checks, undo
        self._done_files, self._wait_file = done_files, wait_file
        self._tasks, self._tree, self._protect = tasks, tree, protect
        self._protected: Protected | None = None
        self._named: NamedFiles | None = None
        self._mailbox = Mailbox(context.folder.path)

    def begin(self) -> None:
        """Keeps what is protected, and reads what the run is about: what cannot be is said before anything is spent."""
        if self._tasks:
            self._tasks.begin()
        if self._protect:
            from ralph.repository.protect import Protected

            self._protected = Protected(self._context.root, self._protect, self._context.folder.path / "protected")
            self._protected.keep()
            if (unmatched := self._protected.unmatched) and self._protect != ("**",):
                self._context.tell(Notice(f"--protect matches no file yet: {', '.join(unmatched)}"))
            if self._protect != ("**",):
                self._checks.witness = self._protected.watch
                self._say_uncovered(self._protected.uncovered)
        named = NamedFiles(self._context.root, self._checks.commands)
        self._named = named.without(self._protected.covers) if self._protected else named

    def _say_uncovered(self, folders: tuple[str, ...]) -> None:
        if folders:
            hint = f"name it to protect it, too: --protect '{folders[0]}/**'"
            self._context.tell(Notice(f"--protect does not cover {listed(folders, 5)}; {hint}"))

    def look(self, run: Run) -> Snapshot:
        done, trouble = False, ""
        for path in self._done_files:
            found, problem = marked(path)
            done, trouble = done or found, trouble or problem
        waits, problem = marked(self._wait_file) if self._wait_file else (False, "")
        signal = self._context.interrupt.reason
        mail = self._mailbox.read()
        return Snapshot(
            at=time.time(),
            elapsed=self._context.elapsed(),
            interrupted=f"received {signal}" if signal else "",
            trouble=trouble or problem,
            wait_requested=f"the agent asked to wait: {words_of(self._wait_file)}" if waits and self._wait_file else "",
            done_file=done,
            tasks=self._tasks.read() if self._tasks else None,
            told=untold(mail, run) if mail.notes else (),
            questions=mail.questions,
            paused=mail.is_paused,
        )

    def guard(self) -> tuple[str, ...]:
        touched = self._protected.restore() if self._protected else self._undo() if self._undo else ()
        if touched and self._undo:
            self._context.tell(
                Notice(f"the agent was to change nothing; what it changed was put back: {listed(touched)}")
            )
        elif touched:
            self._context.tell(Notice(f"the agent changed protected files, which were put back: {listed(touched)}"))
        return touched

    def check(self, number: int) -> tuple[Check, ...] | None:
        if self._named and (changed := self._named.news()):
            hint = f"--protect '{changed[0]}' would put it back"
            self._context.tell(Notice(f"changed in this run, and part of a check: {listed(changed, 5)}; {hint}"))
        return None if self._context.interrupt.level else self._checks.run(number)

    def tree(self, number: int) -> str | None:
        return self._tree(number) if self._tree else None


def watched(max_cost: float | None, max_tokens: int | None, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Looks after each iteration whether what the budget is about was told."""
    known: set[str] = set()

    def look(run: Run, iteration: Iteration) -> None:
        turn, usage = iteration.turn, iteration.turn.usage
        if turn.agent in known or turn.failure:
            return
        known.add(turn.agent)
        name = turn.agent or "the agent"
        if max_cost and usage.cost_usd is None:
            priced = f"name its model with --model and {to_install('prices')}, or use --max-tokens"
            hint = priced if usage.tokens else "use --max-time"
            tell(Notice(f"{name} does not tell what it costs: --max-cost cannot end this run; {hint}"))
        if max_tokens and not usage.tokens:
            tell(Notice(f"{name} tells of no tokens: --max-tokens cannot end this run; use --max-time"))

    return look


def forecast(cap: int, tell: Tell) -> Callable[[Run, Iteration], None]:
    """Says after a third of the iterations what all of them would cost: nothing else guards this run's money."""

    def look(run: Run, iteration: Iteration) -> None:
        if cap < 3 or iteration.number != -(-cap // 3) or not (cost := run.usage.cost_usd):
            return
        from ralph.show.words import money

        mean = cost / iteration.number
        text = f"{money(cost)} so far, {money(mean)} an iteration: about {money(mean * cap)} by iteration {cap}"
        tell(Notice(f"{text}; --max-cost ends it at a sum that you choose", "info"))

    return look


class TasksFile:
    """The tasks that a run has to settle. What was in the file when the run began stays to be done, and is `kept` for
    when the run goes on in another process."""

    def __init__(self, path: Path, kept: Path) -> None:
        self._path, self._kept = path, kept
        self._first: tuple[Task, ...] = ()

    def begin(self) -> None:
        try:
            self._first = msgspec.json.decode(read_file(self._kept), type=tuple[Task, ...])
        except (OSError, ValueError):  # the run begins, or an agent has cleaned up
            self._first = read_tasks(self._path)
            write(self._kept, msgspec.json.encode(self._first))

    def read(self) -> tuple[Task, ...]:
        try:
            now = read_tasks(self._path)
        except UserError as error:  # the agent's doing, so the agent has to mend it
            return (Task(f"put it right: {error.message}", False),)
        return (*now, *taken_off(self._first, now))


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Every task in the file, in its order."""
    from ralph.core.tasks_file import tasks_in_markdown

    try:
        text = read_given(path).decode("utf-8-sig", "replace")
    except OSError as error:
        raise UserError(f"cannot read the tasks file {path}: {error.strerror}", "name one with --tasks FILE") from None
    tasks = tuple(_in_json(text, path) if path.suffix.lower() == ".json" else tasks_in_markdown(text))
    if not tasks:
        raise UserError(
            f"the tasks file {path} names no task",
            'write one a line as "- [ ] text", or a list of {"title": "...", "passes": false} in a .json file',
        )
    return tasks


def taken_off(first: tuple[Task, ...], now: tuple[Task, ...]) -> tuple[Task, ...]:
    """The open tasks of before that the list no longer names: to strike a task out is not to do it."""
    gone = [task for task in first if not task.done and not any(task.text in one.text for one in now)]
    return tuple(Task(f"{task.text} (it was taken off the list)", False) for task in gone)


def _in_json(text: str, path: Path) -> Iterator[Task]:
    import json

    from ralph.core.tasks_file import tasks_in_json

    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"the tasks file {path} is not JSON: {error}", "mend it, or name another with --tasks"
        ) from None
    yield from tasks_in_json(content)
