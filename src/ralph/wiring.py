"""How do settings become a run? The only module that knows all the others."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import events, limits, prompts, rules
from ralph.core.claims import Claim, Reading
from ralph.core.model import Iteration, Note, Rule, Run, Task, Wait
from ralph.core.progress import progress
from ralph.core.secrets import redact_text
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.loop import Agent, Parts
from ralph.settings import Settings

if TYPE_CHECKING:
    from ralph.world.repository.history import History
    from ralph.world.repository.worktree import Worktree
    from ralph.world.site import Site
    from ralph.world.steering.mailbox import Mailbox
    from ralph.world.turns import Choice, CliAgent

LONG_WAIT = 1.5  # seconds: shorter pauses are not worth telling


class Policy(Struct, frozen=True):
    """When a run is done, and when it ends: the decisions that settings stand for."""

    claims: tuple[Claim, ...]
    gates: dict[str, Rule]
    rules: tuple[Rule, ...]
    cap: int


def policy(settings: Settings, agents: tuple[str, ...] = (), one_shot: bool = False) -> Policy:
    """The same rules in the same order for every preset: a preset only fills in their numbers."""
    claims = tuple(_claim(text) for text in settings.until)
    if one_shot:
        claims = (Claim("turn"),)
    gates = gates_of(settings)
    lazy = settings.min_tool_calls and settings.on_promise_no_work == "warn"
    doubts = (rules.children_left, *((rules.no_work(settings.min_tool_calls),) if lazy else ()))
    reading = Reading(settings.strict_signal, settings.claim_anywhere)
    # N promises are N continuations after the first turn; everywhere else N are iterations.
    cap = settings.maximum_iterations + (settings.preset == "promise")
    asked = (
        rules.interrupted,
        rules.hopeless,
        rules.wait_requested,
        rules.asked_to_wait(rules.WAIT_EXIT_CODE if settings.wait_signals else None),
        rules.failing_checks(settings.output_truncate_chars),
        rules.open_tasks,
        rules.touched,
        rules.last_failure,
        rules.told,
        rules.paused,
        *((rules.unanswered, rules.may_ask) if settings.on_question == "wait" else ()),
        rules.unless_awaiting(
            rules.completed(
                claims,
                (*gates.values(), rules.broken_reviews, rules.children_ended(settings.wait_timeout)),
                reading,
                doubts,
            ),
            rules.failing(1 if one_shot else settings.max_failures),
            rules.stalled(settings.stall),
            limits.limited(settings.on_limit, agents, settings.max_time),
            limits.faltering,
            rules.at_most(
                iterations=cap,
                cost=settings.max_cost,
                tokens=settings.max_tokens,
                seconds=settings.max_time,
                claims=claims,
                reading=reading,
            ),
            rules.spaced(settings.restart_delay),
            rules.blocked(settings.poll_interval or 1.0),
        ),
    )
    return Policy(claims, gates, asked, cap)


def gates_of(settings: Settings) -> dict[str, Rule]:
    """What must hold for a claim to be believed, by name."""
    gates: dict[str, Rule] = {}
    if settings.guardrails:
        gates["checks"] = rules.green_checks(settings.output_truncate_chars)
    if settings.tasks:
        gates["tasks"] = rules.open_tasks
    if settings.min_tool_calls and settings.on_promise_no_work == "reject":
        gates["work"] = rules.no_work(settings.min_tool_calls)
    if settings.protect:
        gates["protect"] = rules.touched
    return gates


def _claim(text: str) -> Claim:
    kind, _, words = text.partition(":")
    return Claim(kind, words)


def refuse_what_cannot_end(settings: Settings) -> None:
    """Says before anything is made or spent that a run could never be done."""
    if settings.guardrails:
        return
    if settings.preset == "checks":
        raise UserError("no checks given", 'the checks preset needs at least one: --check "CMD"')
    if "checks" in settings.until:
        raise UserError("--until checks needs a check", 'add one: --check "CMD"')


def composer(
    settings: Settings,
    plan: Policy,
    goal: Callable[[], str],
    diff: Callable[[], str],
    redact: Callable[[str], str] = redact_text,
) -> Callable[[Run, tuple[Note, ...]], str]:
    """Makes the prompt of each turn."""
    compose = prompts.COMPOSERS[settings.preset]
    needs_history = settings.preset == "checks"
    checks = tuple(redact(guardrail.command) for guardrail in settings.guardrails)

    def composed(run: Run, notes: tuple[Note, ...]) -> str:
        return compose(
            prompts.Brief(
                goal(),
                run.number,
                plan.cap,
                notes,
                run.last,
                next((claim for claim in plan.claims if claim.text), None),
                checks,
                diff() if needs_history and run.last else "",
                progress(run) if needs_history else "",
                os.urandom(4).hex(),
                settings.include_iteration_count_in_prompt,
                settings.ultrawork,
            )
        )

    return composed


def choices(settings: Settings, extra: Sequence[str], env: Mapping[str, str], cwd: str) -> tuple["Choice", ...]:
    """The agent of the settings, or the first that is installed, and those to fall back on. All of them can be run."""
    command = settings.agent.command or _first_installed(env)
    flags = tuple(word for flag in settings.agent.flags for word in _split(flag))
    first = _choice(command, settings, (*flags, *extra))
    chosen = (first, *(_choice(other, settings, ()) for other in settings.fallback_agents))
    if settings.session == "continue":
        for choice in chosen:
            _must_resume(choice)
    return tuple(_found(choice, env, cwd) for choice in chosen)


def _must_resume(choice: "Choice") -> None:
    """A known agent whose sessions cannot be continued is refused. A command of the user's own has none to lose."""
    from ralph.agents import known

    if choice.module.NAME in known() and not choice.module.RESUMES:
        raise UserError(
            f"{choice.module.NAME} cannot continue a session without a person", "use --session fresh, or another agent"
        )


