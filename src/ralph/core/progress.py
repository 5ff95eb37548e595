"""What has been tried so far? The progress of a run, as the agent reads it and as `.ralph/progress.md` keeps it."""

from ralph.core.model import Check, Iteration, Run
from ralph.core.text import clean, one_line


def progress(run: Run) -> str:
    """One section per iteration of this run."""
    return "\n".join(section(iteration) for iteration in run.iterations)


def section(iteration: Iteration) -> str:
    passed = iteration.is_green and iteration.turn.failure is None
    cost = iteration.usage.cost_usd
    lines = [
        f"## Iteration {iteration.number} — {'PASS' if passed else 'FAIL'}",
        f"- Steps: {iteration.turn.steps if iteration.turn.steps is not None else iteration.turn.tool_calls or 0}",
        f"- Cost: {'unknown' if cost is None else f'${cost:.4f}'}",
        f"- Duration: {iteration.duration:.1f}s",
    ]
    if iteration.turn.failure:
        lines.append(f"- Error: {one_line(clean(iteration.turn.failure.reason))}")
    if iteration.checks:
        lines += ["- Checks:", *(f"  - {check.name}: {_verdict(check)}" for check in iteration.checks)]
    return "\n".join(lines) + "\n"


def _verdict(check: Check) -> str:
    if check.passed:
        return "PASS"
    said = "" if check.timeout else clean(check.tail)
    first = next((line for line in said.split("\n") if line.strip()), check.ending)
    return f"FAIL — {one_line(first)}"
