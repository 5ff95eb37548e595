"""Who speaks for the supervisor? One voice that puts each remark on the task's bus, and into the log."""

from collections.abc import Iterable

from ralph.core import events
from ralph.core.secrets import Redactor
from ralph.core.supervision import Remark
from ralph.errors import UserError
from ralph.world.supervision import bus
from ralph.world.supervision.taskfolder import TaskFolder


class Herald:
    """`run` is the run that the next remarks are about. A bus that cannot be written to is no reason to stop."""

    def __init__(self, task: TaskFolder, redact: Redactor) -> None:
        self.task, self.run = task, ""
        self.tell: events.Tell = lambda event: None
        self._redact = redact
        self._trouble = ""

    def say(self, remarks: Remark | Iterable[Remark]) -> None:
        for remark in (remarks,) if isinstance(remarks, Remark) else remarks:
            if remark.type:
                self._post(remark)
            self.tell(events.Notice(remark.body, remark.level))

    def _post(self, remark: Remark) -> None:
        body = self._redact.text(remark.body)
        try:
            bus.post(self.task.bus, remark.type, body, project=self.task.project, task=self.task.task, run=self.run)
        except UserError as error:
            self.trouble(error.message)

    def trouble(self, text: str) -> None:
        """Warns of what cannot be written down, once."""
        if text != self._trouble:
            self._trouble = text
            self.tell(events.Notice(text))