def _found(choice: "Choice", env: Mapping[str, str], cwd: str) -> "Choice":
    """The choice, with what it is remembered to understand, once it is certain that its program is there."""
    from ralph.agents.protocol import Request
    from ralph.world.processes.program import find_program

    module = choice.module
    program = find_program(module.invocation(Request("", "", choice.command, choice.flags)).argv[0], env, cwd)
    if not module.HELP:
        return choice
    from ralph.agents.asked import remembered

    return replace(choice, understands=remembered(program, module.HELP))


def _choice(command: str, settings: Settings, flags: tuple[str, ...]) -> "Choice":
    from ralph import agents
    from ralph.world.turns import Choice

    if command in settings.agents:
        from ralph.agents.custom import described

        return Choice(command, described(command, settings.agents[command]), (), flags, frozenset({"CLAUDECODE"}))
    module = agents.find(command)
    words, own = agents.words(command)
    return Choice(
        module.NAME if module.NAME != "command" else command, module, words, (*own, *flags), agents.foreign_keys(module)
    )


def _first_installed(env: Mapping[str, str]) -> str:
    from shutil import which

    from ralph.agents import known

    for name in known():
        if which(name, path=env.get("PATH")):
            return name
    raise UserError(
        "no coding agent is installed",
        "install one (`npm install -g @anthropic-ai/claude-code`, say), name one with --agent, or try `ralph demo`",
    )


def _split(flag: str) -> list[str]:
    import shlex

    try:
        return shlex.split(flag)
    except ValueError as error:
        raise UserError(f"agent.flags: {flag!r} cannot be read: {error}", "check its quotes") from None


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
            *followups(settings.scm, agent, site, history, guard, settled),
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
    from ralph.world.repository.worktree import create, worktree_of

    made, notice = worktree_of(repository(site.root), site.folder.id), ""
    is_there = resumed is not None and Path(made.workspace).is_dir()
    if resumed and resumed.iterations and not is_there:
        raise UserError(f"the run's worktree is gone: {made.path}", "start a new run")
    if not is_there:
        made, notice = create(repository(site.root), site.folder.id)
    if notice:
        site.tell(events.Notice(notice))
    site.root = Path(made.workspace)
    prepare(site.root)
    return made
