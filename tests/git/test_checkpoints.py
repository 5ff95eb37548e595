import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ralph.core.model import FileChange
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints, changed_files, diff, patch
from ralph.process.pump import CHUNK
from ralph.store.folder import RunFolder
from ralph.verdict.context import Context
from ralph.verdict.trees import GitTrees

RUN = "20261115-120000-abcd"


class Loop:
    """A run reduced to its checkpoints."""

    def __init__(self, repo: Any) -> None:
        self.repo = repo
        self.index = repo.index()
        self.saved = Checkpoints(repo.found(), RUN)
        self.number = -1
        self.states: list[dict[str, bytes]] = []
        self.save()

    def save(self) -> str:
        self.number += 1
        self.states.append(self.repo.files())
        return self.saved.save(self.number, self.index.tree(), self.index.unsaved)


def test_a_resumed_run_keeps_its_state_if_its_agent_prunes_the_repository(repo: Any, tmp_path: Path) -> None:
    loop = Loop(repo)
    base = loop.index.tree()
    repo.write("by-a-person.txt", "while nobody worked\n")
    folder = RunFolder(tmp_path, RUN)
    folder.make()
    context = cast(Context, SimpleNamespace(root=repo.path, folder=folder, env=os.environ))
    trees = GitTrees(context, repo.found())
    trees.begin(base)
    repo.git("prune", "--expire=now")
    trees.tree(1)
    assert repo.git("show", f"refs/ralph/{RUN}/1:by-a-person.txt") == "while nobody worked"
    assert repo.git("fsck", "--no-dangling") == ""
    assert [one.name for one in loop.saved.all()] == ["0", "1"]


def test_a_rewind_ignores_a_working_tree_that_the_agent_configured(repo: Any, tmp_path: Path) -> None:
    loop = Loop(repo)
    repo.write("a.txt", "changed\n")
    loop.save()
    elsewhere = type(repo)(tmp_path)
    repo.config("core.worktree", str(tmp_path))
    (tmp_path / "a.txt").write_text("of somebody else\n")
    before = set(tmp_path.iterdir())
    again = Checkpoints(repo.found(), RUN)
    assert again.rewind(0, repo.index()).files == 1
    assert repo.files() == loop.states[0]
    assert elsewhere.files()["a.txt"] == b"of somebody else\n"
    assert set(tmp_path.iterdir()) == before


def test_a_rewritten_file_with_the_same_content_does_not_stop_a_rewind(repo: Any) -> None:
    loop = Loop(repo)
    changed = repo.write("a.txt", "changed\n")
    loop.save()
    os.utime(changed, (1, 1))  # the file was rewritten with the same content
    assert loop.saved.rewind(0, loop.index).files == 1
    assert repo.files() == loop.states[0]


def test_every_checkpoint_is_a_commit_outside_the_branches(repo: Any) -> None:
    loop = Loop(repo)
    before = repo.state()
    repo.write("new.txt", "1\n")
    first = loop.save()
    repo.write("new.txt", "2\n")
    second = loop.save()
    assert repo.git("rev-parse", f"refs/ralph/{RUN}/1", f"refs/ralph/{RUN}/2").split() == [first, second]
    assert repo.git("show", f"{first}:new.txt") == "1"
    assert repo.git("rev-parse", f"{second}^") == first
    assert repo.git("rev-parse", f"{first}~2") == repo.git("rev-parse", "HEAD")
    said = repo.git("log", "-1", "--format=%an <%ae> %s", second)
    assert said == f"ralph <ralph@localhost> iteration 2 of run {RUN}"
    assert repo.state() == before
    assert repo.git("branch", "--contains", second) == ""


