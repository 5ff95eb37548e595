"""Is a task done, and who learns of it? Its project: one FACT on the project's bus for each DONE."""

from ralph.core import supervision
from ralph.core.model import Outcome
from ralph.errors import UserError
from ralph.world.records.register import recorded_in
from ralph.world.supervision import bus, runinfo
from ralph.world.supervision.taskfolder import TaskFolder, markers


def is_done(folder: TaskFolder) -> bool:
    """Whether DONE is there, and the last supervisor, if one has begun, ended by accepting it. Checks may have refused
    it, its children may be at work, or the supervisor was killed before it could look."""
    if not markers(folder).done:
        return False
    outcomes = [run.standing.outcome for run in recorded_in(folder.path / ".ralph") if run.standing.workspace]
    return not outcomes or outcomes[-1] == Outcome.DONE.value


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
