"""The gate merges exactly what it checked, and git's history alone says what is merged."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.backlog.conftest import LIST, TARGET, Lab

from ralph.backlog.gate import MergeRequest
from ralph.backlog.task_worktrees import clear_leftovers
from ralph.core.backlog import Board, FailedCheck
from ralph.errors import UserError
from ralph.git import locks, merging, worktrees
from ralph.git import remote as remote_module
from ralph.git.client import Git, git_at
from ralph.git.merging import changed_files, merge_commits, move_target, refuse_old_git, unmerged
from ralph.git.remote import Remote, push_settings, read_settings
from ralph.git.worktrees import Worktree, checked_out_at


def test_exactly_the_checked_commit_is_merged(lab: Lab) -> None:
    seen = []

    def check(command: str) -> FailedCheck | None:
        seen.append(lab.git("rev-parse", "HEAD", cwd=lab.tree))
        return None

    branch = lab.branch("T1", {"a": "1\n"})
    verdict = lab.gate("true", check=check).merge(MergeRequest(branches=(branch,)))
    assert verdict.merged == ("T1",)
    assert seen == [verdict.commit] == [lab.git("rev-parse", TARGET)]
    assert lab.git("log", "-1", "--format=%P", TARGET).split() == [lab.git("rev-parse", "main"), branch.tip]


def test_the_merge_commit_contains_the_tick(lab: Lab) -> None:
    lab.merge(lab.branch("T1", {"a": "1\n"}))
    assert lab.show("T.md") == LIST.replace("[ ] T1", "[x] T1").rstrip("\n")
    assert "Ralph-Task: T1" in lab.git("log", "-1", "--format=%B", TARGET)


def test_a_batch_is_merged_as_one_commit_with_several_parents(lab: Lab) -> None:
    branches = [lab.branch(f"T{n}", {f"f{n}": "x\n"}) for n in (1, 2, 3)]
    assert lab.merge(*branches).merged == ("T1", "T2", "T3")
    assert len(lab.commits()) == 2
    assert lab.git("log", "-1", "--format=%P", TARGET).split()[1:] == [branch.tip for branch in branches]
    assert lab.show("T.md").count("[x]") == 3


@pytest.fixture(params=["sha1", "sha256"])
def names(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with both object formats of git."""
    monkeypatch.setenv("GIT_DEFAULT_HASH", request.param)


def test_edits_of_the_backlog_and_of_settings_are_left_out_and_never_conflict(names: None, lab: Lab) -> None:
    mine = {"T.md": "# mine\n", ".ralph/settings.json": "{}", "a": "1\n"}
    one, two = lab.branch("T1", mine), lab.branch("T2", {"T.md": "", "b": "2\n"})
    assert lab.merge(one).merged == ("T1",)
    assert lab.merge(two).merged == ("T2",)
    assert lab.show("T.md") == LIST.replace("[ ] T1", "[x] T1").replace("[ ] T2", "[x] T2").rstrip("\n")
    assert lab.git("ls-tree", "-r", "--name-only", TARGET).split() == ["T.md", "a", "b", "hot"]


def test_a_conflict_names_the_files_and_does_not_move_the_target(lab: Lab) -> None:
    one, two = lab.branch("T1", {"hot": "one\n"}), lab.branch("T2", {"hot": "two\n"})
    lab.merge(one)
    before = lab.git("rev-parse", TARGET)
    verdict = lab.merge(two)
    assert verdict.merged == ()
    assert verdict.conflicts["T2"].files == ("hot",)
    assert "CONFLICT" in verdict.conflicts["T2"].message
    assert lab.git("rev-parse", TARGET) == before


def test_a_task_that_conflicts_only_within_the_batch_stays_ready(lab: Lab) -> None:
    one, two = lab.branch("T1", {"hot": "one\n"}), lab.branch("T2", {"hot": "two\n"})
    verdict = lab.merge(one, two)
    assert (verdict.merged, verdict.conflicts) == (("T1",), {})


def test_files_of_any_name_can_conflict(lab: Lab) -> None:
    name = 'a "b"\té\n'
    lab.merge(lab.branch("T1", {name: "1\n"}))
    verdict = lab.merge(lab.branch("T2", {name: "2\n"}, start="main"))
    assert verdict.conflicts["T2"].files == (name,)


def test_a_check_that_fails_on_a_single_task_runs_once_more(lab: Lab, tmp_path: Path) -> None:
    flaky = f"test -e {tmp_path}/seen || ! touch {tmp_path}/seen"
    assert lab.merge(lab.branch("T1", {"a": "1\n"}), checks=(flaky,)).merged == ("T1",)


