"""Does the hook stay light? What it may import is written down here; a number would depend on the machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ralph

ALLOWED = {
    *("ralph", "ralph.hooks.stop", "ralph.core", "ralph.core.promise", "ralph.core.wording"),
    *("ralph.hooks", "ralph.hooks.loops", "ralph.hooks.notation", "ralph.hooks.telling", "ralph.hooks.transcript"),
    *(
        "ralph.hooks.transcript",
        "_json",
        "os",
        "os.path",
        "posixpath",
        "genericpath",
        "stat",
        "_stat",
        "_collections_abc",
    ),
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


def test_a_blocked_stop_imports_next_to_nothing(imported, session):
    session.start()
    assert imported({"session_id": session.name, "last_assistant_message": "not yet"}) <= ALLOWED


def test_an_accepted_promise_imports_next_to_nothing(imported, session):
    session.start()
    session.works()
    event = {
        "session_id": session.name,
        "transcript_path": str(session.transcript),
        "last_assistant_message": "Done.\n<promise>DONE</promise>",
    }
    assert imported(event) <= ALLOWED
    assert session.status() == "PROMISE_ACCEPTED"


def test_a_prompt_that_is_no_command_imports_next_to_nothing(imported):
    assert imported({"session_id": "s", "prompt": "hello"}, "prompt") <= ALLOWED


def test_the_command_itself_answers_without_click(environment, session):
    session.start()
    code = (
        "import sys; sys.argv[1:] = ['hook', 'stop']\n"
        "from ralph.__main__ import main; main(); print('\\n' + ' '.join(sys.modules))"
    )
    event = json.dumps({"session_id": session.name, "last_assistant_message": "hm"})
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=event,
        env=environment,
        cwd=session.workspace,
        capture_output=True,
        text=True,
    )
    assert not {"click", "msgspec", "rich", "json", "ralph.cli"} & set(run.stdout.splitlines()[-1].split())
