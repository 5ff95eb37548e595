"""Which tasks must be done before this one? Its `DEPENDS-ON` says, one `project/task` a line, never in a circle."""

from collections.abc import Callable, Iterable, Sequence

from ralph.errors import UserError
from ralph.world.records.atomic import locked, put, unusable
from ralph.world.supervision.completion import is_done
from ralph.world.supervision.taskfolder import TaskFolder, task_folder

FILE = "DEPENDS-ON"


def depend(folder: TaskFolder, names: Sequence[str]) -> None:
    """Record that `folder`, which exists, comes after these tasks (`task` of its project, or `project/task`)."""
    wanted = [_named(folder, name) for name in names]
    # One at a time in the whole root: two tasks may be about to depend on each other.
    with locked(folder.root):

        def edges(name: str) -> Iterable[str]:
            return [other.name for other in (wanted if name == folder.name else recorded(_named(folder, name)))]

        if circle := circle_through(folder.name, edges):
            raise UserError(f"the tasks would wait for each other: {' -> '.join(circle)}", "drop one --depends-on")
        put(folder.path / FILE, "".join(f"{other.name}\n" for other in wanted))


def recorded(folder: TaskFolder) -> list[TaskFolder]:
    """The tasks that this one depends on."""
    path = folder.path / FILE
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unusable(path, error) from None
    return [_named(folder, line.strip()) for line in lines if line.strip() and not line.startswith("#")]


def unmet(folder: TaskFolder) -> list[str]:
    """The tasks that this one waits for: recorded, and not done."""
    return [other.name for other in recorded(folder) if not is_done(other)]


def circle_through(start: str, edges: Callable[[str], Iterable[str]]) -> list[str]:
    """A way from `start` back to itself, or nothing."""
    ways, seen = [[start]], set[str]()
    while ways:
        way = ways.pop()
        for name in edges(way[-1]):
            if name == start:
                return [*way, start]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _named(folder: TaskFolder, name: str) -> TaskFolder:
    project, slash, task = name.partition("/")
    return task_folder(folder.root, project, task) if slash else task_folder(folder.root, folder.project, name)
