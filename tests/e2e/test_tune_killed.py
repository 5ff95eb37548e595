"""`ralph tune` that ends too soon: the best version is on the branch, and the run continues from it."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Git = Callable[..., str]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda n: n.name)
def test_the_best_version_survives_and_an_unfinished_attempt_does_not(
    live: Callable[..., Any],
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    git: Git,
    repository: Path,
    environment: dict[str, str],
    number: int,
) -> None:
    (repository / "data").write_text("x" * 50)
    (repository / "size.sh").write_text(f"test -e {environment['HOME']}/slow && sleep 100; wc -c < data\n")
    git("add", "-A")
    git("commit", "-qm", "data")
    fake = agent(
        'case $N in 1) printf aaaa > data;; 2) touch "$HOME/slow" half-made; printf b > data; git commit -qam own;; '
        '*) rm -f "$HOME/slow"; printf ccc > data;; esac'
    )
    words = ("Shrink it", "--minimize", "sh size.sh", "--agent", fake, "-m", "3", "--grace", "0.1")
    run = live("tune", *words)
    run.until("iteration_finished")
    run.until("agent_finished")
    run.until("measurement_started")
    run.end(number)

    (branch,) = git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/").split()
    assert git("log", "-1", "--format=%s", branch + ("~1" if number == signal.SIGKILL else "")).startswith(
        "tune: 50 → 4"
    )
    result = ralph("resume", "--json")
    assert result.code == 0, result.err
    assert git("show", f"{branch}:data") == "ccc"
    assert git("log", "--format=%s", f"main..{branch}").count("\n") == 2
    assert "half-made" not in git("ls-tree", "--name-only", branch)


def test_a_kept_attempt_is_committed_once_even_if_ralph_was_killed_after_the_commit(
    ralph: Callable[..., Any], agent: Callable[..., str], git: Git, repository: Path
) -> None:
    (repository / "data").write_text("x" * 50)
    git("add", "-A")
    git("commit", "-qm", "data")
    words = ("Shrink it", "--minimize", "wc -c < data", "--agent", agent("printf aaaa > data"))
    assert ralph("tune", *words, "-m", "1").code == 0
    (journal,) = repository.glob(".ralph/runs/*/journal.ndjson")
    lines = journal.read_bytes().splitlines(keepends=True)
    finished = next(at for at, line in enumerate(lines) if b'"iteration_finished"' in line)
    journal.write_bytes(b"".join(lines[: finished + 1]))
    (journal.parent / "state.json").unlink()

    assert ralph("resume").code == 0
    (branch,) = git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/").split()
    assert git("log", "--format=%s", f"main..{branch}").splitlines() == ["tune: 50 → 4 (−92.0 %)"]