def test_a_failing_batch_is_not_checked_again_and_not_merged(lab: Lab) -> None:
    branches = [lab.branch(f"T{n}", {f"f{n}": "x\n"}) for n in (1, 2)]
    verdict = lab.merge(*branches, checks=("! test -e f2",))
    assert (verdict.tried, verdict.merged) == (("T1", "T2"), ())
    assert verdict.red is not None
    assert lab.ran == ["! test -e f2"]
    assert len(lab.commits()) == 1


def test_a_failing_task_is_not_merged_and_the_verdict_says_what_failed(lab: Lab) -> None:
    verdict = lab.merge(lab.branch("T1", {"a": "1\n"}), checks=("echo why; ! test -e a",))
    assert verdict.red is not None
    assert (verdict.red.ending, verdict.red.output) == ("exit code 1", "why\n")
    assert (verdict.merged, verdict.stuck, len(lab.commits())) == ((), "", 1)


def test_a_check_that_fails_on_the_target_itself_stops_the_gate(lab: Lab) -> None:
    verdict = lab.merge(lab.branch("T1", {"a": "1\n"}), checks=("false",))
    assert (verdict.red, verdict.merged) == (None, ())
    assert verdict.stuck == f"`false` fails on {TARGET} itself (exit code 1)"


def test_a_tasks_own_check_runs_on_the_merged_tree(lab: Lab) -> None:
    verdict = lab.merge(lab.branch("T1", {"a": "1\n"}), own={"T1": ("test -e b",)})
    assert verdict.red is not None
    assert lab.ran == ["true", "test -e b", "test -e b"]
    assert lab.merge(lab.branch("T2", {"b": "1\n"}), own={"T2": ("test -e b",)}).merged == ("T2",)


def test_each_check_sees_exactly_the_merged_files(lab: Lab) -> None:
    checks = ("echo spoilt > hot; touch new", "grep -q line hot && ! test -e new")
    assert lab.merge(lab.branch("T1", {"a": "1\n"}), checks=checks).merged == ("T1",)


MEDDLING = {
    "commits": "echo spoilt > hot; git -c user.name=x -c user.email=x@localhost commit -qam spoilt",
    "goes to another branch": "git checkout -q -b elsewhere; git rm -q hot; echo new > new; git add new",
    "tells git not to look": "git update-index --assume-unchanged hot; echo spoilt > hot",
    "tells git that it is left out": "git update-index --skip-worktree hot; rm hot",
    "tells git to ignore what it leaves": "echo '*' > .gitignore; echo new > new",
}


@pytest.mark.parametrize("how", MEDDLING)
def test_each_check_sees_exactly_the_merged_files_even_if_one_changes_git_state(lab: Lab, how: str) -> None:
    exact = "grep -q line hot && ! test -e new"
    checks = (MEDDLING[how], exact, MEDDLING[how])
    assert lab.merge(lab.branch("T1", {"a": "1\n"}), checks=checks).merged == ("T1",)
    assert lab.merge(lab.branch("T2", {"b": "1\n"}), checks=(exact,)).merged == ("T2",)


ANOTHER = {
    "the user's tree": "printf 'gitdir: %s\\n' {repo}/.git > .git",
    "another tree of the user's": "printf 'gitdir: %s\\n' {repo}/.git/worktrees/mine > .git",
    "a new repository": "rm .git; git init -q",
    "none": "rm .git",
    "a link": 'here=$PWD; cd /; rm -r "$here"; ln -s {repo} "$here"',
}


@pytest.mark.parametrize("where", ANOTHER)
def test_a_check_cannot_replace_the_gates_worktree_by_another(lab: Lab, where: str) -> None:
    mine = lab.path.parent / "mine"
    lab.git("worktree", "add", "-q", "-b", "mine", str(mine))
    for tree in (lab.path, mine):
        (tree / "staged").write_text("mine\n")
        lab.git("add", "staged", cwd=tree)

    def of_the_user() -> list[str]:
        asked = (("symbolic-ref", "HEAD"), ("rev-parse", "HEAD"), ("status", "--porcelain"))
        return [lab.git(*words, cwd=tree) for words in asked for tree in (lab.path, mine)]

    before, leads = of_the_user(), ANOTHER[where].format(repo=lab.path)
    assert lab.merge(lab.branch("T1", {"a": "1\n"}), checks=(leads,)).merged == ("T1",)
    with suppress(UserError):  # a worktree that can't be used
        lab.merge(lab.branch("T2", {"b": "1\n"}), checks=(leads, "true"))
    assert lab.merge(lab.branch("T3", {"c": "1\n"}), checks=("grep -q line hot",)).merged == ("T3",)
    subprocess.run(("sh", "-c", leads), cwd=lab.tree, check=True)
    clear_leftovers(lab.order(), lab.found(), Board())
    assert of_the_user() == before
    assert not os.path.lexists(lab.tree)


