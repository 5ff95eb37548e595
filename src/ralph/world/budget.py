"""Can a budget be kept? An agent that does not tell what it uses cannot be held to one, and that is said once."""

from collections.abc import Callable

from ralph.core.events import Notice, Tell
from ralph.core.model import Iteration, Run


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
            priced = "name its model with --model and install ralph[prices], or use --max-tokens"
            hint = priced if usage.tokens else "use --max-time"
            tell(Notice(f"{name} does not tell what it costs: --max-cost cannot end this run; {hint}"))
        if max_tokens and not usage.tokens:
            tell(Notice(f"{name} tells of no tokens: --max-tokens cannot end this run; use --max-time"))

    return look
