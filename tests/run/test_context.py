"""The context of a run reports problems around its processes."""

from pathlib import Path

from ralph.core import events
from ralph.core.secrets import Redactor
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.verdict.context import Context


def test_a_log_that_cannot_be_written_and_a_process_that_survives_are_reported(tmp_path: Path) -> None:
    told: list[events.Event] = []
    with Keeper.start() as keeper, Interrupt() as interrupt:
        folder = RunFolder(tmp_path, "run")
        context = Context(
            root=tmp_path,
            workspace=str(tmp_path),
            settings=Settings(),
            folder=folder,
            keeper=keeper,
            deadline=Deadline(interrupt),
            tell=lambda *happened: told.extend(happened),
            env={},
            redact=Redactor(),
        )
        (tmp_path / "no-folder").touch()
        with context.log(tmp_path / "fine.log") as fine, context.log(tmp_path / "no-folder" / "log") as broken:
            context.report_problems(fine)
            assert told == []
            broken.write(b"text\n")
            keeper.survivors = (41, 42)
            context.report_problems(fine, broken)
    assert [event.text for event in told if isinstance(event, events.Notice)] == [
        f"cannot write {tmp_path}/no-folder/log: Not a directory",
        "could not kill: process 41, 42",
    ]