def test_the_lock_in_the_gates_worktree_survives_a_check_out(lab: Lab) -> None:
    """The lock file in `.ralph` is not in git, but must not be deleted: a process may hold the lock."""
    (lab.path / ".ralph").mkdir()
    (lab.path / ".ralph" / "settings.json").write_text("{}")
    lab.git("add", "-A")
    lab.git("commit", "-qm", "settings")
    lab.git("update-ref", f"refs/heads/{TARGET}", "HEAD")
    checks = ("echo '*' > .ralph/.gitignore; touch .ralph/lock", "test -e .ralph/lock")
    assert lab.merge(lab.branch("T1", {"a": "1\n"}), checks=checks).merged == ("T1",)


def test_after_a_kill_during_a_check_the_gate_starts_with_exact_files(lab: Lab) -> None:
    def killed(command: str) -> FailedCheck | None:
        subprocess.run(("sh", "-c", MEDDLING["tells git not to look"]), cwd=lab.tree, check=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.gate("true", check=killed).merge(MergeRequest(branches=(lab.branch("T1", {"a": "1\n"}),)))
    assert lab.merge(lab.branch("T2", {"b": "1\n"}), checks=("grep -q line hot",)).merged == ("T2",)


def test_changed_attributes_apply_to_all_checked_files(lab: Lab) -> None:
    """A check-out rewrites only files that differ between commits, but changed attributes apply to all files."""
    lab.merge(lab.branch("T1", {"a": "1\n"}))
    verdict = lab.merge(lab.branch("T2", {".gitattributes": "hot eol=crlf\n"}), checks=("! grep -q '\r$' hot",))
    assert verdict.red is not None


def test_ignored_files_stay_in_the_gates_worktree(lab: Lab) -> None:
    first = lab.branch("T1", {".gitignore": "cache\n", "a": "1\n"})
    assert lab.merge(first, checks=("touch cache",)).merged == ("T1",)
    assert lab.merge(lab.branch("T2", {"b": "1\n"}), checks=("test -e cache",)).merged == ("T2",)


def test_a_task_without_changes_is_reported_as_empty(lab: Lab) -> None:
    verdict = lab.merge(lab.branch("T1", {}), lab.branch("T2", {"T.md": "ticked by the agent\n"}))
    assert (verdict.empty, verdict.merged, len(lab.commits())) == (("T1", "T2"), (), 1)


def test_conflict_markers_are_not_merged(lab: Lab) -> None:
    marked = "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> other\n"
    verdict = lab.merge(lab.branch("T1", {"hot": marked}), conflicted={"T1": ("hot",)})
    assert verdict.red is not None
    assert "hot" in verdict.red.ending


def test_a_merged_task_is_not_merged_again(lab: Lab) -> None:
    branch = lab.branch("T1", {"a": "1\n"})
    lab.merge(branch)
    before = lab.commits()
    assert lab.merge(branch).merged == ("T1",)
    assert lab.commits() == before


def test_a_target_that_moves_during_the_checks_is_merged_with(lab: Lab) -> None:
    branch, other = lab.branch("T1", {"a": "1\n"}), lab.branch("T2", {"b": "1\n"})
    moved: list[str] = []

    def check(command: str) -> FailedCheck | None:
        if not moved:
            moved.append(lab.git("update-ref", f"refs/heads/{TARGET}", other.tip) or other.tip)
        return None

    verdict = lab.gate("true", check=check).merge(MergeRequest(branches=(branch,)))
    assert verdict.merged == ("T1",)
    assert lab.show("b") == "1"
    assert lab.git("rev-parse", f"{TARGET}^1") == other.tip


def test_nothing_is_merged_onto_a_target_that_was_moved_to_a_failing_commit(lab: Lab) -> None:
    passed, branch, bad = lab.git("rev-parse", TARGET), lab.branch("T1", {"a": "1\n"}), lab.branch("T2", {"bad": ""})
    lab.git("update-ref", f"refs/heads/{TARGET}", bad.tip)
    verdict = lab.merge(branch, checks=("! test -e bad",), passed=passed)
    assert (verdict.merged, verdict.red) == ((), None)
    assert f"{TARGET} was moved by someone else" in verdict.stuck
    assert passed[:12] in verdict.stuck


def test_a_branch_that_is_checked_out_is_never_moved(lab: Lab, tmp_path: Path) -> None:
    branch = lab.branch("T1", {"a": "1\n"})
    lab.git("worktree", "add", "-q", str(tmp_path / "mine"), TARGET)
    assert checked_out_at(lab.found(), TARGET) == str(tmp_path / "mine")
    verdict = lab.merge(branch)
    assert "is checked out in" in verdict.stuck
    assert len(lab.commits()) == 1


def test_a_target_that_an_agent_made_a_symbolic_ref_does_not_move_its_branch(lab: Lab) -> None:
    branch, mine = lab.branch("T1", {"a": "1\n"}), lab.git("rev-parse", "HEAD")
    lab.git("symbolic-ref", f"refs/heads/{TARGET}", lab.git("symbolic-ref", "HEAD"))
    assert lab.merge(branch).merged == ("T1",)
    assert lab.git("rev-parse", "HEAD") == mine
    assert lab.show("a") == "1"


def test_a_stale_lock_is_removed_and_a_lost_race_is_reported(lab: Lab) -> None:
    """Git's exit code is the same; the target's commit tells them apart."""
    branch, ref = lab.branch("T1", {"a": "1\n"}), f"refs/heads/{TARGET}"
    base = lab.git("rev-parse", TARGET)
    lock = lab.path / ".git" / f"{ref}.lock"
    lock.touch()
    os.utime(lock, (time.time() - 60,) * 2)
    assert move_target(lab.found(), ref, branch.tip, base) == "moved"
    assert not lock.exists()
    assert move_target(lab.found(), ref, base, base) == "lost"


@pytest.fixture
def removed_when_awaited(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Return a function that creates a lock; it disappears as soon as ralph waits for it."""
    prepared, awaited = list[Path](), list[bool]()

    def prepare(path: Path) -> None:
        prepared.append(path)

        def sleep(_: float) -> None:
            awaited.append(path.exists())
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

        if not path.exists():
            path.touch()
        for room in (locks, remote_module):
            monkeypatch.setattr(room, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))

    yield prepare
    assert awaited[:1] == [True for _ in prepared], "ralph waited, and did not remove the lock itself"


def test_a_merge_does_not_follow_a_link_in_place_of_the_reflog(lab: Lab, tmp_path: Path) -> None:
    """The sandboxed agent of another task can write to the folder of these reflogs."""
    branch, ref = lab.branch("T1", {"a": "1\n"}), f"refs/heads/{TARGET}"
    mine, reflog = tmp_path / "mine", lab.path / ".git" / "logs" / ref
    mine.write_text("mine\n")
    reflog.unlink(missing_ok=True)
    reflog.parent.mkdir(parents=True, exist_ok=True)
    reflog.symlink_to(mine)
    assert move_target(lab.found(), ref, branch.tip, lab.git("rev-parse", TARGET)) == "moved"
    assert mine.read_text() == "mine\n"


def test_a_merge_waits_for_a_locked_ref(lab: Lab, removed_when_awaited: Callable[[Path], None]) -> None:
    branch, ref = lab.branch("T1", {"a": "1\n"}), f"refs/heads/{TARGET}"
    base = lab.git("rev-parse", TARGET)
    removed_when_awaited(lab.path / ".git" / f"{ref}.lock")
    assert move_target(lab.found(), ref, branch.tip, base) == "moved"


def test_a_lock_that_disappears_before_it_is_examined_counts_as_a_lock(
    lab: Lab,
) -> None:
    branch, ref = lab.branch("T1", {"a": "1\n"}), f"refs/heads/{TARGET}"
    base, lock = lab.git("rev-parse", TARGET), lab.path / ".git" / f"{ref}.lock"
    lock.touch()

    class GitThatUnlocks(Git):
        def resolve(self, name: str) -> str:
            lock.unlink()
            return super().resolve(name)

    found = lab.found()
    git = GitThatUnlocks(root=found.root, git_dir=found.git_dir)
    assert move_target(git, ref, branch.tip, base) == "moved"


def test_a_branch_named_like_a_folder_of_branches_is_in_the_way(lab: Lab) -> None:
    """`ralph/x` and `ralph/x/y` cannot both be branches."""
    lab.git("branch", "ralph/x")
    with pytest.raises(UserError, match="cannot move refs/heads/ralph/x/y"):
        move_target(lab.found(), "refs/heads/ralph/x/y", lab.git("rev-parse", "main"), "")


@pytest.fixture
def remote(lab: Lab, tmp_path: Path) -> Remote:
    lab.git("init", "-q", "--bare", str(tmp_path / "origin.git"))
    lab.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    lab.git("push", "-q", "origin", "main")
    lab.git("fetch", "-q", "origin")
    lab.target = "origin/main"
    return Remote("origin", "main")


def at_origin(lab: Lab, *words: str) -> str:
    return lab.git(*words, cwd=lab.path.parent / "origin.git")


def test_a_push_moves_the_remote_target_and_leaves_no_task_branch(lab: Lab, remote: Remote) -> None:
    branches = tuple(lab.branch(key, {key: "x\n"}) for key in ("T1", "T2"))
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=branches))
    assert verdict.merged == ("T1", "T2")
    assert at_origin(lab, "rev-parse", "main") == verdict.commit
    assert at_origin(lab, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert at_origin(lab, "show", "main:T.md").count("[x]") == 2


@pytest.mark.parametrize("denies", [False, True])
def test_the_push_that_merges_tasks_removes_their_branches(lab: Lab, remote: Remote, denies: bool) -> None:
    """If the server refuses to delete branches, they stay and point to the merge."""
    branches = tuple(lab.branch(key, {key: "x\n"}) for key in ("T1", "T2"))
    for branch in branches:
        lab.git("push", "-q", "origin", f"{branch.tip}:refs/heads/ralph/w/{branch.key}")
    at_origin(lab, "config", "receive.denyDeletes", str(denies).lower())
    log, hook = lab.path.parent / "pushes", lab.path.parent / "origin.git" / "hooks" / "post-receive"
    hook.write_text(f"#!/bin/sh\necho $(cut -d/ -f3-) >> {log}\n")
    hook.chmod(0o755)
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=branches))
    assert (verdict.merged, verdict.stuck) == (("T1", "T2"), "")
    assert log.read_text().splitlines() == ["main ralph/w/T1 ralph/w/T2"], "one push"
    left = at_origin(lab, "for-each-ref", "--format=%(objectname)", "refs/heads/ralph/").split()
    assert left == ([verdict.commit] * 2 if denies else [])


@pytest.mark.parametrize("is_left", [True, False])
def test_a_half_made_worktree_does_not_prevent_a_fetch(
    lab: Lab, remote: Remote, removed_when_awaited: Callable[[Path], None], is_left: bool
) -> None:
    """`git fetch` fails while the HEAD of any worktree is invalid. It becomes valid soon, or its process was killed."""
    half_made = lab.path / ".git" / "worktrees" / "new"
    half_made.mkdir(parents=True)
    for name, text in (("HEAD", "0" * 40), ("commondir", "../.."), ("gitdir", f"{lab.path.parent}/new/.git")):
        (half_made / name).write_text(f"{text}\n")
    moved = lab.git("commit-tree", "main^{tree}", "-p", "main", "-m", "x")
    at_origin(lab, "fetch", "-q", str(lab.path), f"{moved}:refs/heads/main")
    if is_left:
        os.utime(half_made / "HEAD", (0, 0))
    else:
        removed_when_awaited(half_made)
    remote.fetch(lab.found())
    assert lab.git("rev-parse", "origin/main") == moved
    assert not half_made.exists()


def test_the_first_push_of_a_task_sends_only_its_own_commits(lab: Lab, remote: Remote) -> None:
    """If git knew none of the remote's current commits here, it would send every file that was ever committed."""
    origin, other = lab.path.parent / "origin.git", lab.path.parent / "other"
    lab.git("clone", "-q", str(origin), str(other))
    lab.git("commit", "-q", "--allow-empty", "-m", "merged meanwhile", cwd=other)
    lab.git("push", "-q", "origin", "HEAD:main", cwd=other)
    mine = lab.branch("T1", {"a": "1\n"})
    at_origin(lab, "config", "receive.unpackLimit", "1")  # so that the pushed objects stay in one pack
    assert remote.push_branch(lab.found(), "ralph/w/T1", mine.tip, "").code == 0
    (pack,) = (origin / "objects" / "pack").glob("*.idx")
    sent = at_origin(lab, "verify-pack", "-v", str(pack))
    assert [word for word in ("commit", "tree", "blob") for line in sent.splitlines() if f" {word} " in line] == [
        "commit", "tree", "blob",
    ]  # fmt: skip


def test_a_push_of_someone_else_during_the_checks_is_merged_with(lab: Lab, remote: Remote, tmp_path: Path) -> None:
    other = lab.branch("T2", {"b": "1\n"})
    moved: list[bool] = []

    def check(command: str) -> FailedCheck | None:
        if not moved:
            moved.append(True)
            lab.git("push", "-q", str(tmp_path / "origin.git"), f"{other.tip}:refs/heads/main")
        return None

    gate = lab.gate("true", remote=remote, check=check)
    verdict = gate.merge(MergeRequest(branches=(lab.branch("T1", {"a": "1\n"}),)))
    assert verdict.merged == ("T1",)
    assert at_origin(lab, "rev-parse", "main^1") == other.tip


def test_a_remote_that_refuses_the_push_stops_the_gate(lab: Lab, remote: Remote, tmp_path: Path) -> None:
    hook = tmp_path / "origin.git" / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'main is protected' >&2\nexit 1\n")
    hook.chmod(0o755)
    branch = lab.branch("T1", {"a": "1\n"})
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,)))
    assert verdict.merged == ()
    assert "origin refuses main" in verdict.stuck
    assert lab.git("rev-parse", "ralph/w/T1") == branch.tip, "the work is kept"


