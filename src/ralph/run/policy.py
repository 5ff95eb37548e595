"""How do settings become a run? When it is done and when it ends, and what its agent reads: the order of the rules is
here. And its parts, each made from what it needs and nothing more."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

from msgspec import Struct

from ralph.core import events, limits, prompts, rules
from ralph.core.claims import Claim, Reading
from ralph.core.events import Notice, Tell
from ralph.core.model import Iteration, Note, Opinion, Refusal, Rule, Run, Stop, Wait
from ralph.core.prompts import progress
from ralph.core.secrets import redact_text
from ralph.errors import UserError, to_install
from ralph.git.client import find_git
from ralph.git.worktrees import Worktree
from ralph.loop import UNCOUNTED, Agent, Parts
from ralph.run.checks import Checks, reviewing
from ralph.run.context import Context
from ralph.run.followups import followups
from ralph.run.git_trees import GitTrees
from ralph.run.order import refuse_link_out
from ralph.run.workspace import LocalWorkspace, TasksFile, Trees
from ralph.settings import Settings
from ralph.show.words import money
from ralph.store.mailbox import Mail, Mailbox, wait_for_person


class Policy(Struct, frozen=True):
    """When a run is done, and when it ends: the decisions that settings stand for."""

    claims: tuple[Claim, ...]
    gates: dict[str, Rule]
    rules: tuple[Rule, ...]
    cap: int


def policy(
    settings: Settings,
    agents: tuple[str, ...] = (),
    one_shot: bool = False,
    own: Sequence[Rule] = (),
    green_is_enough: bool = False,
) -> Policy:
    """Return the rules in their order, which is the same for every preset. `own` are the user's rules; they come after
    done, as every limit does. `green_is_enough`: green checks count as a claim once the agent has nothing to add."""
    claims = (Claim("turn"),) if one_shot else _claims(settings, green_is_enough)
    gates = gates_of(settings)
    lazy = settings.min_tool_calls and settings.on_promise_no_work == "warn"
    doubts = (rules.children_left, *((rules.no_work(settings.min_tool_calls),) if lazy else ()))
    reading = Reading(settings.strict_signal, settings.claim_anywhere, verified=bool(settings.checks))
    if settings.claims > 1 and not one_shot:
        others = tuple(gates.values())
        gates[f"{settings.claims} claims in a row"] = rules.claimed_in_a_row(settings.claims, claims, reading, others)
    # With --claims N, repeated claims must not count as a stall.
    stall = settings.stall and max(settings.stall, settings.claims - 1)
    asked = (
        rules.interrupted,
        rules.hopeless,
        *((rules.never_started,) if settings.baseline is None else ()),
        rules.wait_requested,
        rules.asked_to_wait(rules.WAIT_EXIT_CODE if settings.wait_signals else None),
        rules.failing_checks(settings.quoted),
        rules.open_tasks,
        rules.touched,
        rules.last_failure,
        *((rules.unclaimed(claims, reading),) if settings.preset != "promise" else ()),  # whose prompts say it
        rules.told,
        rules.paused,
        *((rules.unanswered, rules.may_ask) if settings.on_question == "wait" else ()),
        rules.blocked(settings.blocked_response, reading),
        rules.unless_awaiting(
            rules.completed(
                claims,
                (*gates.values(), rules.broken_reviews, rules.children_ended(settings.wait_timeout)),
                reading,
                doubts,
            ),
            *own,
            rules.failing(1 if one_shot else settings.max_failures),
            rules.not_allowed(works_elsewhere=settings.preset == "supervise"),
            rules.stalled(stall, commits=settings.worktree or settings.scm is not None),
            limits.limited(settings.on_limit, agents, settings.max_time),
            limits.faltering,
            rules.at_most(
                iterations=_cap(settings),
                cost=settings.max_cost,
                tokens=settings.max_tokens,
                seconds=settings.max_time,
                claims=claims,
                reading=reading,
            ),
            rules.spaced(settings.restart_delay),
            rules.preceded(settings.poll_interval or 1.0),
        ),
    )
    return Policy(claims, gates, asked, _cap(settings))


def own_rules(paths: Sequence[str], given: Sequence[Rule], workspace: Path) -> tuple[Rule, ...]:
    """The rules of the user's own, by dotted path or as they are, each tried once: one that does not work is said
    before anything is spent, and one that fails later ends the run. A broken guard never fails open."""
    named = [(path, _imported(path, workspace)) for path in paths]
    checked = [_checked(name, rule) for name, rule in (*named, *((_name(rule), rule) for rule in given))]
    for rule in checked:
        list(rule(Run(id="")))
    return tuple(checked)


def _imported(path: str, workspace: Path) -> Rule:
    """The rule at `package.module:name`, from what is installed beside ralph: the agent can edit the workspace."""

    module, _, name = path.partition(":")
    hint = "name it as package.module:name, and install its package beside ralph"
    if not module or not name:
        raise UserError(f"rules: {path!r} names no rule", hint)
    here = os.path.realpath(workspace)
    beside = [entry for entry in sys.path if entry and not _is_edited(os.path.realpath(entry), here)]
    top = module.partition(".")[0]
    found = sys.modules.get(top) or PathFinder.find_spec(top, beside)
    if found is None:
        raise UserError(f"rules: cannot import {module}: no such package beside ralph", hint)
    before, sys.path[:] = sys.path[:], beside
    try:
        rule = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - somebody else's module may fail in any way
        raise UserError(f"rules: cannot import {path}: {type(error).__name__}: {error}", hint) from None
    finally:
        sys.path[:] = before
    if not callable(rule):
        raise UserError(f"rules: {path} is no function", "a rule takes a run and yields opinions")
    return rule  # type: ignore[no-any-return]


def _is_edited(folder: str, workspace: str) -> bool:
    """Whether an agent works in this folder. One in which ralph itself is installed is trusted as ralph is."""
    own = os.path.realpath(sys.prefix)
    inside = folder == workspace or folder.startswith(f"{workspace}/")
    return inside and not (folder.startswith(f"{own}/") and own != workspace)


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


def _checked(name: str, rule: Rule) -> Rule:
    def checked(run: Run) -> Iterator[Opinion]:
        try:
            opinions = list(rule(run) or ())
        except Exception as error:  # noqa: BLE001 - so may somebody else's rule
            said = f"rule {name} failed: {type(error).__name__}: {error}"
            raise UserError(said, "mend it, or leave it out") from None
        for opinion in opinions:
            if not isinstance(opinion, Stop | Note | Wait | Refusal):
                said = f"rule {name} gave {type(opinion).__name__} instead of an opinion"
                raise UserError(said, "yield Stop, Note or Wait")
            yield opinion

    return checked


def gates_of(settings: Settings) -> dict[str, Rule]:
    """What must hold for a claim to be believed, by name."""
    gates: dict[str, Rule] = {}
    if settings.checks:
        gates["checks"] = rules.green_checks(settings.quoted)
    if settings.tasks:
        gates["tasks"] = rules.open_tasks
    if settings.min_tool_calls and settings.on_promise_no_work == "reject":
        gates["work"] = rules.no_work(settings.min_tool_calls)
    if settings.protect:
        gates["protect"] = rules.touched
    return gates


def _claims(settings: Settings, green_is_enough: bool) -> tuple[Claim, ...]:
    claims = tuple(_claim(text) for text in settings.until)
    return (*claims, Claim("green")) if green_is_enough and settings.checks else claims


def _claim(text: str) -> Claim:
    kind, _, words = text.partition(":")
    return Claim(kind, words)


def _cap(settings: Settings) -> int:
    """N promises are N continuations after the first turn; everywhere else N are iterations."""
    return settings.maximum_iterations + (settings.preset == "promise")


def refuse_what_cannot_end(settings: Settings, one_shot: bool = False) -> None:
    """Says before anything is made or spent that a run could never be done."""
    if settings.claims > max(1, _cap(settings)) and not one_shot:
        raise UserError(
            f"{settings.claims} claims in a row need as many iterations, and there are {_cap(settings)} at most",
            "lower --claims, or raise --max-iterations",
        )
    for claim in map(_claim, settings.until):
        if claim.kind == "file" and _is_too_long(claim.text):
            raise UserError(f"no file can have so long a name: {claim.text[:40]}…", "name a shorter one")
    if settings.checks:
        return
    if settings.preset == "checks":
        raise UserError("no checks given", 'the checks preset needs at least one: --check "CMD"')
    if "checks" in settings.until:
        raise UserError("--until checks needs a check", 'add one: --check "CMD"')


def _is_too_long(name: str) -> bool:
    """Whether no file system of ours could hold it."""
    return len(os.fsencode(name)) > 4095 or any(len(os.fsencode(part)) > 255 for part in name.split("/"))


def unsaid_claim(settings: Settings, plan: Policy, goal: str) -> str:
    """What a person should hear whose own prompt, sent to the letter, does not say how to claim."""
    owed = [claim for claim in plan.claims if claim.text]
    is_said = not owed or any(one.marker in goal for one in owed)
    if settings.preset != "guardrails" or len(owed) < len(plan.claims) or is_said:
        return ""
    way_out = ", or add --until checks: then green checks suffice" if settings.checks else ""
    return (
        f"the prompt does not say how the agent ends this run: it has to {owed[0].deed}. "
        f"Say so in the prompt, or give the goal without -p and -f{way_out}"
    )


def composer(
    settings: Settings,
    plan: Policy,
    goal: Callable[[], str],
    *,
    diff: Callable[[], str],
    redact: Callable[[str], str] = redact_text,
    tells_claim: bool = False,
) -> Callable[[Run, tuple[Note, ...]], str]:
    """Makes the prompt of each turn."""
    compose = prompts.COMPOSERS[settings.preset]
    needs_history = settings.preset == "checks"
    checks = tuple(redact(check.command) for check in settings.checks)

    def composed(run: Run, notes: tuple[Note, ...]) -> str:
        return compose(
            prompts.Brief(
                goal=goal(),
                number=run.number,
                cap=plan.cap,
                notes=notes,
                last=run.last,
                claim=next((claim for claim in plan.claims if claim.text), None),
                checks=checks,
                diff=diff() if needs_history and run.last else "",
                progress=progress(run) if needs_history else "",
                nonce=os.urandom(4).hex(),
                counted=settings.include_iteration_count_in_prompt,
                ultrawork=settings.ultrawork,
                tells_claim=tells_claim,
            )
        )

    return composed


LONG_WAIT = 1.5  # seconds: shorter pauses are not worth telling


def trees_of(
    settings: Settings, context: Context, worktree: "Worktree | None" = None, green_is_enough: bool = False
) -> Trees:
    """Return what keeps the states of the workspace: git or, without a usable repository, fingerprints of the files if
    a rule needs them."""
    # Git is not even asked where there is no sign of it: that would cost more than the rest of a small run.
    place = context.root.resolve()
    if any(os.path.lexists(parent / ".git") for parent in (place, *place.parents)):
        try:
            if found := find_git(context.root, context.deadline):
                return GitTrees(context, found, worktree)
        except UserError as error:
            context.tell(Notice(f"no checkpoints, no diff: {error.advice}"))
    return Trees(context, worktree, walks=settings.min_tool_calls > 0 or green_is_enough)


def workspace_of(
    settings: Settings, plan: Policy, context: Context, trees: Trees, goal_file: str = ""
) -> LocalWorkspace:
    """What the rules are told of, and the checks that verify the work."""
    undoes = context.looks_only and trees.can_undo
    if settings.parallel_checks > 1 and context.box and context.boxes_checks:
        context.tell(Notice("checks in a box run one at a time: --parallel-checks is left aside"))
    return LocalWorkspace(
        context,
        Checks(context, settings.checks, settings),
        done_files=tuple(context.home / claim.text for claim in plan.claims if claim.kind == "file"),
        wait_file=context.home / rules.WAIT_FILE if settings.wait_signals else None,
        tasks=_tasks_file(settings, context) if settings.tasks else None,
        tree=None if undoes else trees.tree,  # once all is put back, it is as it was
        protect=settings.protect if not context.looks_only else () if undoes else ("**",),
        undo=trees.undo if undoes else None,
        goal_file=goal_file,
    )


def _tasks_file(settings: Settings, context: Context) -> TasksFile:
    def refuse_link(path: str) -> None:
        refuse_link_out(path, settings, str(context.root))

    return TasksFile(context.root / settings.tasks, context.order_folder, refuse_link)


def parts_of(
    settings: Settings,
    plan: Policy,
    context: Context,
    *,
    agent: Agent,
    workspace: LocalWorkspace,
    trees: Trees,
    goal: Callable[[], str],
    tells_claim: bool = False,
    settled: frozenset[tuple[int, str]] = frozenset(),
) -> Parts:
    """Everything that the loop needs."""

    mailbox, has_budget = Mailbox(context.folder.path), settings.max_cost or settings.max_tokens
    return Parts(
        agent=agent,
        workspace=workspace,
        rules=plan.rules,
        compose=composer(settings, plan, goal, diff=trees.diff, redact=context.redact.text, tells_claim=tells_claim),
        tell=context.tell,
        wait=_waiter(context, settings.poll_interval, mailbox, settings.on_question == "wait"),
        followups=(
            *followups(settings.scm, agent, context, trees=trees, workspace=workspace, settled=settled),
            watched(settings.max_cost, settings.max_tokens, context.tell)
            if has_budget
            else forecast(plan.cap, context.tell),
            lambda run, iteration: mailbox.forget(iteration.told),
        ),
        reviews=(reviewing(settings.reviews, settings.quoted),) if settings.reviews else (),
        cap=plan.cap,
        uncounted=("fatal",) if settings.every_turn_counts else UNCOUNTED,
        baseline=bool(settings.baseline and settings.checks),
    )


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

    def is_paused(mail: Mail) -> bool:
        return mail.is_paused or (awaits_answers and bool(mail.questions))

    def pause(seconds: float) -> bool:
        tick = context.tick
        return context.interrupt.wait(seconds, (lambda _: tick()) if tick else None)

    def wait(asked: Wait, run: Run) -> None:
        if asked.until:
            is_question = asked.until == "answer"
            context.tell(events.Paused(asked.reason, asks=is_question))
            seconds = wait_for_person(mailbox, is_paused, sleep if is_question else pause)
            if not is_question:
                context.began += seconds  # a pause doesn't count against --max-time
            if not context.interrupt.level and context.time_left() > 0:
                context.tell(events.Continued(seconds))
            return
        occasion = (asked.reason, len(run.iterations), len(run.retries))
        if asked.seconds >= LONG_WAIT and occasion not in told:
            told.clear()
            told.add(occasion)
            until = run.seen.at + asked.seconds
            context.tell(events.Waiting(asked.seconds, asked.reason, until, asked.children, limited=asked.limited))
        sleep(min(asked.seconds, poll or asked.seconds))

    return wait


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

        mean = cost / iteration.number
        text = f"{money(cost)} so far, {money(mean)} an iteration: about {money(mean * cap)} by iteration {cap}"
        tell(Notice(f"{text}; --max-cost ends it at a sum that you choose", "info"))

    return look
