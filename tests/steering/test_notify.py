"""Notifications are sent, and their failures never harm the run."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.core import events as e
from ralph.core.model import Outcome
from ralph.history.run_history import RunHistory
from ralph.show import notify
from ralph.show.notify import Notification, Notifier, argv_for, message_about
from ralph.store.folder import RunFolder

Ralph = Callable[..., Any]
Agent = Callable[..., str]
WRITES = 'echo "$RALPH_EVENT|$RALPH_TITLE|$(cat)" >> heard'


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            e.RunFinished(outcome=Outcome.DONE, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0),
            "done",
        ),
        (
            e.RunFinished(
                outcome=Outcome.STOPPED, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=0
            ),
            "done",
        ),
        (
            e.RunFinished(
                outcome=Outcome.BUDGET, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=1
            ),
            "failed",
        ),
        (
            e.RunFinished(
                outcome=Outcome.FATAL, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=2
            ),
            "failed",
        ),
        (
            e.RunFinished(
                outcome=Outcome.INTERRUPTED, reason="why", iterations=1, cost_usd=None, duration_s=1.0, exit_code=130
            ),
            None,
        ),
        (e.QuestionAsked("q", "which?"), "question"),
        (e.Waiting(60.0, "usage limit: resets at 5", limited=True), "limit"),
        (e.Waiting(60.0, "pause between turns"), None),
        (e.Notice("x"), None),
    ],
)
def test_only_some_events_send_a_notification(event: e.Event, kind: str | None) -> None:
    message = message_about(event, RunHistory(run="r"))
    assert (message.kind if message else None) == kind


def test_a_notify_command_gets_the_outcome(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent('echo "<response>DONE</response>"')
    result = ralph("run", "-p", "x", "--check", "true", "--notify", WRITES, "--agent", fake)
    assert result.code == 0
    said = "done|ralph: done|done after 1 iteration: 1 check passes and the agent said"
    assert (workspace / "heard").read_text().startswith(said)


def test_a_question_is_notified_during_the_run(start: Any, ralph: Ralph, workspace: Path) -> None:
    run = start("--on-question", "wait", "--notify", WRITES, before='[ $N = 1 ] && echo "Which?" > .ralph/QUESTION.md')
    run.in_turn()
    run.let()
    run.until("paused")
    ralph("tell", "that one")
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert sorted(line.split("|")[0] for line in (workspace / "heard").read_text().splitlines()) == ["done", "question"]


def test_a_notification_that_fails_changes_nothing(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent('echo "<response>DONE</response>"')
    result = ralph("run", "-p", "x", "--json", "--notify", "echo oops >&2; exit 7", "--notify", "\x01", "--agent", fake)
    assert result.code == 0
    assert result.kinds()[-1] == "run_finished"
    (log,) = workspace.glob(".ralph/runs/*/notify.log")
    assert "oops" in log.read_text()
    assert "a notification failed with exit code 7: echo oops >&2; exit 7" in log.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path, "r")
    made.make()
    return made


ENV = {"PATH": "/usr/bin:/bin"}


def test_a_notification_that_hangs_is_killed(
    tmp_path: Path, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PATIENCE", 0.05)
    notifier = Notifier(["sleep 600 & sleep 600"], tmp_path, folder, env=ENV, tell=lambda event: None)
    began = time.monotonic()
    notifier(e.QuestionAsked("q", "which?"))
    notifier.close()
    assert time.monotonic() - began < 60
    assert (folder.path / "notify.log").read_text() == "a notification took too long: sleep 600 & sleep 600\n"


def test_a_failed_notification_is_reported_during_the_run(tmp_path: Path, folder: RunFolder) -> None:
    told: list[e.Event] = []
    notifier = Notifier(["exit 3"], tmp_path, folder, env=ENV, tell=told.append)
    notifier(e.QuestionAsked("q", "which?"))
    notifier._sent[0][1].wait()
    notifier(e.Notice("something else"))
    notifier.close()
    assert told == [e.Notice("a notification failed with exit code 3: exit 3")]


def test_a_url_without_apprise_is_refused_before_the_run(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    result = ralph("run", "-p", "x", "--notify", "json://localhost:1/x", "--agent", agent("echo"))
    if result.code != 2:
        pytest.skip("Apprise is installed here")
    assert "pip install 'apprise" in result.err
    assert not (workspace / ".ralph" / "runs").exists()


def test_a_url_goes_to_apprise_but_not_on_a_command_line(
    ralph: Ralph, agent: Agent, tmp_path: Path, workspace: Path
) -> None:
    (tmp_path / "apprise.py").write_text(
        "class Apprise:\n"
        "    def add(self, url): self.url = url; return True\n"
        "    def notify(self, body, title): open('sent', 'w').write(f'{self.url}|{title}|{body}'); return True\n"
    )
    fake = agent('echo "<response>DONE</response>"')
    words = ("run", "-p", "x", "--notify", "tgram://key/chat", "--agent", fake)
    assert ralph(*words, PYTHONPATH=str(tmp_path)).code == 0
    assert (workspace / "sent").read_text().startswith("tgram://key/chat|ralph: done|done (unverified)")
    assert "key" not in " ".join(argv_for("tgram://key/chat", Notification("done", "x")))


def test_desktop_notifications_use_the_program_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    message = Notification("failed", "--help; $(x)")
    monkeypatch.setattr("sys.platform", "linux")
    assert argv_for("desktop", message) == ["notify-send", "--", "ralph: failed", "--help; $(x)"]
    monkeypatch.setattr("sys.platform", "darwin")
    assert argv_for("desktop", message)[0] == "osascript"
