"""What follows every run that somebody starts: its notifications, and the report at its end."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ralph.core import events
from ralph.errors import UserError
from ralph.show.notify import Notifier
from ralph.show.report import write_report
from ralph.verdict.context import Context


@contextmanager
def notify(context: Context) -> Iterator[events.TellAll]:
    """Send the notifications of `--notify`."""
    if not context.settings.notify:
        yield _ignore
        return
    notifier = Notifier(
        context.settings.notify,
        Path(context.workspace),
        context.folder,
        env=context.env,
        tell=context.tell,
        deadline=context.deadline,
    )
    try:
        yield notifier
    finally:
        notifier.close()


@contextmanager
def leave_report(context: Context) -> Iterator[events.TellAll]:
    """Write the report of a run that has ended. The outcome stays the same even if that fails: then the traceback goes
    to a file."""
    yield _ignore
    try:
        write_report(context.folder, os.environ)
    except Exception:  # noqa: BLE001 - any bug
        with suppress(UserError):
            context.folder.write("report-error.txt", traceback.format_exc().encode("utf-8", "replace"))


def _ignore(*happened: events.Event) -> None:
    """Hear an event without doing anything."""


FOLLOWERS = (notify, leave_report)
