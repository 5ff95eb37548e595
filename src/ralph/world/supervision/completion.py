"""Who learns that a task is done? Its project: one FACT on the project's bus for each DONE."""

from ralph.core import supervision
from ralph.errors import UserError
from ralph.world.supervision import bus, runinfo
from ralph.world.supervision.taskfolder import TaskFolder


def tell_project(folder: TaskFolder, run_id: str, attempts: int) -> str:
    """Post the completion, unless it was. Gives what went wrong, which is no reason for the task to fail."""
    try:
        done_at = runinfo.timestamp(folder.done.stat().st_mtime)
        if not _was_told(folder, done_at):
            fact = supervision.completion(folder.name, done_at, run_id, attempts)
            bus.post(folder.project_bus, fact.type, fact.body, project=folder.project, task=folder.task, run=run_id)
    except OSError as error:
        return str(error)
    except UserError as error:
        return error.message
    return ""


def _was_told(folder: TaskFolder, done_at: str) -> bool:
    facts = bus.read(folder.project_bus, types=["FACT"])
    return any(fact.task == folder.task and f"DONE at {done_at}," in fact.body for fact in facts)