def test_a_task_whose_remote_branch_was_moved_is_not_merged(lab: Lab, remote: Remote, tmp_path: Path) -> None:
    """The lease on the task's branch fails: another machine has the task now."""
    mine = lab.branch("T1", {"a": "1\n"})
    lab.git("push", "-q", "origin", f"{mine.tip}:refs/heads/ralph/w/T1")
    theirs = lab.branch("T2", {"a": "2\n"})

    def check(command: str) -> FailedCheck | None:
        lab.git("push", "-qf", str(tmp_path / "origin.git"), f"{theirs.tip}:refs/heads/ralph/w/T1")
        return None

    verdict = lab.gate("true", remote=remote, check=check).merge(MergeRequest(branches=(mine,)))
    assert verdict.merged == ()
    assert "somebody else works on it" in verdict.stuck
    assert at_origin(lab, "rev-parse", "main") == lab.git("rev-parse", "main")


def test_the_lease_on_a_task_branch_is_checked_at_the_end_of_the_push(lab: Lab, remote: Remote, tmp_path: Path) -> None:
    """The branch moves after git has read the refs of the server, just before the push."""
    mine, theirs = lab.branch("T1", {"a": "1\n"}), lab.branch("T2", {"a": "2\n"})
    lab.git("push", "-q", "origin", f"{mine.tip}:refs/heads/ralph/w/T1")
    hook = lab.path / ".git" / "hooks" / "pre-push"  # runs after git has read the refs of the server
    hook.write_text(f"#!/bin/sh\ngit --git-dir={tmp_path}/origin.git update-ref refs/heads/ralph/w/T1 {theirs.tip}\n")
    hook.chmod(0o755)
    lab.git("push", "-q", "--no-verify", "origin", f"{theirs.tip}:refs/heads/other")
    new = lab.git("commit-tree", f"{mine.tip}^{{tree}}", "-p", "origin/main", "-p", mine.tip, "-m", "x")
    answer = remote.push(lab.found(), new, lab.git("rev-parse", "origin/main"), {"ralph/w/T1": mine.tip})
    assert answer.code != 0
    assert at_origin(lab, "rev-parse", "main") == lab.git("rev-parse", "main"), "all or nothing"


