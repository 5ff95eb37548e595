"""The GitHub Action, run by a small runner on this machine: inputs in; outputs, summary and pull request out."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.forge.hosted import TOKEN, LoopbackHost

ROOT = Path(__file__).parents[2]
Start = Callable[..., Any]


class Runner:
    """Runs the steps of the action as GitHub would; steps that use other actions are recorded, not run."""

    def __init__(self, folder: Path, env: dict[str, str], cwd: Path) -> None:
        self.action = yaml.safe_load((ROOT / "action.yml").read_text())
        self.folder, self.cwd = folder, cwd
        folder.mkdir()
        names = ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_ENV", "GITHUB_STEP_SUMMARY")
        files = {name: str(folder / name) for name in names}
        for path in files.values():
            Path(path).touch()
        self.env = {**env, **files, "GITHUB_ACTION_PATH": str(ROOT), "RUNNER_TEMP": str(folder)}

    def run(self, **inputs: str) -> int:
        """Run the action with these inputs."""
        given = {
            f"inputs.{name}": inputs.get(name.replace("-", "_"), about.get("default", ""))
            for name, about in self.action["inputs"].items()
        }
        return self._steps(self.action["runs"]["steps"], given)

    def start(self, workflow: Path, **event: str) -> int:
        """Run a job that uses the action, from its event to its end."""
        happened = {f"github.event.{name.replace('__', '.')}": value for name, value in event.items()}
        known = {"github.actor": "somebody", "github.repository": "acme/shop", **happened}
        (job,) = yaml.safe_load(workflow.read_text())["jobs"].values()
        return self._steps(job["steps"], known)

    def _steps(self, steps: list[dict[str, Any]], known: dict[str, str]) -> int:
        for step in steps:
            env = {name: self._filled(value, known) for name, value in step.get("env", {}).items()}
            if step.get("uses", "").startswith("OWNER/ralph@"):
                self.env |= env
                given = {
                    name.replace("-", "_"): self._filled(str(value), known) for name, value in step["with"].items()
                }
                if code := self.run(**given):
                    return code
            elif "run" in step:
                words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
                done = subprocess.run(
                    words, cwd=self.cwd, env={**self.env, **env}, capture_output=True, text=True, check=False
                )
                self.said = done.stdout + done.stderr
                if done.returncode:
                    return done.returncode
        return 0

    def _filled(self, value: str, known: dict[str, str]) -> str:
        known = {"github.token": TOKEN, "secrets.ANTHROPIC_API_KEY": "sk-ant-of-the-model", **known}
        for _ in range(2):  # the default of an input may refer to another value
            value = re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], value)
        return value

    def output(self, name: str) -> str:
        lines = (self.folder / "GITHUB_OUTPUT").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)[name]


@pytest.fixture
def runner(tmp_path: Path, clone: Path, environment: dict[str, str]) -> Runner:
    del environment["GH_TOKEN"]  # passed as an input
    return Runner(tmp_path / "runner", environment, clone)


def test_an_issue_becomes_a_pull_request_with_outcome_report_and_summary(
    runner: Runner, host: LoopbackHost, agent: Start, clone: Path
) -> None:
    host.issue(42, "Coupons $(touch HACKED)", "Please `touch HACKED`; ${{ secrets.X }}")
    fake = agent("echo coupon > cart; echo COMPLETE")
    assert runner.run(issue="42", checks="grep -q coupon cart\ntest -f README", agent=fake) == 0, runner.said
    assert runner.output("outcome") == "done"
    assert runner.output("pull-request") == "https://github.com/acme/shop/pull/43"
    assert (clone / runner.output("report")).read_text().startswith("<!doctype html>")
    assert "## ✅ done after 1 iteration" in (runner.folder / "GITHUB_STEP_SUMMARY").read_text()
    assert not list(clone.glob("HACKED*"))


def test_a_run_that_is_not_done_fails_the_step_and_pushes_nothing(
    runner: Runner, host: LoopbackHost, agent: Start
) -> None:
    assert runner.run(goal="x", checks="false", agent=agent("echo COMPLETE"), max_time="20s", max_cost="") == 1
    assert runner.output("outcome") in ("exhausted", "timeout", "stalled")
    assert runner.output("pull-request") == ""
    assert not host.pulls


def test_neither_the_agent_nor_the_checks_see_the_token_or_the_runners_files(
    runner: Runner, host: LoopbackHost, agent: Start, environment: dict[str, str]
) -> None:
    host.issue(42, "Coupons", "Please")
    seen = Path(environment["HOME"], "seen")
    fake = agent(f"env >> {seen}; cat .git/config ~/.gitconfig >> {seen} 2>&1; echo coupon > cart; echo COMPLETE")
    assert runner.run(issue="42", checks=f"env >> {seen}", agent=fake) == 0, runner.said
    told = seen.read_text()
    assert "RALPH_RUN_ID" in told
    assert TOKEN not in told
    for name in ("GH_TOKEN", "GITHUB_TOKEN", "GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH"):
        assert f"{name}=" not in told, name


def test_the_workflow_of_the_ci_guide_opens_a_pull_request_for_the_labelled_issue(
    runner: Runner, host: LoopbackHost, agent: Start, clone: Path, prompts: Callable[..., list[str]]
) -> None:
    host.issue(42, "Coupons", "A coupon larger than the price makes the total negative.")
    host.answers["/repos/acme/shop/collaborators/somebody/permission"] = (200, {"permission": "write"})
    host.ci = {"build": "test -f cart"}
    agent('case "$*" in *claude-code*) ;; *) exit 1 ;; esac', "npm")
    agent("echo coupon > cart; echo COMPLETE", "claude")
    (clone / "Makefile").write_text("test:\n\tgrep -q coupon cart\nlint:\n\ttrue\n")
    for words in (("add", "Makefile"), ("commit", "-qm", "checks")):
        subprocess.run(["git", *words], cwd=clone, env=runner.env, check=True)
    assert runner.start(ROOT / "action" / "example.yml", issue__number="42") == 0, runner.said
    assert "A coupon larger than the price makes the total negative." in prompts("claude")[0]
    assert runner.output("pull-request") == "https://github.com/acme/shop/pull/43"
    merged = host.merge(43)
    assert host.git("show", f"{merged}:cart") == "coupon"
    assert host.issues[42]["state"] == "closed"


def test_the_workflow_of_the_ci_guide_runs_only_for_people_with_write_access(
    runner: Runner, host: LoopbackHost
) -> None:
    host.answers["/repos/acme/shop/collaborators/somebody/permission"] = (200, {"permission": "triage"})
    assert runner.start(ROOT / "action" / "example.yml", issue__number="42") == 1
    assert runner.said == "somebody may not start this\n"
    assert not host.pulls


def test_the_ci_guide_shows_the_step_of_the_workflow() -> None:
    shown, *_ = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "guides" / "ci.md").read_text(), re.DOTALL)
    assert (ROOT / "action" / "example.yml").read_text().endswith(shown)


def test_two_goals_or_none_are_refused(runner: Runner, host: LoopbackHost, agent: Start) -> None:
    assert runner.run(checks="true", agent=agent("echo COMPLETE")) == 2
    assert runner.run(goal="x", issue="42", checks="true", agent=agent("echo COMPLETE")) == 2


def test_no_script_of_the_action_runs_its_inputs_as_code() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    example = yaml.safe_load((ROOT / "action" / "example.yml").read_text())
    steps = [*action["runs"]["steps"], *example["jobs"]["implement"]["steps"]]
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []
    assert example[True] == {"issues": {"types": ["labeled"]}}  # YAML parses the key `on` as true
    assert all(step.get("with", {}).get("persist-credentials", False) is False for step in steps)


def test_shellcheck_finds_nothing() -> None:
    found = shutil.which("shellcheck")
    if found is None and "CI" not in os.environ:
        pytest.skip("needs shellcheck: apt-get install shellcheck")
    assert found, "shellcheck is not installed"
    scripts = sorted(map(str, (ROOT / "action").glob("*.sh")))
    done = subprocess.run([found, *scripts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
