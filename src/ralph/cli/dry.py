"""What would be run? Shows the settings that matter, the agent's command line and the first prompt; runs nothing."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from msgspec.structs import replace

from ralph.agents.protocol import TurnRequest
from ralph.core.model import Run
from ralph.core.secrets import redact_text
from ralph.run.choices import choices, workers
from ralph.run.order import Order
from ralph.run.policy import composer, policy, refuse_what_cannot_end
from ralph.settings import Loaded, Settings, format_duration
from ralph.show.event_lines import WORDLESS
from ralph.show.words import plural

if TYPE_CHECKING:
    from ralph.run.choices import Choice


def explain(order: Order, loaded: Loaded, out: TextIO = sys.stdout) -> int:
    settings, goal = loaded.settings, order.goal()
    refuse_what_cannot_end(settings)
    chosen = choices(settings, order.agent_args, os.environ, str(order.workspace))
    plan = policy(settings, workers(chosen), order.one_shot)
    prompt = composer(settings, plan, order.goal, diff=str, tells_claim=order.tells_claim)(
        Run(id="dry-run", goal=goal), ()
    )
    first = chosen[0]
    turn = TurnRequest(
        prompt=prompt,
        prompt_file="PROMPT_FILE",
        command=first.command,
        flags=first.flags,
        model=first.model,
        yolo=settings.yolo,
    )
    turn = replace(turn, understands=first.understands, boxed=settings.sandbox.enabled)
    argv = first.module.invocation(turn).argv
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
        *_box(order, chosen),
    ]
    for name, text in rows:
        print(f"{name:>10}  {redact_text(text)}", file=out)
    print(f"\nThe first prompt:\n\n{redact_text(prompt)}", file=out)
    return 0


def _box(order: Order, chosen: "Sequence[Choice]") -> Iterator[tuple[str, str]]:
    """What would stand before the agent's command line, and every check."""
    if not order.settings.sandbox.enabled:
        return
    from ralph.processes import box
    from ralph.processes.box import find_bubblewrap
    from ralph.processes.surroundings import look_around
    from ralph.run.belongings import RunPlace, allowed, wanted_by

    place = RunPlace(str(order.workspace), str(order.workspace), "RUN")
    around = look_around(wanted_by(order.settings, chosen, os.environ, place))
    reached = allowed(order.settings, chosen, os.environ)
    seen = box.places(around, os.path.isdir)
    yield "box", shlex.join(box.words(find_bubblewrap(os.environ), seen, around.workspace, reached is None))
    if reached is not None:
        names = [f"{one.name}:{one.port}" if one.port else one.name for one in reached]
        yield "network", ", ".join(names) or "none"


def _limits(settings: Settings, cap: int) -> Iterator[str]:
    yield plural(cap, "iteration")
    if settings.max_cost is not None:
        yield f"${settings.max_cost:g}"
    if settings.max_tokens is not None:
        yield f"{settings.max_tokens} tokens"
    if settings.max_time is not None:
        yield format_duration(settings.max_time)