def test_the_users_tree_index_and_branch_are_unchanged(lab: Lab) -> None:
    (lab.path / "hot").write_text("dirty\n")
    (lab.path / "mine").write_text("new\n")
    lab.git("add", "mine")
    before = lab.git("status", "--porcelain"), (lab.path / ".git" / "index").read_bytes(), lab.git("rev-parse", "main")
    lab.merge(lab.branch("T1", {"hot": "one\n"}))
    after = lab.git("status", "--porcelain"), (lab.path / ".git" / "index").read_bytes(), lab.git("rev-parse", "main")
    assert before == after


def test_changed_files_are_those_since_the_merge_base(lab: Lab) -> None:
    branch = lab.branch("T1", {"a": "1\n", "hot": None})
    lab.merge(lab.branch("T2", {"b": "1\n"}))
    assert {*changed_files(lab.found(), TARGET, branch.tip)} == {"a", "hot"}
    assert unmerged(lab.found(), TARGET, {branch.tip}) == {branch.tip}
    assert merge_commits(lab.found(), TARGET, branch.tip).conflict is None


def test_an_old_git_is_refused(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho git version 2.30.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent), prepend=os.pathsep)
    with pytest.raises(UserError, match=r"git 2.38 or newer; found git 2.30"):
        refuse_old_git(str(lab.path))


