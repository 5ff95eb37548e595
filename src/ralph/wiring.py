"""How do settings become a run? The only module that knows all the others."""

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from ralph.core import limits, prompts, rules
from ralph.core.claims import Claim, Reading
from ralph.core.model import Note, Rule, Run
from ralph.core.progress import progress
from ralph.errors import UserError
from ralph.settings import Settings


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
    _refuse_what_cannot_end(settings, claims)
    gates = gates_of(settings)
    # N promises are N continuations after the first turn; everywhere else N are iterations.
    cap = settings.maximum_iterations + (settings.preset == "promise")
    asked = (
        rules.interrupted,
        rules.hopeless,
        rules.wait_requested,
        rules.failing_checks(settings.output_truncate_chars),
        rules.open_tasks,
        rules.last_failure,
        rules.told,
        rules.completed(claims, tuple(gates.values()), Reading(settings.strict_signal, settings.claim_anywhere)),
        rules.failing(settings.max_failures),
        rules.stalled(settings.stall),
        limits.limited(settings.on_limit, agents, settings.max_time),
        limits.faltering,
        rules.at_most(
            iterations=cap, cost=settings.max_cost, tokens=settings.max_tokens, seconds=settings.max_time
        ),
        rules.spaced(settings.restart_delay),
    )
    return Policy(claims, gates, asked, cap)


def gates_of(settings: Settings) -> dict[str, Rule]:
    """What must hold for a claim to be believed, by name."""
    gates: dict[str, Rule] = {}
    if settings.guardrails:
        gates["checks"] = rules.failing_checks(settings.output_truncate_chars)
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


def _refuse_what_cannot_end(settings: Settings, claims: tuple[Claim, ...]) -> None:
    if settings.guardrails:
        return
    if settings.preset == "checks":
        raise UserError("no checks given", 'the checks preset needs at least one: --check "CMD"')
    if any(claim.kind == "checks" for claim in claims):
        raise UserError("--until checks needs a check", 'add one: --check "CMD"')


def composer(
    settings: Settings, plan: Policy, goal: Callable[[], str], diff: Callable[[], str]
) -> Callable[[Run, tuple[Note, ...]], str]:
    """Makes the prompt of each turn."""
    compose = prompts.COMPOSERS[settings.preset]
    needs_history = settings.preset == "checks"

    def composed(run: Run, notes: tuple[Note, ...]) -> str:
        return compose(
            prompts.Brief(
                goal(),
                run.number,
                plan.cap,
                notes,
                run.last,
                next((claim for claim in plan.claims if claim.text), None),
                tuple(guardrail.command for guardrail in settings.guardrails),
                diff() if needs_history and run.last else "",
                progress(run) if needs_history else "",
                os.urandom(4).hex(),
                settings.include_iteration_count_in_prompt,
                settings.ultrawork,
            )
        )

    return composed
