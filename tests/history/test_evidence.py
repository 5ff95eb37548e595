"""What a page can show of each iteration: its changes, failed checks, calls and prompt, and none of its secrets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ralph.history.evidence import evidence_of
from ralph.history.feed import history_of, with_files
from ralph.records.folder import RunFolder

WORKS = """echo "line $N $MY_PASSPHRASE" >> file; [ $N = 2 ] && echo new > fresh
echo '{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}]}}'
echo '{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","content":"one line"}]}}'
echo '{"type":"result","subtype":"success","result":"<response>DONE</response>"}'"""


def test_of_each_iteration_there_is_something_to_see(
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
    assert [(call.name, call.given, call.ok, call.lines) for call in seen[1].calls] == [("Bash", "ls", True, 1)]
    assert seen[1].prompt.startswith("the goal")
    assert sorted(file.path for file in seen[2].patch) == ["file", "fresh"]
    assert "correct-horse-battery" not in repr(seen)
