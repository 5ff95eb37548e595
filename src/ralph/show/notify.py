"""Notifications: run a command, show a desktop message or call a URL when a run is done, has failed, asks a question or
waits for a limit. A notification never harms the run and never delays it for long.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.core import backlog_events, events
from ralph.core.model import Outcome
from ralph.core.text import one_line
from ralph.files import open_own
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.process.program import DetachedProcess, open_input, own_program
from ralph.process.signals import Deadline
from ralph.show.backlog_lines import FollowedBacklog, last_line
from ralph.show.words import outcome_sentence
from ralph.store.folder import RunFolder
from ralph.store.serving import run_url

PATIENCE = 10.0  # seconds that the end of a run waits for its notifications
DESKTOP = "desktop"


class Notification(Struct, frozen=True):
    """`kind` is done, failed, question or limit; `page` is the URL of the run in a running web UI, if any."""

    kind: str
    text: str
    page: str = ""

    @property
    def title(self) -> str:
        return {"question": "ralph asks", "limit": "ralph waits"}.get(self.kind, f"ralph: {self.kind}")

    @property
    def body(self) -> str:
        return f"{self.text}\n{self.page}" if self.page else self.text


def message_about(event: events.Event, history: RunHistory) -> Notification | None:
    """Return the notification for an event, or None. An interrupted run sends none, because its user is there."""
    match event:
        case events.RunFinished() if event.outcome is not Outcome.INTERRUPTED:
            kind = "done" if event.exit_code == 0 else "failed"
            return Notification(kind, outcome_sentence(history))
        case events.QuestionAsked():
            return Notification("question", one_line(event.text, 500))
        case events.Waiting() if event.limited:
            return Notification("limit", one_line(event.reason, 500))
    return None


class Notifier:
    """A listener that starts one process per notification and does not wait for it. `about` maps events to
    notifications; by default it maps the events of a run."""

    def __init__(
        self,
        targets: Sequence[str],
        workspace: Path,
        folder: RunFolder,
        *,
        env: Mapping[str, str],
        tell: events.Tell,
        about: Callable[[Any], Notification | None] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._about = about or self._of_a_run
        self._targets, self._workspace, self._folder = targets, workspace, folder
        self._env, self._tell, self.deadline = env, tell, deadline
        self._fold = Fold(folder.id)
        self._log: IO[bytes] | None = None
        self._sent: list[tuple[str, DetachedProcess]] = []

    def __call__(self, *happened: Any) -> None:
        for failure in self._failures():
            self._tell(events.Notice(failure))
        for message in filter(None, map(self._about, happened)):
            notification = replace(message, page=run_url(self._folder.id, self._env))
            for target in self._targets:
                self._send(target, notification)

    def _of_a_run(self, event: events.Event) -> Notification | None:
        self._fold.add(event, time.time())
        return message_about(event, self._fold.history)

    def close(self) -> None:
        """Wait until running notifications end or time out, or the user wants to stop; then kill them. Failures are in
        the log in the run's folder."""
        until, deadline = time.monotonic() + PATIENCE, self.deadline
        for target, process in [*self._sent]:
            while process.wait(0.02) is None:
                if time.monotonic() >= until or (deadline and deadline.remaining() <= 0):
                    process.send_signals(signal.SIGKILL)
                    process.wait()
                    self._sent.remove((target, process))
                    self._write(f"a notification took too long: {mask_target(target)}")
        for failure in self._failures():
            self._write(failure)
        if self._log is not None:
            self._log.close()

    def _write(self, text: str) -> None:
        """Write a line to the log in the run's folder."""
        assert self._log
        self._log.write(f"{text}\n".encode())

    def _send(self, target: str, message: Notification) -> None:
        if self._log is None:
            log = open_own(self._folder.path / "notify.log", os.O_APPEND)
            self._log = open(log, "ab", buffering=0)  # noqa: SIM115 - see close()
        env = {
            **self._env,
            "RALPH_EVENT": message.kind,
            "RALPH_TITLE": message.title,
            "RALPH_TEXT": message.text,
            "RALPH_URL": message.page,
            "RALPH_RUN": self._folder.id,
            "RALPH_WORKSPACE": str(self._workspace),
        }
        words = f"{target}\n{message.title}\n{message.body}" if "://" in target else f"{message.body}\n"
        fds = (open_input(words.encode()), self._log.fileno(), self._log.fileno())
        try:
            argv = argv_for(target, message, self.deadline)
            process = DetachedProcess.start(argv, env, fds, cwd=str(self._workspace))
        except OSError as error:
            self._write(f"cannot run {mask_target(target)}: {error.strerror}")
            return
        finally:
            os.close(fds[0])
        self._sent.append((target, process))

    def _failures(self) -> list[str]:
        """Return the failures of notifications that have ended."""
        ended = [(target, process.code) for target, process in self._sent if process.wait(0) is not None]
        self._sent = [(target, process) for target, process in self._sent if process.code is None]
        return [f"a notification failed with exit code {code}: {mask_target(target)}" for target, code in ended if code]


@contextmanager
def notify_about_backlog(backlog: FollowedBacklog) -> Iterator[Callable[..., None]]:
    """Send notifications about parked tasks and the end of a backlog run."""
    target, name = "", ""

    def about(event: object) -> Notification | None:
        nonlocal target, name
        match event:
            case backlog_events.BacklogStarted():
                target, name = event.target, "" if event.push else event.name
            case backlog_events.TaskParked():
                return Notification("failed", f"{event.key} is parked: {event.reason}")
            case backlog_events.BacklogFinished() if event.outcome != "interrupted":
                return Notification("done" if event.exit_code == 0 else "failed", last_line(event, target, name))
        return None

    notifier = Notifier(
        backlog.notify,
        Path(backlog.workspace),
        backlog.folder,
        env=os.environ,
        tell=lambda event: None,
        about=about,
        deadline=backlog.deadline,
    )
    try:
        yield notifier
    finally:
        notifier.close()


def argv_for(target: str, message: Notification, deadline: Deadline | None = None) -> list[str]:
    """Return the command line that sends a message; `deadline` names the folders whose programs are not used."""
    untrusted = deadline.untrusted if deadline else ()
    if target == DESKTOP and sys.platform == "darwin":
        script = "on run {t, m}\ndisplay notification m with title t\nend run"
        return [own_program("osascript", untrusted) or "osascript", "-e", script, message.title, message.body]
    if target == DESKTOP:
        return [own_program("notify-send", untrusted) or "notify-send", "--", message.title, message.body]
    if "://" in target:
        return [sys.executable, "-P", "-m", "ralph.show.notify"]  # the URL holds a key: it comes on standard input
    return ["/bin/sh", "-c", target]


def mask_target(target: str) -> str:
    """Return the target without the parts of a URL that may be a key."""
    return target.partition("://")[0] + "://…" if "://" in target else one_line(target)


def send_to_url() -> int:
    """Send one notification, as a separate process; URL, title and text come on standard input."""
    apprise = importlib.import_module("apprise")  # an extra, which need not be installed where this is type-checked
    url, title, text = sys.stdin.read().split("\n", 2)
    service = apprise.Apprise()
    return 0 if service.add(url) and service.notify(body=text, title=title) else 1


if __name__ == "__main__":
    sys.exit(send_to_url())
