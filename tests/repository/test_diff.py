from typing import Any

import pytest

from ralph.core.model import FileChange
from ralph.errors import UserError
from ralph.processes.program import CHUNK
from ralph.repository.checkpoints import changed_files, diff, patch


def test_the_diff_holds_edits_new_files_and_deletions(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "changed\n")
    repo.write("new.txt", "fresh\n")
    (repo.path / "folder/b.txt").unlink()
    text = diff(repo.found(), base, index.tree(), 5000)
    assert "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+changed\n" in text
    assert "new file mode 100644" in text
    assert "+fresh" in text
    assert "deleted file mode 100644" in text
    assert diff(repo.found(), base, base, 5000) == ""


def test_the_diff_spans_commits_of_the_agent(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "committed\n")
    repo.commit()
    repo.write("new.txt", "not committed\n")
    text = diff(repo.found(), base, index.tree(), 5000)
    assert "+committed" in text
    assert "+not committed" in text


def test_a_binary_file_is_one_line(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("image.bin", b"\0\1\2" * 1000)
    lines = diff(repo.found(), base, index.tree(), 5000).splitlines()
    assert lines[-1] == "Binary files /dev/null and b/image.bin differ"
    assert len(lines) <= 4


def test_a_file_that_moved_is_not_shown_twice(repo: Any) -> None:
    repo.write("long.txt", "".join(f"line {number}\n" for number in range(100)))
    repo.commit()
    index = repo.index()
    base = index.tree()
    (repo.path / "long.txt").rename(repo.path / "moved.txt")
    text = diff(repo.found(), base, index.tree(), 5000)
    assert "rename to moved.txt" in text
    assert "line 50" not in text


def test_a_huge_diff_is_read_no_further_than_wanted(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    for number in range(8):
        repo.write(f"{number}.txt", "0123456789abcde\n" * 100_000)
    now = index.tree()
    assert 5000 <= len(diff(repo.found(), base, now, 5000)) <= 5000 + CHUNK
    assert sum(map(len, patch(repo.found(), base, now))) > 8 * 1_600_000


def test_a_huge_file_is_one_line(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("huge.txt", "0123456789abcde\n" * 1_100_000)
    assert "Binary files /dev/null and b/huge.txt differ" in diff(repo.found(), base, index.tree(), 5000)


def test_text_that_is_not_utf8_and_cut_characters_do_no_harm(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("latin.txt", "caf\xe9 and more\n".encode("latin-1"))
    repo.write("wide.txt", "😀" * 50_000 + "\n")
    now = index.tree()
    for limit in (1, 100, 20_000, 60_000):
        text = diff(repo.found(), base, now, limit)
        assert "\ufffd" not in text.partition("wide.txt")[2]
    assert "caf\ufffd and more" in text


def test_caches_and_libraries_are_not_the_work(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("src/__pycache__/x.pyc", b"\0")
    repo.write("node_modules/left/pad.js", "pad")
    repo.write("src/x.py", "work\n")
    text = diff(repo.found(), base, index.tree(), 5000)
    assert text.count("diff --git") == 1
    assert "src/x.py" in text
    assert b"pad.js" in b"".join(patch(repo.found(), base, index.tree()))


def test_run_data_is_in_no_diff(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write(".ralph/runs/1/journal.ndjson", "secret")
    repo.write("a.txt", "changed\n")
    assert ".ralph" not in diff(repo.found(), base, index.tree(), 5000)


@pytest.mark.parametrize(
    "setting",
    [
        "color.ui=always",
        "color.diff=always",
        "diff.external=false",
        "diff.noprefix=true",
        "diff.mnemonicPrefix=true",
        "diff.renames=copies",
        "diff.context=0",
        "diff.wordRegex=.",
        "core.quotePath=true",
        "core.attributesFile=nowhere",
        "diff.orderFile=nowhere",
    ],
)
def test_the_users_settings_have_no_say(repo: Any, setting: str) -> None:
    repo.config(*setting.split("="))
    index = repo.index()
    base = index.tree()
    repo.write("é.txt", "one\n")
    assert "\n--- /dev/null\n+++ b/é.txt\n@@ -0,0 +1 @@\n+one\n" in diff(repo.found(), base, index.tree(), 5000)


def test_no_program_is_run_to_make_a_file_readable(repo: Any) -> None:
    repo.config("diff.odd.textconv", "echo converted; false")
    repo.config("diff.odd.command", "echo external; false")
    repo.write(".gitattributes", "*.txt diff=odd\n")
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "changed\n")
    assert "-one\n+changed\n" in diff(repo.found(), base, index.tree(), 5000)


def test_changed_files_are_listed_with_their_lines(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "one\ntwo\nthree\n")
    repo.write(b"odd\n\xff\tname", "x\ny\n")
    repo.write("image.bin", b"\0")
    (repo.path / "folder/b.txt").unlink()
    (repo.path / "folder/b.txt").symlink_to("elsewhere")
    (repo.path / ".gitignore").unlink()
    assert changed_files(repo.found(), base, index.tree()) == [
        FileChange("D", ".gitignore", 0, 1),
        FileChange("M", "a.txt", 2, 0),
        FileChange("T", "folder/b.txt", 1, 1),
        FileChange("A", "image.bin"),
        FileChange("A", "odd\n\\xff\tname", 2, 0),
    ]
    assert changed_files(repo.found(), base, base) == []


def test_a_state_that_is_not_there_is_an_error(repo: Any) -> None:
    with pytest.raises(UserError, match="git diff-tree failed: "):
        diff(repo.found(), "0" * 40 + ":" + "1" * 40, repo.index().tree(), 5000)
    with pytest.raises(UserError, match="git diff-tree failed: "):
        changed_files(repo.found(), "1" * 40, repo.index().tree())


def test_a_repository_without_a_commit_has_diffs(empty: Any) -> None:
    index = empty.index()
    base = index.tree()
    empty.write("a.txt", "one\n")
    assert "+one" in diff(empty.found(), base, index.tree(), 5000)
