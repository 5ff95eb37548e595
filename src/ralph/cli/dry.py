"""What would be run? Shows the settings that matter, the agent's command line and the first prompt; runs nothing."""

import os
import shlex
import sys
from collections.abc import Iterator
from typing import TextIO

from msgspec.structs import replace

from ralph.agents.protocol import Request as TurnRequest
from ralph.core.model import Run
from ralph.core.secrets import redact_text
from ralph.run.agents import choices
from ralph.run.order import Order
from ralph.run.policy import composer, policy, refuse_what_cannot_end
from ralph.settings import Loaded, Settings, format_duration
from ralph.show.lines import WORDLESS
from ralph.show.words import plural


def explain(order: Order, loaded: Loaded, out: TextIO = sys.stdout) -> int:
    settings, goal = loaded.settings, order.goal()
    refuse_what_cannot_end(settings)
    chosen = choices(settings, order.agent_args, os.environ, str(order.workspace))
    plan = policy(settings, tuple(choice.name for choice in chosen), order.one_shot)
    prompt = composer(settings, plan, order.goal, str)(Run("dry-run", goal), ())
    first = chosen[0]
    turn = TurnRequest(prompt, "PROMPT_FILE", first.command, first.flags, settings.agent.model, settings.yolo)
    argv = first.module.invocation(replace(turn, understands=first.understands)).argv
    rows = [
        ("settings", ", ".join(map(str, loaded.sources)) or "defaults"),
        ("workspace", str(order.workspace)),
        ("preset", settings.preset),
        ("agent", shlex.join(argv)),
        ("done when", " or ".join(WORDLESS.get(claim.kind) or claim.marker for claim in plan.claims)),
        ("and", ", ".join(plan.gates) or "nothing else"),
        *(() if plan.verifies else (("verified", "by nothing: no check, no tasks file"),)),
        *(("check", guardrail.command) for guardrail in settings.guardrails),
        ("at most", ", ".join(_limits(settings, plan.cap))),
    ]
    for name, text in rows:
        print(f"{name:>10}  {redact_text(text)}", file=out)
    print(f"\nThe first prompt:\n\n{redact_text(prompt)}", file=out)
    return 0


def _limits(settings: Settings, cap: int) -> Iterator[str]:
    yield plural(cap, "iteration")
    if settings.max_cost is not None:
        yield f"${settings.max_cost:g}"
    if settings.max_tokens is not None:
        yield f"{settings.max_tokens} tokens"
    if settings.max_time is not None:
        yield format_duration(settings.max_time)
