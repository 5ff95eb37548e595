"""The evidence of each iteration: changed files, failed checks and the prompt, without secrets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.errors import UserError
from ralph.history.evidence import evidence_of, files_in, patch_of
from ralph.history.feed import entries_of, history_now, history_of, with_files
from ralph.store.folder import RunFolder
from ralph.store.register import Listed, runs_in

WORKS = """echo "line $N $MY_PASSPHRASE" >> file; [ $N = 2 ] && echo new > fresh
echo '{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}]}}'
echo '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"one line"}]}}'
echo '{"type":"result","subtype":"success","result":"<response>DONE</response>"}'"""


def test_an_iteration_has_a_prompt_failed_checks_and_a_patch_without_secrets(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path
) -> None:
    phrase = {"MY_PASSPHRASE": "correct-horse-battery"}
    words = ("run", "-p", "the goal", "--check", "test -f fresh || ! echo missing", "--json")
    result = ralph(*words, "--agent", agent(WORKS), **phrase)
    assert result.code == 0, result.err
    folder = RunFolder(repository / ".ralph", str(result.events[0]["run"]))
    history = with_files(history_of(folder))
    seen = evidence_of(folder, history, phrase)
    assert seen[1].tails == {"test -f fresh || ! echo missing": "missing"}
    assert seen[1].prompt.startswith("the goal")
    assert sorted(file.path for file in seen[2].patch) == ["file", "fresh"]
    assert "correct-horse-battery" not in repr(seen)


CHANGES = 'printf "line $N\\tx\\n" >> file; [ $N = 2 ] && printf "\\0" > image; echo "<response>DONE</response>"'


@pytest.fixture
def run(ralph: Callable[..., Any], agent: Callable[..., str], repository: Path) -> Listed:
    assert ralph("run", "-p", "the goal", "--check", "test -f image", "--agent", agent(CHANGES)).code == 0
    (found,) = runs_in(repository / ".ralph")
    return found


def test_one_iteration_and_the_whole_run_have_a_patch(run: Listed) -> None:
    first = patch_of(run, 1)
    assert [(file.path, file.added, file.deleted) for file in first.files] == [("file", 1, 0)]
    assert first.files[0].lines[-1] == "+line 1 x"
    whole = patch_of(run, None)
    assert {file.path: file.added for file in whole.files} == {"file": 2, "image": 0}
    assert (whole.number, whole.last, whole.is_cut) == (None, 2, False)
    assert patch_of(run, 99).number == 2


def test_the_history_of_a_run_is_read_from_its_journal(run: Listed) -> None:
    history = history_now(run)
    assert [one.result for one in history.iterations] == ["refused", "done"]
    assert [[file.path for file in one.files or ()] for one in history.iterations] == [["file"], ["file", "image"]]
    inside = [news.entry.type for news in entries_of(run.folder.journal, 2)]
    assert (inside[0], inside[-1]) == ("ralph_iteration_started", "run_finished")
    assert "check_finished" in inside


def test_a_run_without_an_iteration_has_no_patch(run: Listed, git: Callable[..., str]) -> None:
    refs = git("for-each-ref", "--format=%(refname)", "refs/ralph")
    for ref in refs.splitlines():
        git("update-ref", "-d", ref)
    with pytest.raises(UserError, match="has not finished an iteration"):
        patch_of(run, None)


def test_a_renamed_file_has_its_old_name() -> None:
    moved = b"diff --git a/README b/READ ME\nsimilarity index 100%\nrename from README\nrename to READ ME\n"
    ((file,), _) = files_in([moved])
    assert (file.was, file.path, file.lines) == ("README", "READ ME", [])