def killed_at(lab: Lab, request: MergeRequest, start: int, has_ended: bool) -> bool:
    """Merge in a child process that is killed when its git command number `start` starts, or has ended. Return False if
    the merge ends before that.
    """
    started, spawn = 0, os.posix_spawn

    def spawn_or_die(*words: Any, **how: Any) -> int:
        nonlocal started
        started += 1
        if started == start and not has_ended:
            os.kill(os.getpid(), signal.SIGKILL)
        pid = spawn(*words, **how)
        if started == start:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.kill(os.getpid(), signal.SIGKILL)
        return pid

    child = os.fork()
    if not child:
        code = 1
        try:
            os.posix_spawn = spawn_or_die
            code = 0 if lab.gate("test -e hot").merge(request).merged else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
@pytest.mark.parametrize("has_ended", [False, True], ids=["before a git", "behind a git"])
def test_a_merge_that_is_killed_at_any_git_command_is_repeated_safely(lab: Lab, has_ended: bool) -> None:
    """Each attempt is killed one git command later, and finds what the earlier ones left."""
    tasks = ["T1", "T2", "T3", "T4"]
    request = MergeRequest(branches=tuple(lab.branch(key, {key: "x\n"}) for key in tasks))
    (first,) = lab.commits()

    def merged() -> list[str]:
        return sorted(lab.git("log", "--first-parent", "--format=%(trailers:key=Ralph-Task,valueonly)", TARGET).split())

    kills = 0
    while killed_at(lab, request, kills + 1, has_ended):
        kills += 1
        if found := merged():
            assert found == tasks, "all of them or none, and each once"
            lab.git("update-ref", f"refs/heads/{TARGET}", first)
    assert kills > 10, "that many commands are started"
    assert merged() == tasks
    assert lab.show("T.md").count("[x]") == 4
    assert lab.git("fsck", "--no-progress", "--no-dangling") == ""
    (commit,) = lab.commits()[1:]
    assert merging.unmerged(lab.found(), commit, {f"{commit}^2"}) == set()


