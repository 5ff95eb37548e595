"""How do settings become a run? Its parts are made here, each from what it needs and nothing more."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ralph.core import events, rules
from ralph.core.model import Iteration, Run, Task, Wait
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.loop import Agent, Parts
from ralph.policy import Policy, composer
from ralph.settings import Settings

if TYPE_CHECKING:
    from ralph.world.repository.history import History
    from ralph.world.repository.worktree import Worktree
    from ralph.world.site import Site
    from ralph.world.steering.mailbox import Mailbox
    from ralph.world.turns import Choice, CliAgent

LONG_WAIT = 1.5  # seconds: shorter pauses are not worth telling


def cli_agent(chosen: Sequence["Choice"], settings: Settings, site: "Site") -> "CliAgent":
    from ralph.world.turns import CliAgent, Manner

    # What an agent costs and does is known from its structured stream alone.
    measured = settings.max_cost or settings.max_tokens or settings.min_tool_calls or settings.session == "continue"
    manner = Manner(
        settings.agent.model,
        settings.yolo,
        settings.stream_agent_output or bool(measured),
        settings.session == "continue",
        settings.agent.max_turns,
        settings.turn_timeout,
        settings.idle_timeout,
    )
    return CliAgent(chosen, manner, site)


def parts(
    settings: Settings,
    plan: Policy,
    site: "Site",
    agent: Agent,
    history: "History",
    goal: Callable[[], str],
    settled: frozenset[tuple[int, str]] = frozenset(),
) -> Parts:
    """Everything that the loop needs."""
    from ralph.world.checks import Checks, Guard
    from ralph.world.followups import followups
    from ralph.world.steering.mailbox import Mailbox
    from ralph.world.workspace import LocalWorkspace

    guards = [Guard(one.command, one.hint, one.fail_action) for one in settings.guardrails]
    guard = _guard(settings, site)
    workspace = LocalWorkspace(
        site,
        Checks(site, guards, settings.check_timeout, settings.output_truncate_chars),
        done_files=tuple(site.home / claim.text for claim in plan.claims if claim.kind == "file"),
        wait_file=site.home / rules.WAIT_FILE if settings.wait_signals else None,
        tasks=_tasks(settings, site),
        tree=history.tree,
        guard=guard,
    )
    mailbox = Mailbox(site.folder.path)
    made = Parts(
        agent=agent,
        workspace=workspace,
        rules=plan.rules,
        compose=composer(settings, plan, goal, history.diff, site.redact.text),
        tell=site.tell,
        wait=_waiter(site, settings.poll_interval, mailbox, settings.on_question == "wait"),
        followups=(
            *followups(settings.scm, agent, site, history, workspace, settled),
            *_accountants(settings, site),
            lambda run, iteration: mailbox.forget(iteration.told),
        ),
    )
    if settings.reviews is not None:
        made.review = _reviewing(settings)
    if settings.every_turn_counts:
        made.uncounted = ("fatal",)
    return made


def _accountants(settings: Settings, site: "Site") -> tuple[Callable[[Run, Iteration], None], ...]:
    if not (settings.max_cost or settings.max_tokens):
        return ()
    from ralph.world.budget import watched

    return (watched(settings.max_cost, settings.max_tokens, site.tell),)


def _waiter(site: "Site", poll: float | None, mailbox: "Mailbox", awaits_answers: bool) -> Callable[[Wait, Run], None]:
    """Sleeps, at most until the next look around is due; tells once what is waited for after a turn."""
    told: set[object] = set()

    def wait(asked: Wait, run: Run) -> None:
        if asked.parks:
            from ralph.world.steering.parking import park

            park(site, mailbox, asked.reason, lambda mail: mail.is_paused or (awaits_answers and bool(mail.questions)))
            return
        occasion = (asked.reason, len(run.iterations), len(run.retries))
        if asked.seconds >= LONG_WAIT and occasion not in told:
            told.clear()
            told.add(occasion)
            site.tell(events.Waiting(asked.seconds, asked.reason, run.seen.at + asked.seconds))
        tick = site.tick
        site.interrupt.wait(min(asked.seconds, poll or asked.seconds), (lambda _: tick()) if tick else None)

    return wait


def _tasks(settings: Settings, site: "Site") -> Callable[[], tuple[Task, ...]] | None:
    if not settings.tasks:
        return None
    from ralph.world.tasks import read_tasks, taken_off

    path = site.root / settings.tasks
    first = read_tasks(path)  # a file that cannot be read is said before anything is spent

    def tasks() -> tuple[Task, ...]:
        try:
            now = read_tasks(path)
        except UserError as error:  # the agent's doing, so the agent has to mend it
            return (Task(f"put it right: {error.message}", False),)
        return (*now, *taken_off(first, now))

    return tasks


def _guard(settings: Settings, site: "Site") -> Callable[[], tuple[str, ...]] | None:
    if not settings.protect:
        return None
    from ralph.world.repository.protect import Protected

    protected = Protected(site.root, settings.protect, site.folder.path / "protected")
    if protected.unmatched:
        site.tell(events.Notice(f"--protect matches no file yet: {', '.join(protected.unmatched)}"))

    def guard() -> tuple[str, ...]:
        touched = protected.restore()
        if touched:
            site.tell(events.Notice(f"the agent changed protected files, which were put back: {listed(touched)}"))
        return touched

    return guard


def _reviewing(settings: Settings) -> Callable[[Run, Iteration, Parts], Iteration]:
    from ralph.reviews import Plan, reviewing

    chosen = settings.reviews
    assert chosen is not None
    prompts = tuple((prompt.name, prompt.prompt) for prompt in chosen.prompts)
    return reviewing(Plan(chosen.review_after, prompts, chosen.guardrail_retry_limit, settings.output_truncate_chars))


def place(settings: Settings, site: "Site", resumed: Run | None = None) -> "Worktree | None":
    """Moves the work into a worktree where that is asked for. What cannot be isolated is refused."""
    if not settings.worktree:
        return None
    from pathlib import Path

    from ralph.world.records.folder import prepare
    from ralph.world.repository.git import repository
    from ralph.world.repository.worktree import create, forget_unbegun, worktree_of

    home = repository(site.root)
    made, notice = worktree_of(home, site.folder.id), ""
    is_there = resumed is not None and Path(made.workspace).is_dir()
    if resumed and resumed.iterations and not is_there:
        raise UserError(f"the run's worktree is gone: {made.path}", "start a new run")
    if not is_there:
        forget_unbegun(home, site.folder.path.parent)
        made, notice = create(home, site.folder.id)
    if notice:
        site.tell(events.Notice(notice))
    site.root = Path(made.workspace)
    prepare(site.root)
    return made