def test_an_unchanged_state_gets_the_same_commit(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("new.txt")
    assert loop.save() == loop.save()
    assert [one.name for one in loop.saved.all()] == ["0", "1", "2"]


def test_checkpoints_continue_after_a_resume(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("new.txt", "1")
    first = loop.save()
    repo.write("new.txt", "2")
    resumed = Checkpoints(repo.found(), RUN)
    second = resumed.save(2, repo.index().tree())
    assert repo.git("rev-parse", f"{second}^1") == first
    assert [one.name for one in resumed.all()] == ["0", "1", "2"]


def test_a_resume_makes_the_checkpoint_that_a_killed_run_did_not_make(repo: Any) -> None:
    Loop(repo)
    repo.write("new.txt", "1")
    resumed = Checkpoints(repo.found(), RUN)
    resumed.save_resumed(repo.index().tree(), 1)
    assert [one.name for one in resumed.all()] == ["0", "1"]
    assert repo.git("show", f"refs/ralph/{RUN}/1:new.txt") == "1"


def test_a_stale_lock_does_not_prevent_a_checkpoint(repo: Any) -> None:
    loop = Loop(repo)
    repo.write(f".git/refs/ralph/{RUN}/1.lock", "")
    os.utime(repo.path / f".git/refs/ralph/{RUN}/1.lock", (1, 1))
    repo.write("new.txt", "1")
    loop.save()
    assert [one.name for one in loop.saved.all()] == ["0", "1"]


def test_checkpoints_are_sorted_by_number(repo: Any) -> None:
    saved = Checkpoints(repo.found(), RUN)
    for number in (0, 1, 2, 9, 10, 11):
        repo.write("a.txt", str(number))
        saved.save(number, repo.index().tree())
    assert [one.name for one in saved.all()] == ["0", "1", "2", "9", "10", "11"]
    before, after = saved.around(10)
    assert (repo.git("show", f"{before}:a.txt"), repo.git("show", f"{after}:a.txt")) == ("9", "10")


def test_commits_that_the_agent_dropped_are_kept_alive(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("new.txt")
    dropped = repo.commit()
    saved = loop.save()
    repo.git("reset", "-q", "--hard", "HEAD^")
    assert dropped in repo.git("rev-list", saved).split()


def test_a_repository_without_a_commit_has_checkpoints(empty: Any) -> None:
    loop = Loop(empty)
    empty.write("a.txt", "one\n")
    loop.save()
    loop.saved.rewind(0, empty.index())
    assert empty.files() == {}


@pytest.mark.parametrize(
    "setting", ["commit.gpgSign=true", "core.logAllRefUpdates=always", "i18n.commitEncoding=latin1"]
)
def test_checkpoints_ignore_the_users_hooks_and_settings(repo: Any, tmp_path: Path, setting: str) -> None:
    repo.config(*setting.split("="))
    repo.config("gpg.program", "false")
    for hook in ("pre-commit", "commit-msg", "reference-transaction", "post-commit", "post-checkout"):
        repo.hook(hook, f"touch '{tmp_path}/started'; exit 1")
    loop = Loop(repo)
    repo.write("a.txt", "é")
    loop.saved.save(1, loop.index.tree(), ["a name with \0 and é and 😀", "# and a comment"])
    said = repo.git("log", "-1", "--format=%B", f"refs/ralph/{RUN}/1")
    assert said.endswith("\n\nNot-saved: a name with and é and 😀\nNot-saved: # and a comment")
    loop.saved.rewind(0, repo.index())
    assert not (tmp_path / "started").exists()
    assert not (repo.path / ".git/logs/refs/ralph").exists()


def test_a_rewind_reports_files_that_its_checkpoint_does_not_contain(repo: Any) -> None:
    names = ("big: é.bin", "not saved: no trailer", "a\tb", "plain")
    saved = Checkpoints(repo.found(), RUN)
    saved.save(0, repo.index().tree(), names)
    (missed,) = saved.rewind(0, repo.index()).missed
    assert missed.startswith("what was too large to be saved")
    assert missed.endswith(": big: é.bin, not saved: no trailer, a b, plain")


def test_the_diff_of_an_iteration_is_what_it_changed(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("one.txt", "first\n")
    loop.save()
    repo.write("two.txt", "second\n")
    loop.save()
    text = diff(repo.found(), *loop.saved.around(2), 5000)
    assert "+second" in text
    assert "first" not in text


@pytest.mark.parametrize(("number", "message"), [(7, "has no checkpoint 7"), (0, "no checkpoint before 0")])
def test_an_unknown_iteration_is_an_error(repo: Any, number: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Loop(repo).saved.around(number)


def test_a_run_without_checkpoints_is_an_error(repo: Any) -> None:
    with pytest.raises(UserError, match="no checkpoints here"):
        Checkpoints(repo.found(), "another").rewind(1, repo.index())


def _work(repo: Any) -> Loop:
    """Save three iterations that change files in every possible way."""
    repo.write("link-target", "x")
    (repo.path / "link").symlink_to("a.txt")
    loop = Loop(repo)
    repo.write("a.txt", "edited\n")
    repo.write(b"odd \n\xff name", "1")
    repo.write("deep/er/file.txt", "deep")
    loop.save()
    (repo.path / "folder/b.txt").unlink()
    (repo.path / "folder").rmdir()
    repo.write("folder", "a file now")
    (repo.path / "link").unlink()
    (repo.path / "link").symlink_to("folder")
    (repo.path / "a.txt").chmod(0o755)
    loop.save()
    assert os.system(f"cd '{repo.path}' && rm -r deep odd* link-target") == 0
    repo.write("last.txt")
    loop.save()
    return loop


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_rewind_restores_every_file(repo: Any, number: int) -> None:
    loop = _work(repo)
    before = repo.state()
    done = loop.saved.rewind(number, repo.index())
    assert repo.files() == loop.states[number]
    assert repo.state() == before
    assert done.kept_as == f"refs/ralph/{RUN}/3"
    assert os.readlink(repo.path / "link") == ("a.txt" if number < 2 else "folder")
    assert os.access(repo.path / "a.txt", os.X_OK) is (number >= 2)
    assert (done.files == 0) is (number == 3)
    loop.saved.rewind(3, repo.index())
    assert repo.files() == loop.states[3]


def test_a_rewind_works_in_a_folder_with_line_ends_in_its_name(repo: Any) -> None:
    repo.path = repo.path.rename(repo.path.parent / "a\nb")
    index, saved = repo.index(), Checkpoints(repo.found(), "the-run")
    saved.save(0, index.tree())
    repo.write("a.txt", "another\n")
    repo.write('"quoted"', "new\n")
    saved.save(1, index.tree())
    assert saved.rewind(0, index).missed == ()
    assert saved.rewind(1, index).missed == ()
    assert (repo.path / "a.txt").read_text() == "another\n"


def test_a_rewind_restores_files_with_line_ends_or_quotes_in_their_names(repo: Any) -> None:
    index, saved = repo.index(), Checkpoints(repo.found(), "the-run")
    names = ["\r", "a\r", "a\nb", '"a"', "a\\", "\\n"]
    for name in names:
        repo.write(name, name)
    saved.save(0, index.tree())
    for name in names:
        repo.write(name, "changed")
    saved.save(1, index.tree())
    assert saved.rewind(0, index).missed == ()
    assert [(repo.path / name).read_bytes().decode() for name in names] == names


def test_a_rewind_saves_the_present_state_first(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("a.txt", "iteration 1\n")
    loop.save()
    for number in (1, 2):
        repo.write("a.txt", f"by hand {number}\n")
        repo.write("mine.txt", f"mine {number}\n")
        done = loop.saved.rewind(0, repo.index())
        assert done.kept_as == f"refs/ralph/{RUN}/before-rewind-{number}"
        assert repo.files() == loop.states[0]
        assert repo.git("show", f"{done.kept_as}:mine.txt") == f"mine {number}"
        assert repo.git("show", f"{done.kept_as}:a.txt") == f"by hand {number}"


def test_a_rewind_over_commits_moves_no_branch(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("a.txt", "committed\n")
    repo.write("new.txt")
    head = repo.commit()
    loop.save()
    loop.saved.rewind(0, repo.index())
    assert repo.files() == loop.states[0]
    assert repo.git("rev-parse", "HEAD") == head
    assert repo.git("symbolic-ref", "HEAD") == "refs/heads/main"


def test_a_rewind_leaves_ignored_files_and_run_data_alone(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("a.txt", "edited\n")
    loop.save()
    repo.write("build.ignored", "built")
    repo.write(".ralph/runs/1/journal.ndjson", "kept")
    loop.saved.rewind(0, repo.index())
    assert repo.files() == loop.states[0] | {"build.ignored": b"built", ".ralph/runs/1/journal.ndjson": b"kept"}


IN_THE_WAY: dict[str, Callable[[Any], object]] = {
    "notes.txt": lambda repo: repo.write("notes.txt", "only here\n"),
    "deep": lambda repo: (shutil.rmtree(repo.path / "deep"), repo.write("deep", "only here\n")),
    "notes.txt/in/it": lambda repo: ((repo.path / "notes.txt").unlink(), repo.write("notes.txt/in/it", "only here\n")),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_a_file_that_git_ignores_is_saved_before_it_is_overwritten(repo: Any, name: str) -> None:
    loop = Loop(repo)
    repo.write("notes.txt", "first\n")
    repo.write("deep/er/file.txt", "deep\n")
    loop.save()
    IN_THE_WAY[name](repo)
    repo.write(".gitignore", "notes.txt\ndeep\n")
    done = loop.saved.rewind(1, repo.index())
    assert repo.files() == loop.states[1]
    assert repo.git("show", f"{done.kept_as}:{name}") == "only here"


@pytest.mark.parametrize("kind", ["without a commit", "with a commit", "a submodule"])
def test_a_rewind_does_not_overwrite_a_nested_repository(repo: Any, kind: str, tmp_path: Path) -> None:
    loop = Loop(repo)
    (repo.path / "a.txt").unlink()
    if kind == "a submodule":
        repo.git("rm", "-q", "--cached", "a.txt")
        repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.path), "a.txt")
    else:
        (repo.path / "a.txt").mkdir()
        repo.git("-C", "a.txt", "init", "-q")
        if kind == "with a commit":
            repo.git("-C", "a.txt", "commit", "-q", "--allow-empty", "-m", "inside")
    repo.write("a.txt/precious.txt", "only here")
    before = repo.files()
    with pytest.raises(UserError, match=r"a\.txt is a nested repository"):
        loop.saved.rewind(0, repo.index())
    assert repo.files() == before
    assert (repo.path / "a.txt/.git").exists()


@pytest.mark.parametrize("name", ["a.bad", "new.bad"])
def test_a_rewind_that_would_overwrite_files_that_cannot_be_saved_is_refused(repo: Any, name: str) -> None:
    repo.write("a.bad", "something else")
    repo.commit()
    os.utime(repo.path / "a.bad", (1, 1))
    repo.git("add", "-A")
    loop = Loop(repo)
    repo.config("filter.broken.clean", "false")
    repo.config("filter.broken.required", "true")
    repo.write(".gitattributes", "*.bad working-tree-encoding=UTF-16\n")
    repo.write(name, "only here")
    before = repo.files()
    with pytest.raises(UserError, match=f"cannot save {name}"):
        loop.saved.rewind(0, repo.index())
    assert repo.files() == before


def test_a_rewind_saves_big_files(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralph.git.index.BIG_FILE", 10)
    loop = Loop(repo)
    repo.write("big.txt", "big enough\n")
    done = loop.saved.rewind(0, repo.index())
    assert not (repo.path / "big.txt").exists()
    assert repo.git("show", f"{done.kept_as}:big.txt") == "big enough"


def test_a_rewind_does_not_enter_submodules(repo: Any) -> None:
    repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repo.path), "sub")
    repo.commit()
    repo.config("submodule.recurse", "true")
    loop = Loop(repo)
    repo.write("sub/a.txt", "inside\n")
    repo.git("-C", "sub", "commit", "-q", "-a", "-m", "inside")
    repo.write("sub/a.txt", "not committed\n")
    repo.write("a.txt", "outside\n")
    loop.save()
    loop.saved.rewind(0, repo.index())
    assert (repo.path / "sub/a.txt").read_text() == "not committed\n"
    assert (repo.path / "a.txt").read_text() == "one\n"


def test_a_rewind_of_a_run_in_a_subfolder_restores_the_whole_repository(repo: Any) -> None:
    saved = Checkpoints(repo.found("folder"), RUN)
    saved.save(0, repo.index("folder").tree())
    before = repo.files()
    repo.write("a.txt", "outside\n")
    repo.write("folder/new.txt")
    saved.rewind(0, repo.index("folder"))
    assert repo.files() == before


def test_garbage_collection_does_not_remove_checkpoints(repo: Any) -> None:
    loop = Loop(repo)
    repo.write("new.txt", "kept\n")
    loop.save()
    (repo.path / "new.txt").unlink()
    repo.git("gc", "-q", "--prune=now")
    assert repo.git("show", f"refs/ralph/{RUN}/1:new.txt") == "kept"
    assert loop.index.tree().files == loop.saved.all()[0].tree


def hidden_by(repo: Any, flag: str) -> None:
    repo.git("update-index", f"--{flag}", "a.txt")


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_a_file_marked_assume_unchanged_is_saved_and_restored(repo: Any, flag: str) -> None:
    hidden_by(repo, flag)
    repo.write("a.txt", "mine, and in no commit\n")
    loop = Loop(repo)
    repo.write("a.txt", "overwritten\n")
    loop.save()
    assert repo.git("show", f"refs/ralph/{RUN}/0:a.txt") == "mine, and in no commit"
    before = repo.state()
    loop.saved.rewind(0, loop.index)
    assert (repo.path / "a.txt").read_text() == "mine, and in no commit\n"
    assert repo.state() == before


def test_an_agent_cannot_hide_a_change_by_marking_a_file_assume_unchanged(repo: Any) -> None:
    loop = Loop(repo)
    hidden_by(repo, "assume-unchanged")
    (repo.path.parent / "private" / "index").unlink()
    repo.write("a.txt", "hidden\n")
    loop.save()
    assert repo.git("show", f"refs/ralph/{RUN}/1:a.txt") == "hidden"


def test_a_rewind_does_not_add_files_outside_a_sparse_checkout(repo: Any) -> None:
    repo.git("sparse-checkout", "set", "--no-cone", "/a.txt")
    loop = Loop(repo)
    tree = loop.index.tree()
    assert repo.git("rev-parse", f"{tree.files}:folder/b.txt") == repo.git("rev-parse", "HEAD:folder/b.txt")
    repo.write("a.txt", "changed\n")
    repo.write("folder/b.txt", "made all the same\n")
    loop.save()
    assert repo.git("show", f"refs/ralph/{RUN}/1:folder/b.txt") == "made all the same"
    loop.saved.rewind(0, loop.index)
    assert (repo.path / "a.txt").read_text() == "one\n"
    loop.saved.rewind(1, loop.index)
    assert (repo.path / "folder" / "b.txt").read_text() == "made all the same\n"


def test_a_rewind_restores_line_ends_as_the_attributes_say(repo: Any) -> None:
    repo.write(".gitattributes", "*.crlf text eol=crlf\n*.txt -text\n")
    repo.write("b.crlf", "one\r\ntwo\r\n")
    repo.commit("line ends")
    loop = Loop(repo)
    repo.write("b.crlf", "other\r\n")
    repo.write("a.txt", "other\r\n")
    loop.save()
    loop.saved.rewind(0, loop.index)
    assert (repo.path / "b.crlf").read_bytes() == b"one\r\ntwo\r\n"
    loop.saved.rewind(1, loop.index)
    assert (repo.path / "a.txt").read_bytes() == b"other\r\n"


def test_a_rewind_reports_nested_repositories_that_it_did_not_enter(repo: Any) -> None:
    repo.git("init", "-q", "inside")
    repo.write("inside/x", "x\n")
    loop = Loop(repo)
    repo.write("a.txt", "other\n")
    loop.save()
    assert [one for one in loop.saved.rewind(0, loop.index).missed if "inside" in one]


def test_a_rewind_applies_filters_only_to_objects_that_a_filter_wrote(repo: Any) -> None:
    for kind in ("clean", "smudge"):
        repo.config(f"filter.rot13.{kind}", "tr a-z n-za-m")
    repo.write(".gitattributes", "*.secret filter=rot13\n")
    for name in ("first.secret", "staged.secret"):
        repo.write(name, "secret\n")
    repo.commit("encrypted")
    repo.write("staged.secret", "staged\n")
    repo.git("add", "-A")
    assert repo.git("show", "HEAD:first.secret") == "frperg"
    loop = Loop(repo)
    for text in ("other\n", "third\n"):
        for name in ("first.secret", "staged.secret", "new.secret"):
            repo.write(name, text)
        loop.save()
    repo.commit("by the agent")
    repo.write("first.secret", "fourth\n")
    loop.save()
    for number in (1, 0, 2, 3, 0, 2):
        loop.saved.rewind(number, loop.index)
        assert repo.files() == loop.states[number], number
    assert loop.index.tree().files == loop.saved.all()[2].tree, "nothing seems changed"


def test_the_diff_contains_edits_new_files_and_deletions(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "changed\n")
    repo.write("new.txt", "fresh\n")
    (repo.path / "folder/b.txt").unlink()
    text = diff(repo.found(), base.files, index.tree().files, 5000)
    assert "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+changed\n" in text
    assert "new file mode 100644" in text
    assert "+fresh" in text
    assert "deleted file mode 100644" in text
    assert diff(repo.found(), base.files, base.files, 5000) == ""


def test_the_diff_includes_commits_of_the_agent(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "committed\n")
    repo.commit()
    repo.write("new.txt", "not committed\n")
    text = diff(repo.found(), base.files, index.tree().files, 5000)
    assert "+committed" in text
    assert "+not committed" in text


def test_a_binary_file_is_one_line(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("image.bin", b"\0\1\2" * 1000)
    lines = diff(repo.found(), base.files, index.tree().files, 5000).splitlines()
    assert lines[-1] == "Binary files /dev/null and b/image.bin differ"
    assert len(lines) <= 4


def test_a_moved_file_is_shown_once(repo: Any) -> None:
    repo.write("long.txt", "".join(f"line {number}\n" for number in range(100)))
    repo.commit()
    index = repo.index()
    base = index.tree()
    (repo.path / "long.txt").rename(repo.path / "moved.txt")
    text = diff(repo.found(), base.files, index.tree().files, 5000)
    assert "rename to moved.txt" in text
    assert "line 50" not in text


def test_a_huge_diff_is_read_only_up_to_the_limit(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    for number in range(8):
        repo.write(f"{number}.txt", "0123456789abcde\n" * 100_000)
    now = index.tree()
    assert 5000 <= len(diff(repo.found(), base.files, now.files, 5000)) <= 5000 + CHUNK
    assert sum(map(len, patch(repo.found(), base.files, now.files))) > 8 * 1_600_000


def test_a_huge_file_is_one_line(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("huge.txt", "0123456789abcde\n" * 1_100_000)
    assert "Binary files /dev/null and b/huge.txt differ" in diff(repo.found(), base.files, index.tree().files, 5000)


def test_invalid_utf8_and_cut_characters_in_a_diff_are_replaced(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("latin.txt", "caf\xe9 and more\n".encode("latin-1"))
    repo.write("wide.txt", "😀" * 50_000 + "\n")
    now = index.tree()
    for limit in (1, 100, 20_000, 60_000):
        text = diff(repo.found(), base.files, now.files, limit)
        assert "\ufffd" not in text.partition("wide.txt")[2]
    assert "caf\ufffd and more" in text


def test_diffs_leave_out_caches_and_libraries(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("src/__pycache__/x.pyc", b"\0")
    repo.write("node_modules/left/pad.js", "pad")
    repo.write("src/x.py", "work\n")
    text = diff(repo.found(), base.files, index.tree().files, 5000)
    assert text.count("diff --git") == 1
    assert "src/x.py" in text
    assert b"pad.js" in b"".join(patch(repo.found(), base.files, index.tree().files))


def test_diffs_leave_out_run_data(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write(".ralph/runs/1/journal.ndjson", "secret")
    repo.write("a.txt", "changed\n")
    assert ".ralph" not in diff(repo.found(), base.files, index.tree().files, 5000)


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
def test_the_users_settings_change_nothing(repo: Any, setting: str) -> None:
    repo.config(*setting.split("="))
    index = repo.index()
    base = index.tree()
    repo.write("é.txt", "one\n")
    assert "\n--- /dev/null\n+++ b/é.txt\n@@ -0,0 +1 @@\n+one\n" in diff(
        repo.found(), base.files, index.tree().files, 5000
    )


def test_a_diff_runs_no_textconv_program(repo: Any) -> None:
    repo.config("diff.odd.textconv", "echo converted; false")
    repo.config("diff.odd.command", "echo external; false")
    repo.write(".gitattributes", "*.txt diff=odd\n")
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "changed\n")
    assert "-one\n+changed\n" in diff(repo.found(), base.files, index.tree().files, 5000)


def test_changed_files_are_listed_with_their_line_counts(repo: Any) -> None:
    index = repo.index()
    base = index.tree()
    repo.write("a.txt", "one\ntwo\nthree\n")
    repo.write(b"odd\n\xff\tname", "x\ny\n")
    repo.write("image.bin", b"\0")
    (repo.path / "folder/b.txt").unlink()
    (repo.path / "folder/b.txt").symlink_to("elsewhere")
    (repo.path / ".gitignore").unlink()
    assert changed_files(repo.found(), base.files, index.tree().files) == [
        FileChange("D", ".gitignore", 0, 1),
        FileChange("M", "a.txt", 2, 0),
        FileChange("T", "folder/b.txt", 1, 1),
        FileChange("A", "image.bin"),
        FileChange("A", "odd\n\\xff\tname", 2, 0),
    ]
    assert changed_files(repo.found(), base.files, base.files) == []


def test_a_diff_of_an_unknown_state_is_an_error(repo: Any) -> None:
    with pytest.raises(UserError, match="git diff-tree failed: "):
        diff(repo.found(), "1" * 40, repo.index().tree().files, 5000)
    with pytest.raises(UserError, match="git diff-tree failed: "):
        changed_files(repo.found(), "1" * 40, repo.index().tree().files)


def test_diffs_work_in_a_repository_without_a_commit(empty: Any) -> None:
    index = empty.index()
    base = index.tree()
    empty.write("a.txt", "one\n")
    assert "+one" in diff(empty.found(), base.files, index.tree().files, 5000)
