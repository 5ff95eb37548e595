"""A repository's issues as a backlog, through the real `gh`; issues opened while it runs are worked off as well."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backlog.works import WAITING, Works, go
from tests.forge.hosted import LoopbackHost
from tests.warm import Warm

# Like `ralph`, but it reloads the list more often than every minute.
IMPATIENT = """
import ralph.backlog.backlog_source, ralph.__main__
ralph.backlog.backlog_source.QUERY_INTERVAL = 0.5
ralph.__main__.leave(ralph.__main__.main())
"""


@pytest.mark.timeout(120)
def test_open_issues_and_those_opened_during_the_run_are_worked_off(
    host: LoopbackHost,
    workspace: Path,
    environment: dict[str, str],
    agent: Callable[..., str],
    warm: Warm,
    eventually: Callable[..., None],
) -> None:
    works = Works(workspace, environment, agent, warm)
    works.git("remote", "add", "origin", "https://github.com/acme/shop.git")
    works.git("push", "-q", "-u", "origin", "main")
    works.script(WAITING)
    for number, labels in ((7, ("ready",)), (8, ()), (9, ("ready",))):
        host.issue(number, f"T{number} Make it", "As it was.", labels=labels)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", IMPATIENT, *works.words("github:label=ready", "--push", "-j", "2")[3:]]
    night = subprocess.Popen(command, cwd=workspace, env=environment, stdout=pipe, stderr=pipe, text=True)
    works.started.append(night)
    try:
        works.wait_for("task_started", key="9")
        host.issue(11, "T11 One more", "It came later.", labels=("ready",))
        eventually(lambda: "11" in [event["task"]["key"] for event in works.all("task_listed")])
    finally:
        go(works)
        _, said = night.communicate(timeout=90)
    assert night.returncode == 0, said
    assert sorted(works.merged("origin/main")) == ["11", "7", "9"]
    messages = works.git("log", "--format=%B", "origin/main")
    assert all(f"Closes #{number}" in messages for number in (7, 9, 11))
    assert host.git("log", "--format=%B", "main").strip() == messages.strip(), "on the host"
