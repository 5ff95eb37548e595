"""What does a program say about itself, its version or its options? It is run for a word, not for work."""

from collections.abc import Mapping

from ralph.core.model import Exit
from ralph.world.processes.interrupt import Interrupt
from ralph.world.processes.keeper import Keeper
from ralph.world.processes.process import run_process
from ralph.world.processes.program import Command
from ralph.world.processes.watch import Limits

PATIENCE = 15.0  # seconds that a program may take to say it
_LONGEST = 1 << 18


def heard(
    keeper: Keeper, argv: tuple[str, ...], cwd: str, env: Mapping[str, str], interrupt: Interrupt | None = None
) -> tuple[str, Exit]:
    """What the program prints, and how it ended. Nothing that it starts outlives the question."""
    lines: list[str] = []
    size = 0

    def listen(some: list[bytes]) -> None:
        nonlocal size
        for line in some:
            size += len(line)
            if size <= _LONGEST:
                lines.append(line.decode(errors="replace"))

    limits = Limits(turn=PATIENCE, grace=0.0, stop=0.5, leftovers=0.5)
    ended = run_process(keeper, Command(argv, cwd, env), on_lines=listen, limits=limits, interrupt=interrupt)
    return "\n".join(lines), ended
