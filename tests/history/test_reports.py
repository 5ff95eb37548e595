"""`ralph report` and `ralph show`: what happened, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.warm import Warm

Ralph = Callable[..., Any]
Agent = Callable[..., str]
WORKS = 'echo "line $N" >> file; [ $N = 2 ] && echo new > fresh; echo "<response>DONE</response>"'


@pytest.fixture
def finished(ralph: Ralph, agent: Agent, repository: Path) -> str:
    result = ralph("run", "-p", "the goal", "--check", "test -f fresh", "--json", "--agent", agent(WORKS))
    assert result.code == 0
    return str(result.events[0]["run"])


def test_every_run_writes_its_report(finished: str, workspace: Path) -> None:
    page = (workspace / ".ralph" / "runs" / finished / "report.html").read_text()
    assert "done after 2 iterations" in page
    assert "Claims that were refused" in page
    assert "fresh" in page


def test_a_report_as_json_has_everything(ralph: Ralph, finished: str) -> None:
    told = json.loads(ralph("report", "--json").out)
    assert (told["run"], told["outcome"], told["exit_code"]) == (finished, "done", 0)
    first, second = told["iterations"]
    assert [(check["name"], check["passed"]) for check in first["checks"]] == [("test -f fresh", False)]
    assert first["refused"][0]["gate"] == "checks"
    assert [file["path"] for file in first["files"]] == ["file"]
    assert {file["path"]: (file["status"], file["added"]) for file in second["files"]} == {
        "file": ("M", 1),
        "fresh": ("A", 1),
    }
    assert {file["path"]: file["added"] for file in told["files"]} == {"file": 2, "fresh": 1}
    assert json.loads(ralph("show", "--json").out) == told


def test_show_prints_a_run_as_lines(ralph: Ralph, finished: str) -> None:
    said = ralph("show", finished).out
    assert "iteration 1  claim refused: checks" in said
    assert "✗ test -f fresh  exit 1" in said
    assert "A fresh +1 -0" in said
    assert said.splitlines()[-1].startswith("ralph: done after 2 iterations")


def test_a_report_is_written_to_the_given_file(ralph: Ralph, finished: str, tmp_path: Path) -> None:
    result = ralph("report", finished, "-o", str(tmp_path / "night.html"))
    assert result.out == f"{tmp_path}/night.html\n"
    assert (tmp_path / "night.html").read_text().startswith("<!doctype html>")
    assert ralph("report").out.startswith("<!doctype html>")
    assert ralph("report", "-o", "/nowhere/x.html").code == 2


def test_a_run_in_ci_writes_the_summary_of_the_job(ralph: Ralph, agent: Agent, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"), GITHUB_STEP_SUMMARY=str(summary))
    said = summary.read_text()
    assert said.startswith("before\n## ❌ exhausted: 1 iteration")


def test_a_report_that_cannot_be_written_does_not_harm_the_run(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent('mkdir .ralph/runs/$RALPH_RUN_ID/report.html; echo "<response>DONE</response>"')
    result = ralph("run", "-p", "x", "--agent", fake, GITHUB_STEP_SUMMARY="/nowhere/summary.md")
    assert result.code == 0
    assert result.last_line.startswith("ralph: done")
    (error,) = workspace.glob(".ralph/runs/*/report-error.txt")
    assert "report.html" in error.read_text()


def test_a_run_outside_git_has_a_report_without_files(ralph: Ralph, agent: Agent) -> None:
    ralph("run", "-p", "x", "-m", "1", "--agent", agent("echo hello"))
    told = json.loads(ralph("report", "--json").out)
    assert told["files"] is None


def test_a_report_works_without_the_trees_of_its_run(ralph: Ralph, finished: str, git: Any) -> None:
    for ref in git("for-each-ref", "--format=%(refname)", "refs/ralph/").split():
        git("update-ref", "-d", ref)
    git("gc", "-q", "--prune=now")
    told = json.loads(ralph("report", "--json").out)
    assert told["outcome"] == "done"


def test_files_with_unusual_names_stay_different(ralph: Ralph, agent: Agent, repository: Path) -> None:
    fake = agent("printf x > 'a\tb'; printf x > 'c\nd'; mkdir -p 'e f'; printf x > 'e f/:100644 g'; echo $N")
    ralph("run", "-p", "x", "-m", "1", "--agent", fake)
    told = json.loads(ralph("report", "--json").out)
    assert {file["path"] for file in told["files"]} == {"a\tb", "c\nd", "e f/:100644 g"}


def test_a_report_shows_changes_failed_checks_and_prompts(ralph: Ralph, finished: str) -> None:
    page = ralph("report", finished).out
    assert "+line 1" in page
    assert "✗ test -f fresh" in page or "test -f fresh (exit 1)" in page
    assert "The prompt" in page
    assert "the goal" in page


@pytest.mark.slow
def test_a_report_of_forty_iterations_is_small_and_quick(ralph: Ralph, agent: Agent, repository: Path) -> None:
    writes = "seq $N 300 > big; seq 1 $N > small; echo working on $N"
    checks = [
        word for at in range(10) for word in ("--check", f"seq 900; test $(wc -l < small) -gt 39 || test {at} -lt 0")
    ]
    result = ralph("run", "go", *checks, "-m", "40", "--quiet", "--agent", agent(writes), timeout=120)
    assert result.code == 1
    before = Warm.spent
    page = ralph("report", "-o", str(repository / "night.html"))
    assert page.code == 0
    assert 0 < Warm.spent - before < 1.0, "about 0.3 s on an idle core"
    size = (repository / "night.html").stat().st_size
    assert 100_000 < size < 600_000