def test_the_gate_waits_for_a_lock_on_the_remote(
    lab: Lab, remote: Remote, removed_when_awaited: Callable[[Path], None]
) -> None:
    """A push can't tell a lock of a running push from that of a killed one."""
    branch = lab.branch("T1", {"T1": "x\n"})
    removed_when_awaited(lab.path.parent / "origin.git" / "refs" / "heads" / "main.lock")
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,)))
    assert verdict.merged == ("T1",)


def test_a_stale_lock_on_the_remote_stops_the_gate(lab: Lab, remote: Remote) -> None:
    branch = lab.branch("T1", {"T1": "x\n"})
    lock = lab.path.parent / "origin.git" / "refs" / "heads" / "main.lock"
    lock.touch()
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,)))
    assert "main.lock" in verdict.stuck or "lock" in verdict.stuck
    assert (verdict.merged, verdict.red, verdict.conflicts) == ((), None, {})
    lock.unlink()
    assert lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,))).merged == ("T1",)


def test_a_task_branch_that_was_taken_over_is_not_merged(lab: Lab, remote: Remote) -> None:
    """The push must also fail if the target itself has not moved."""
    branch, other = lab.branch("T1", {"T1": "x\n"}), lab.branch("T2", {"T2": "x\n"})
    lab.git("push", "-q", "origin", f"{branch.tip}:refs/heads/ralph/w/T1")
    base = at_origin(lab, "rev-parse", "main")
    made = lab.git("commit-tree", f"{branch.tip}^{{tree}}", "-p", base, "-p", branch.tip, "-m", "merge")
    lab.git("push", "-q", "-f", "origin", f"{other.tip}:refs/heads/ralph/w/T1")  # another machine has the task now
    answer = remote.push(lab.found(), made, base, {"ralph/w/T1": branch.tip})
    assert answer.code
    assert at_origin(lab, "rev-parse", "main") == base, "all or nothing"
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,)))
    assert "somebody else works on it" in verdict.stuck
    assert at_origin(lab, "rev-parse", "main") == base


@pytest.mark.parametrize("moved", ["the task", "the target"])
def test_a_push_that_stopped_half_way_on_the_remote_is_merged_once(lab: Lab, remote: Remote, moved: str) -> None:
    """A push that was killed between two refs has moved one of them."""
    branch = lab.branch("T1", {"T1": "x\n"})
    lab.git("push", "-q", "origin", f"{branch.tip}:refs/heads/ralph/w/T1")
    base = at_origin(lab, "rev-parse", "main")
    made = merging.make_candidate(lab.found(), base, [branch], lab.order().reserved_names(lab.found()), "w").commit
    name = "ralph/w/T1" if moved == "the task" else "main"
    lab.git("push", "-q", "-f", "origin", f"{made}:refs/heads/{name}")
    verdict = lab.gate("true", remote=remote).merge(MergeRequest(branches=(branch,)))
    assert (verdict.merged, verdict.stuck) == (("T1",), "")
    assert at_origin(lab, "rev-list", "--first-parent", "--count", f"{base}..main") == "1", "not twice"
    assert lab.ran == ([] if moved == "the target" else ["true"])
    assert unmerged(lab.found(), "origin/main", {branch.tip}) == set()


def test_a_killed_update_of_the_target_is_completed_or_repeated(lab: Lab) -> None:
    """If the ref was not moved, the update is repeated; neither exit code nor lock file say which it was."""
    branch, base = lab.branch("T1", {"T1": "x\n"}), lab.git("rev-parse", TARGET)
    lock = lab.path / ".git" / "refs" / "heads" / f"{TARGET}.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    assert move_target(lab.found(), f"refs/heads/{TARGET}", branch.tip, base) == "moved"
    lock.touch()  # killed after it wrote the ref, before it removed the lock
    assert move_target(lab.found(), f"refs/heads/{TARGET}", branch.tip, base) == "moved"
    assert lab.git("rev-parse", TARGET) == branch.tip
    lock.unlink()


