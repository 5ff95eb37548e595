"""When a run is done, when it ends, and what its agent reads. `make_policy` has the one list of rules, in the order of
their precedence."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct, ValidationError, convert, to_builtins

from ralph.core import gains, limits, prompts, rules, stuck_rules
from ralph.core.claims import ACCEPTED, Claim, Reading
from ralph.core.judgement import ran_no_tests, results_so_far
from ralph.core.model import Note, Opinion, Outcome, Rule, Run, Stop
from ralph.core.referees import passed_exams, review_gate, unweakened_tests
from ralph.core.secrets import redact_text
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.loop import judge
from ralph.run.request import RunRequest
from ralph.settings import Settings


class Policy(Struct, frozen=True):
    """When a run is done, and when it ends. `gates` must accept a claim; `cap` is the maximum of iterations.
    `is_claimed` returns whether there is a claim that all of them accept, so that only the referees are left."""

    claims: tuple[Claim, ...]
    gates: dict[str, Rule]
    rules: tuple[Rule, ...]
    cap: int
    is_claimed: Callable[[Run], bool]


def make_policy(
    settings: Settings,
    agents: tuple[str, ...] = (),
    one_shot: bool = False,
    own: Sequence[Rule] = (),
    green_is_enough: bool = False,
    *,
    is_resumable: bool = True,
) -> Policy:
    """Return the rules in order of precedence, which is the same for every preset. `own` are the user's rules. Reasons
    name `ralph resume` only if the run `is_resumable`."""
    claims = (Claim("turn"),) if one_shot else _claims(settings, green_is_enough)
    gates = make_gates(settings)
    lazy = settings.min_tool_calls and settings.on_promise_no_work == "warn"
    doubts = (rules.running_children, *((rules.no_work(settings.min_tool_calls),) if lazy else ()))
    reading = Reading(settings.strict_signal, settings.claim_anywhere, verified=bool(settings.checks or settings.exams))
    if settings.claims > 1 and not one_shot:
        others = tuple(gates.values())
        gates[f"{settings.claims} claims in a row"] = rules.claimed_in_a_row(settings.claims, claims, reading, others)
    # With --claims N, repeated claims must not count as a stall, nor as a lack of progress.
    stuck = settings.stuck and max(settings.stuck, settings.claims)
    stall = settings.stall and max(settings.stall, settings.claims - 1)
    verdicts = make_verdict_gates(settings, claims, reading, tuple(gates.values()), is_resumable)
    people = (rules.unread_notes, *((rules.wait_for_answer,) if settings.on_question == "wait" else ()))
    before_claims, measures = _before_claims(settings, claims, reading), settings.traits.measures
    ordered = (
        *before_claims,
        rules.unless_waiting(
            rules.completed(
                (ACCEPTED, *claims),
                (*people, *gates.values(), *verdicts.values(), rules.wait_for_children(settings.wait_timeout)),
                reading,
                doubts,
            ),
            *own,
            stuck_rules.repeated_failures(1 if one_shot else settings.max_failures, () if one_shot else agents),
            stuck_rules.not_allowed(works_elsewhere=settings.traits.works_elsewhere),
            *(_tuning_rules(settings) if measures else ()),
            stuck_rules.stalled(stall, commits=settings.worktree or settings.scm is not None),
            *(() if measures else (stuck_rules.stuck(stuck, agents),)),
            limits.wait_for_limit(settings.on_limit, agents, settings.max_time),
            limits.retry_transient,
            rules.at_most(
                iterations=_cap(settings),
                cost=settings.max_cost,
                tokens=settings.max_tokens,
                seconds=settings.max_time,
                claims=claims,
                reading=reading,
            ),
            rules.pause_between_turns(settings.restart_delay),
        ),
    )
    deciding = (*before_claims, rules.completed((ACCEPTED, *claims), (*people, *gates.values()), reading))

    def is_claimed(run: Run) -> bool:
        verdict = judge(run, deciding)
        return isinstance(verdict, Stop) and verdict.outcome is Outcome.DONE

    return Policy(claims, gates | verdicts, ordered, _cap(settings), is_claimed)


def _before_claims(settings: Settings, claims: tuple[Claim, ...], reading: Reading) -> tuple[Rule, ...]:
    """Return the rules that come before the one that decides whether the run is done."""
    traits = settings.traits
    tells_protected = settings.protect.globs and not traits.measures  # its prompts already name them
    return (
        rules.interrupted,
        rules.fatal_trouble,
        *((rules.never_started,) if settings.baseline is None else ()),
        rules.wait_requested,
        *((rules.wait_exit_code,) if settings.wait_signals else ()),
        # With `ralph tune`, a failed attempt was restored by then.
        *(() if traits.measures else (rules.failing_checks(settings.quoted),)),
        rules.open_tasks,
        *((rules.tell_protected(settings.protect.rule),) if tells_protected else ()),
        rules.protected_files,
        stuck_rules.last_failure,
        rules.refused_commit,
        stuck_rules.taken_over,
        *(() if traits.reminds_of_claim else (rules.claim_reminder(claims, reading),)),
        rules.person_notes,
        rules.wait_while_paused,
        *((rules.wait_for_answer, rules.may_ask) if settings.on_question == "wait" else ()),
        rules.blocked(settings.blocked_response, reading),
    )


def _tuning_rules(settings: Settings) -> tuple[Rule, ...]:
    return (gains.target_reached, gains.no_gain(settings.stuck), gains.exams_refused(settings.exam_tries))


def load_rules(paths: Sequence[str], given: Sequence[Rule], workspace: Path) -> tuple[Rule, ...]:
    """Return the user's rules: those at `paths`, such as `package.module:name`, and those given as functions.

    Each is called once with an empty run. If a rule raises later, the run ends: a broken guard must not let claims
    pass.
    """
    named = [(path, _import_rule(path, workspace)) for path in paths]
    given_names = [getattr(rule, "__name__", type(rule).__name__) for rule in given]
    checked = [_with_checked_opinions(name, rule) for name, rule in (*named, *zip(given_names, given, strict=True))]
    for rule in checked:
        list(rule(Run(id="")))
    return tuple(checked)


def _import_rule(path: str, workspace: Path) -> Rule:
    """Import `package.module:name`, but not from the workspace, where the agent could have changed it."""
    module, _, name = path.partition(":")
    hint = "name it as package.module:name, and install its package where ralph is installed"
    if not module or not name:
        raise UserError(f"rules: {path!r} names no rule", hint)
    try:
        _refuse_editable(module.partition(".")[0], os.path.realpath(workspace), hint)
        rule = getattr(import_module(module), name)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - a user's module may fail in any way
        raise UserError(f"rules: cannot import {path}: {type(error).__name__}: {error}", hint) from None
    if not callable(rule):
        raise UserError(f"rules: {path} is not a function", "a rule takes a run and yields opinions")
    return rule  # type: ignore[no-any-return]


def _refuse_editable(package: str, workspace: str, hint: str) -> None:
    """Raise a UserError if this package would be imported from the workspace, as after `pip install --editable`."""
    spec = None if package in sys.modules else find_spec(package)
    for place in (spec.origin or "", *(spec.submodule_search_locations or ())) if spec else ():
        if _is_editable(os.path.realpath(place), workspace):
            raise UserError(f"rules: {package} is in the workspace, where the agent could change it", hint)


def _is_editable(folder: str, workspace: str) -> bool:
    """Return whether the agent can change files in this folder. The folder where ralph itself is installed is
    trusted."""
    own = os.path.realpath(sys.prefix)
    inside = folder == workspace or folder.startswith(f"{workspace}/")
    return inside and not (folder.startswith(f"{own}/") and own != workspace)


def _with_checked_opinions(name: str, rule: Rule) -> Rule:
    def checked(run: Run) -> Iterator[Opinion]:
        try:
            opinions = list(rule(run) or ())
        except Exception as error:  # noqa: BLE001 - a user's rule may fail in any way
            said = f"rule {name} failed: {type(error).__name__}: {error}"
            raise UserError(said, "fix it, or leave it out") from None
        for opinion in opinions:
            if problem := _problem_with(opinion):
                raise UserError(f"rule {name} gave {problem}", "yield Stop(Outcome.…, TEXT), Note or Wait")
            yield opinion

    return checked


def _problem_with(opinion: object) -> str:
    """Return why this is not an opinion; "" if it is one. A constructor accepts values of any type."""
    kind = type(opinion)
    if not isinstance(opinion, Opinion):
        return f"{kind.__name__} instead of an opinion"
    try:
        convert(to_builtins(opinion), kind)
    except (ValidationError, TypeError) as error:  # TypeError: what JSON has no type for
        return f"{kind.__name__} with a wrong type: {one_line(str(error), 200)}"
    if isinstance(opinion, Stop) and not isinstance(opinion.outcome, Outcome):  # `convert` takes its value for it
        return f"Stop with {opinion.outcome!r} instead of an Outcome"
    return ""


def make_gates(settings: Settings) -> dict[str, Rule]:
    """Return the rules that a claim must pass, by name."""
    gates: dict[str, Rule] = {}
    if settings.checks:
        gates["checks"] = rules.green_checks(settings.quoted)
    if settings.tasks:
        gates["tasks"] = rules.open_tasks
    if settings.min_tool_calls and settings.on_promise_no_work == "reject":
        gates["work"] = rules.no_work(settings.min_tool_calls)
    if settings.protect.globs:
        gates["protect"] = rules.protected_files
    return gates


def make_verdict_gates(
    settings: Settings, claims: Sequence[Claim], reading: Reading, others: Sequence[Rule], is_resumable: bool
) -> dict[str, Rule]:
    """Return the rules that judge a claim after the checks, by name: referees and the commit. `others` are the gates
    before them."""
    gates: dict[str, Rule] = {}
    if settings.tests_rule:
        gates["the tests as they were"] = unweakened_tests(settings.exam_tries, is_resumable)
    if settings.reviews:
        reviewers = dict.fromkeys(review.agent or settings.reviews.agent for review in settings.reviews.asked)
        by = " and ".join(agent for agent in reviewers if agent)
        gates[f"review by {by}" if by else "review"] = review_gate
    if settings.exams:
        before = (*others, *gates.values())
        gates["exam"] = passed_exams(len(settings.exams), settings.exam_tries, claims, reading, others=before)
    if settings.scm and "commit" in settings.scm.tasks:
        gates["commit"] = rules.refused_commit
    return gates


def _claims(settings: Settings, green_is_enough: bool) -> tuple[Claim, ...]:
    if settings.traits.measures:
        return ()
    parts = [text.partition(":") for text in settings.until]
    claims = tuple(Claim(kind, text) for kind, _, text in parts)
    return (*claims, Claim("green")) if green_is_enough and settings.checks else claims


def _cap(settings: Settings) -> int:
    """Return the maximum of iterations."""
    return settings.maximum_iterations + settings.traits.counts_continuations


def refuse_endless(settings: Settings, one_shot: bool = False) -> None:
    """Raise if a run with these settings could never be done."""
    if settings.claims > max(1, _cap(settings)) and not one_shot:
        raise UserError(
            f"{settings.claims} claims in a row need as many iterations, and there are {_cap(settings)} at most",
            "lower --claims, or raise --max-iterations",
        )
    if settings.checks:
        return
    if settings.traits.needs_checks:
        raise UserError("no checks given", f'the {settings.preset} preset needs at least one: --check "CMD"')
    if "checks" in settings.until:
        raise UserError("--until checks needs a check", 'add one: --check "CMD"')


def explain_missing_claim(policy: Policy, request: RunRequest) -> str:
    """Return a warning if no prompt says how to claim: this one is sent verbatim, and no green check leads to a
    reminder; else ""."""
    claims, goal, settings = policy.claims, request.goal(), request.settings
    is_said = not claims or any(not claim.text or claim.marker in goal for claim in claims)
    if not settings.traits.is_verbatim or settings.checks or is_said:
        return ""
    return (
        f"the prompt does not say how the agent ends this run: it has to {claims[0].deed}. "
        "Say so in the prompt, or give the goal without -p and -f"
    )


def make_composer(
    settings: Settings,
    policy: Policy,
    goal: Callable[[], str],
    *,
    diff: Callable[[], str],
    redact: Callable[[str], str] = redact_text,
    tells_claim: bool = False,
) -> Callable[[Run, tuple[Note, ...]], str]:
    """Return the function that composes the prompt of each turn."""
    traits = settings.traits
    checks = tuple(redact(check.command) for check in settings.checks)

    def composed(run: Run, notes: tuple[Note, ...]) -> str:
        return traits.compose(
            prompts.Brief(
                run=run,
                goal=goal(),
                cap=policy.cap,
                notes=notes,
                claim=next((claim for claim in policy.claims if claim.text), None),
                checks=checks,
                diff=diff() if traits.quotes_diff and run.last else "",
                nonce=os.urandom(4).hex(),
                counted=settings.include_iteration_count_in_prompt,
                ultrawork=settings.ultrawork,
                tells_claim=tells_claim,
                measured_by=settings.tune.command,
                protected=settings.protect.globs,
            )
        )

    return composed


def is_verified(run: Run, settings: Settings) -> bool:
    """Whether something verified the work of a run that is done. Test runners that never ran a test didn't."""
    has_other_checks = bool(settings.tasks or settings.exams or settings.traits.measures)
    return settings.verifies and (has_other_checks or not ran_no_tests(results_so_far(run)))
