"""What `ralph tune` adds to an attempt: a long run minus a short one, divided by the attempts between them.

The agent, the check and the measured command take a few milliseconds each, and are included.
"""

from pathlib import Path

from bench.iterations import Command, make_repository, marginal
from bench.lab import Lab
from bench.samples import Row, Wanted, compared

BETTER, SAME = "echo $((1000 - RALPH_ITERATION))", "echo 1000"
BUDGET = Wanted(500)  # milliseconds


def measure(lab: Lab) -> list[Row]:
    agent = lab.script("agent", 'echo "$RALPH_ITERATION" >>notes.txt')

    def tuning(number: str) -> Command:
        return lambda n: (
            *(lab.ralph, "tune", "Make it smaller", "--minimize", number, "--check", "true", "--stuck", "0"),
            *("--agent", agent, "-m", str(n)),
        )

    small, large = make_repository(lab, 100), make_repository(lab, 10_000)
    return [
        _row(lab, "one more attempt of `ralph tune`, dropped", tuning(SAME), small),
        _row(lab, "… kept", tuning(BETTER), small),
        _row(lab, "… kept, 10,000 files", tuning(BETTER), large),
    ]


def _row(lab: Lab, name: str, command: Command, repository: Path) -> Row:
    return compared(name, {"ralph": marginal(lab, command, (2, 12), repository)}, 3, BUDGET)
