"""Does the hook stay light? What it may import is written down here; a number would depend on the machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ralph

ALLOWED = {
    *("ralph", "ralph.hooks", "ralph.hooks.stop", "ralph.hooks.loops"),
    *("os", "os.path", "posixpath", "genericpath", "stat", "_stat", "_collections_abc"),
}


@pytest.fixture
def imported(environment, workspace):
    def by(event, word="stop"):
        source = str(Path(ralph.__file__).parents[1])
        code = (
            f"import sys; before = set(sys.modules); sys.path.insert(0, {source!r})\n"
            f"from ralph.hooks.stop import main; main([{word!r}, 'claude'])\n"
            "print('\\n' + ' '.join(set(sys.modules) - before))"
        )
        argv = [sys.executable, "-I", "-S", "-c", code]
        run = subprocess.run(
            argv, input=json.dumps(event), env=environment, cwd=workspace, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        return set(run.stdout.splitlines()[-1].split())

    return by


def test_a_stop_of_another_session_imports_next_to_nothing(imported, session):
    session.start()
    assert imported({"session_id": "another"}) <= ALLOWED


def test_a_stop_without_any_loop_imports_next_to_nothing(imported, workspace):
    assert imported({"session_id": "s", "cwd": str(workspace)}) <= ALLOWED


def test_a_prompt_that_is_no_command_imports_next_to_nothing(imported):
    assert imported({"session_id": "s", "prompt": "hello"}, "prompt") <= ALLOWED


def test_an_active_stop_is_answered_without_the_command_line(imported, session):
    """What judges a run is needed; what reads a command line, shows a run or knows prices is not."""
    session.start()
    modules = imported({"session_id": session.name, "last_assistant_message": "not yet"})
    assert "ralph.loop" in modules
    assert not {"click", "rich", "genai_prices", "pydantic", "_hashlib"} & modules
    assert not [name for name in modules if name.startswith(("ralph.cli", "ralph.show", "ralph.ui", "ralph.agents"))]
