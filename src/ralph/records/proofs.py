"""Which checks have ever been seen red in this workspace? One that never was may be unable to fail: it is unproven."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

NAME = "proofs.json"
MOST = 1000


def seen_red(ralph: Path) -> frozenset[str]:
    """The commands that some run here has seen fail."""
    from msgspec import json

    try:
        return frozenset(json.decode((ralph / NAME).read_bytes(), type=list[str]))
    except (OSError, ValueError):
        return frozenset()


def remember_red(ralph: Path, commands: Iterable[str]) -> None:
    """Keeps that these were red. To know it is a comfort: where it cannot be kept, they stay unproven."""
    fresh = list(dict.fromkeys(commands))
    known = seen_red(ralph) if fresh else frozenset()
    fresh = [command for command in fresh if command not in known]
    if not fresh:
        return
    from msgspec import json

    waiting = ralph / f".{NAME}.{os.getpid()}"
    with suppress(OSError):
        waiting.write_bytes(json.encode([*sorted(known), *fresh][-MOST:]))
        waiting.replace(ralph / NAME)
