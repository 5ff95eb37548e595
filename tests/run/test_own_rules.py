"""Rules of the user's own: asked next to ralph's, imported from next to ralph, and never failing open."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ralph import RalphConfig, RalphLoop
from ralph.core.model import Note, Opinion, Outcome, Run, Stop, Wait
from ralph.errors import UserError
from ralph.run.policy import load_rules

Ralph = Callable[..., Any]


def too_long(run: Run) -> Iterator[Opinion]:
    if len(run.iterations) == 2:
        yield Stop(Outcome.STALLED, "two are enough")


class Worker:
    def run(self, prompt: str) -> str:
        return "still at it"


def config() -> RalphConfig:
    return RalphConfig("do it", ["false"], max_iterations=9)


def test_a_users_rule_ends_a_loop_from_python(tmp_path: Path) -> None:
    result = RalphLoop(config(), Worker, tmp_path, rules=[too_long]).run()
    assert (result.stop_reason, len(result.iterations)) == ("stalled", 2)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda run: 1 / 0, "ZeroDivisionError"),
        (lambda run: ["stop"], "gave str instead of an opinion"),
        (lambda run: 7, "not iterable"),
    ],
)
def test_a_broken_rule_is_reported_before_the_first_turn(rule: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        RalphLoop(config(), Worker, tmp_path, rules=[rule]).run()


@pytest.mark.parametrize(
    ("opinion", "problem"),
    [
        (Stop("stalled", "why"), "gave Stop with 'stalled' instead of an Outcome"),
        (Stop(Outcome.STALLED, 7), "gave Stop with a wrong type: Expected `str`, got `int` - at `$.reason`"),
        (Note("shorter", None), "gave Note with a wrong type: Expected `str`, got `null` - at `$.about`"),
        (Wait("soon", "why"), "gave Wait with a wrong type: Expected `float`, got `str` - at `$.seconds`"),
        (Wait(object(), "why"), "gave Wait with a wrong type"),
    ],
)
@pytest.mark.parametrize("after", [0, 2])
def test_a_rule_that_yields_a_wrong_type_ends_the_run_with_one_line(
    opinion: Any, problem: str, after: int, tmp_path: Path
) -> None:
    def mistyped(run: Run) -> Iterator[Opinion]:
        if len(run.iterations) == after:
            yield opinion

    loop = RalphLoop(config(), Worker, tmp_path, rules=[mistyped])
    if after:
        result = loop.run()
        assert (result.stop_reason, len(result.iterations)) == ("fatal", after)
        reason = result.reason
    else:
        with pytest.raises(UserError) as raised:
            loop.run()
        reason = raised.value.advice
    assert f"rule mistyped {problem}" in reason
    assert "\n" not in reason


def test_a_rule_may_give_whole_seconds(tmp_path: Path) -> None:
    (rule,) = load_rules((), [lambda run: [Wait(5, "why")]], tmp_path)
    assert list(rule(Run(id=""))) == [Wait(5, "why")]


def test_a_rule_that_breaks_later_ends_the_run_as_fatal(tmp_path: Path) -> None:
    def breaks(run: Run) -> list[Opinion]:
        return [] if len(run.iterations) < 2 else [run.iterations[7]]  # type: ignore[list-item]

    result = RalphLoop(config(), Worker, tmp_path, rules=[breaks]).run()
    assert (result.success, result.stop_reason, len(result.iterations)) == (False, "fatal", 2)


@pytest.fixture
def beside_ralph(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A folder of packages that ralph imports from, outside the workspace."""
    folder = tmp_path / "packages"
    folder.mkdir()
    environment["PYTHONPATH"] = str(folder)
    return folder


RULES = """
from ralph.core.model import Outcome, Stop

def enough(run):
    if run.iterations:
        yield Stop(Outcome.BLOCKED if hasattr(Outcome, "BLOCKED") else Outcome.STALLED, "one is enough")

broken = 7

def raises(run):
    raise OSError("no weather report")
"""


FINDER = """
import sys
from importlib.util import spec_from_file_location

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, {path!r}) if name == "my_rules" else None

sys.meta_path.append(Finder)
"""


def run_with(ralph: Ralph, workspace: Path, path: str) -> Any:
    settings = workspace / ".ralph" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f'{{"rules": ["{path}"]}}')
    return ralph("run", "go", "--agent", "cat", "-m", "3", "--until", "word:NEVER-SAID")


def test_settings_can_name_a_rule_that_is_installed_with_ralph(
    ralph: Ralph, workspace: Path, beside_ralph: Path
) -> None:
    (beside_ralph / "my_rules.py").write_text(RULES)
    done = run_with(ralph, workspace, "my_rules:enough")
    assert done.code == 1
    assert "one is enough" in done.last_line


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("my_rules:broken", "is not a function"),
        ("my_rules:raises", "no weather report"),
        ("my_rules:missing", "cannot import my_rules:missing"),
        ("no_such_package:rule", "cannot import no_such_package:rule: ModuleNotFoundError"),
        ("my_rules", "names no rule"),
    ],
)
def test_a_rule_that_cannot_be_used_is_a_one_line_error(
    path: str, said: str, ralph: Ralph, workspace: Path, beside_ralph: Path
) -> None:
    (beside_ralph / "my_rules.py").write_text(RULES)
    done = run_with(ralph, workspace, path)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_rule_in_the_workspace_is_not_imported(ralph: Ralph, workspace: Path, environment: dict[str, str]) -> None:
    environment["PYTHONPATH"] = str(workspace)
    (workspace / "my_rules.py").write_text("import os; open('imported', 'w')\n" + RULES)
    done = run_with(ralph, workspace, "my_rules:enough")
    assert done.code == 2
    assert not (workspace / "imported").exists()
    assert str(workspace) not in sys.path


def test_a_rule_of_a_package_that_is_installed_editable_from_the_workspace_is_not_imported(
    ralph: Ralph, workspace: Path, beside_ralph: Path
) -> None:
    """Such a package may be found by a finder instead of a folder in `sys.path`."""
    (workspace / "my_rules.py").write_text("import os; open('imported', 'w')\n" + RULES)
    (beside_ralph / "sitecustomize.py").write_text(FINDER.format(path=str(workspace / "my_rules.py")))
    done = run_with(ralph, workspace, "my_rules:enough")
    assert done.code == 2
    assert "my_rules is in the workspace, where the agent could change it" in done.err
    assert not (workspace / "imported").exists()
