"""Which runs are on record in a workspace, and which one does a person mean?"""

from collections.abc import Callable
from pathlib import Path

from ralph.errors import UserError
from ralph.world.folder import RunFolder
from ralph.world.journal import Story, recall


def recorded(ralph: Path) -> list[str]:
    """The ids of all runs, oldest first: an id begins with its date."""
    runs = ralph / "runs"
    return (
        sorted(entry.name for entry in runs.iterdir() if (entry / "journal.ndjson").exists()) if runs.is_dir() else []
    )


def find_run(ralph: Path, name: str = "", wanted: Callable[[Story], bool] = lambda story: True) -> RunFolder:
    """The run called `name` (any unambiguous part of its id will do), or the latest one that is `wanted`."""
    known = recorded(ralph)
    if name:
        matching = [one for one in known if one == name] or [one for one in known if name in one]
        if len(matching) == 1:
            return RunFolder(ralph, matching[0])
        if matching:
            raise UserError(f"{name!r} may mean {', '.join(matching[:5])}", "give more of the id")
        raise UserError(f"no run {name!r} in {ralph.parent}", _on_record(known))
    for one in reversed(known):
        if wanted(recall(RunFolder(ralph, one).journal)):
            return RunFolder(ralph, one)
    raise UserError(f"no such run in {ralph.parent}", _on_record(known))


def _on_record(known: list[str]) -> str:
    return f"on record: {', '.join(known[-5:])}" if known else "nothing has been run here yet"