def test_a_merge_of_the_target_that_was_killed_half_way_is_repeated(lab: Lab, tmp_path: Path) -> None:
    """The killed merge has written files of the target, but no index."""
    mine = lab.branch("T1", {"mine": "1\n"})
    lab.merge(lab.branch("T2", {"theirs": "2\n", "more/theirs": "2\n"}))
    tree = tmp_path / "tree"
    lab.git("worktree", "add", "-q", str(tree), "ralph/w/T1")
    (tree / "theirs").write_text("half of")
    assert worktrees.merge_target(git_at(str(tree)), lab.git("rev-parse", TARGET), ("T.md",)) == ()
    assert (tree / "theirs").read_text() == (tree / "more" / "theirs").read_text() == "2\n"
    assert unmerged(lab.found(), lab.git("rev-parse", "HEAD", cwd=tree), {mine.tip}) == set()
    assert lab.git("status", "--porcelain", cwd=tree) == ""


def test_a_merge_of_the_target_that_was_killed_after_its_commit_is_finished(lab: Lab, tmp_path: Path) -> None:
    """Its MERGE_HEAD is still there, which would break the next commit."""
    lab.branch("T1", {"mine": "1\n"})
    lab.merge(lab.branch("T2", {"theirs": "2\n"}))
    tree, target = tmp_path / "tree", lab.git("rev-parse", TARGET)
    lab.git("worktree", "add", "-q", str(tree), "ralph/w/T1")
    worktrees.merge_target(git_at(str(tree)), target, ("T.md",))
    (Path(lab.git("rev-parse", "--absolute-git-dir", cwd=tree)) / "MERGE_HEAD").write_text(f"{target}\n")
    assert worktrees.merge_target(git_at(str(tree)), target, ("T.md",)) == ()
    (tree / "mine").write_text("2\n")
    assert worktrees.commit_all(Worktree(str(tree), "ralph/w/T1", str(tree), lab.found()), "more")


def test_a_branch_is_deleted_despite_the_lock_of_a_killed_git(lab: Lab) -> None:
    tips = {f"ralph/w/{key}": lab.branch(key, {key: "x\n"}).tip for key in ("T1", "T2")}
    (lab.path / ".git" / "refs" / "heads" / "ralph" / "w" / "T1.lock").touch()
    merging.delete_branches(lab.found(), {**tips, "ralph/w/T3": tips["ralph/w/T1"]})
    assert lab.git("for-each-ref", "--format=%(refname)", "refs/heads/ralph/w/T*") == ""


def test_merging_the_target_runs_no_filter_of_a_nested_repository(lab: Lab, tmp_path: Path) -> None:
    """The agent can name filters in the settings of a nested repository."""
    proof, tree = tmp_path / "it-ran", tmp_path / "tree"
    lab.branch("T1", {"hot": "mine\n"})
    lab.merge(lab.branch("T2", {"hot": "theirs\n"}))
    lab.git("worktree", "add", "-q", str(tree), "ralph/w/T1")
    nested = tree / "nested"
    nested.mkdir()
    (nested / "f").write_text("x\n")
    lab.git("init", "-q", cwd=nested)
    lab.git("add", "f", cwd=nested)
    lab.git("-c", "user.name=x", "-c", "user.email=x@localhost", "commit", "-qm", "inside", cwd=nested)
    lab.git("add", "nested", cwd=tree)
    lab.git("commit", "-qm", "nested", cwd=tree)
    lab.git("config", "filter.evil.clean", f"sh -c 'touch {proof}; cat'", cwd=nested)
    (nested / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    os.utime(nested / "f", (0, 0))  # so that git must read the file, through the filter
    assert worktrees.merge_target(git_at(str(tree)), lab.git("rev-parse", TARGET), ("T.md",)) == ("hot",)
    assert not proof.exists()


def test_nothing_is_pushed_after_git_was_told_to_push_elsewhere(lab: Lab, remote: Remote, tmp_path: Path) -> None:
    before = push_settings(read_settings(lab.found()))
    branch = lab.branch("T1", {"a": "1\n"}, start="main")
    lab.git("init", "-q", "--bare", str(tmp_path / "theirs"))
    lab.git("config", "remote.origin.pushurl", str(tmp_path / "theirs"))
    request = MergeRequest(branches=(branch,), push_settings=before)
    with pytest.raises(UserError, match=r"remote\.origin\.pushurl"):
        lab.gate("true", remote=remote).merge(request)
    assert lab.git("for-each-ref", cwd=tmp_path / "theirs") == ""
