"""A backlog that is edited while it runs: every tick ends up on disk and on the target, and accept never conflicts."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backlog.works import WAITING, Works, go

from ralph.backlog import backlog_source
from ralph.backlog.backlog_content import Format
from ralph.backlog.backlog_source import find_backlog

pytestmark = pytest.mark.timeout(120)

LIST = "# Tasks\n\n- [ ] T1 Make one\n"
MORE = LIST + "- [ ] T4 Make four\n"
ALL_DONE = MORE.replace("[ ]", "[x]")


@pytest.fixture
def works(works: Works) -> Works:
    """Return a repository whose backlog has one task."""
    works.todo(LIST)
    return works


def edit(works: Works, text: str = MORE) -> None:
    (works.folder / "TASKS.md").write_text(text)


def commit_edit(works: Works, text: str = MORE) -> None:
    edit(works, text)
    works.git("commit", "-qam", "my edit")


def on_disk(works: Works) -> str:
    return (works.folder / "TASKS.md").read_text()


def assert_accepted(works: Works, text: str) -> None:
    done = works.run("accept")
    assert done.returncode == 0, done.stderr
    assert on_disk(works) == works.show("TASKS.md", "HEAD") + "\n" == text
    assert works.git("status", "--porcelain") == ""
    assert works.work().stderr == "ralph: nothing to do: every task of TASKS.md is done\n"


def during_a_task(works: Works, change: Callable[[Works], None]) -> "subprocess.CompletedProcess[str]":
    works.script(WAITING)
    process = works.start("-j", "2")
    works.wait_for("task_started", key="T1")
    change(works)
    four = {"key": "T4", "title": "T4 Make four", "text": "T4 Make four", "place": "TASKS.md:4"}
    works.wait_for("task_listed", task=four)
    go(works)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_an_edit_before_the_start_is_ticked_on_disk_and_on_the_target(works: Works) -> None:
    edit(works)
    done = works.work("-j", "2")
    assert done.returncode == 0, done.stderr
    assert sorted(works.merged()) == ["T1", "T4"]
    assert on_disk(works) == works.show("TASKS.md") + "\n" == ALL_DONE
    assert_accepted(works, ALL_DONE)


@pytest.mark.parametrize("change", [edit, commit_edit])
def test_an_edit_during_a_task_is_ticked(works: Works, change: Callable[[Works], None]) -> None:
    done = during_a_task(works, change)
    assert done.returncode == 0, done.stderr
    assert works.show("TASKS.md") + "\n" == ALL_DONE
    if change is edit:
        assert on_disk(works) == ALL_DONE
    assert_accepted(works, ALL_DONE)


def test_a_committed_edit_with_ticks_can_be_merged_by_hand(works: Works) -> None:
    assert during_a_task(works, edit).returncode == 0
    works.git("commit", "-qam", "my edit, and ralph's ticks")
    works.git("merge", "-q", works.target)
    assert on_disk(works) == ALL_DONE


def test_a_merged_task_is_ticked_even_if_an_edit_removed_its_tick(works: Works) -> None:
    works.todo("- [ ] T1 Make one\n- [ ] T2 Make two\n  after: T1\n")
    works.script(f"case $key in T2) {WAITING};; esac; echo COMPLETE")
    process = works.start()
    works.wait_for("task_merged", key="T1")
    text = "# Mine\n\n- [ ] T1 Make one\n- [ ] T2 Make two\n  after: T1\n"
    edit(works, text)
    go(works)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert on_disk(works) == works.show("TASKS.md") + "\n" == text.replace("[ ]", "[x]")
    assert_accepted(works, text.replace("[ ]", "[x]"))


def test_an_edit_during_a_tick_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "T.md"
    file.write_text("- [ ] T1 One\n")
    source = find_backlog(str(file), tmp_path, None)
    format_ = backlog_source.FORMATS["boxes"]

    def tick_late(files: dict[str, bytes], keys: list[str]) -> dict[str, bytes]:
        if b"T2" not in file.read_bytes():
            file.write_text("- [ ] T1 One\n- [ ] T2 Two\n")  # the user saves at this very moment
        return format_.ticked(files, keys)

    monkeypatch.setitem(backlog_source.FORMATS, "boxes", Format(format_.read, tick_late))  # type: ignore[arg-type]
    source.tick_on_disk(["T1"])
    assert file.read_text() == "- [x] T1 One\n- [ ] T2 Two\n"


@pytest.mark.parametrize("change", [edit, commit_edit])
def test_an_edit_after_the_end_does_not_conflict_with_the_ticks(works: Works, change: Callable[..., None]) -> None:
    assert works.work().returncode == 0
    change(works)
    done = works.run("accept")
    assert done.returncode == 0, done.stderr
    ticked = LIST.replace("[ ]", "[x]") + "- [ ] T4 Make four\n"
    assert on_disk(works) == works.show("TASKS.md", "HEAD") + "\n" == ticked
    assert works.git("status", "--porcelain") == ""


def test_an_unedited_backlog_is_unchanged_until_its_run_is_accepted(works: Works) -> None:
    assert works.work().returncode == 0
    assert on_disk(works) == LIST
    assert works.git("status", "--porcelain") == ""
    target = works.git("rev-parse", works.target)
    assert_accepted(works, LIST.replace("[ ]", "[x]"))
    assert works.git("rev-parse", "HEAD") == target, "a fast-forward, as git would"
    assert (works.folder / "T1.txt").exists()


def test_accept_merges_a_backlog_and_says_what_to_do_next(works: Works) -> None:
    works.todo("- [ ] T1 One\n- [ ] bad1 Nothing\n")
    done = works.work()
    name = works.target.split("/")[1]
    assert done.stderr.rstrip().splitlines()[-1].endswith(f": ralph accept {name}")
    assert "ralph work retry bad1" in done.stderr
    (works.folder / "mine").write_text("x\n")
    works.git("add", "mine")
    works.git("commit", "-qm", "mine")
    accepted = works.run("accept", name)
    assert accepted.returncode == 0, accepted.stderr
    assert "1 of 2 tasks merged" in accepted.stdout
    assert (works.folder / "T1.txt").exists()
    assert works.run("accept", name).returncode == 2
    assert works.git("rev-parse", f"ralph/{name}/merged"), "it stays for what is parked"


def test_accept_refuses_failing_checks_and_conflicts_and_changes_nothing(works: Works) -> None:
    assert works.work(checks=("! test -e mine",)).returncode == 0
    (works.folder / "mine").write_text("x\n")
    works.git("add", "mine")
    works.git("commit", "-qm", "mine")
    head = works.git("rev-parse", "HEAD")
    refused = works.run("accept")
    assert refused.returncode == 1
    assert "! test -e mine" in refused.stderr
    works.git("rm", "-q", "mine")
    (works.folder / "T1.txt").write_text("mine\n")
    works.git("add", "T1.txt")
    works.git("commit", "-qm", "conflict")
    head = works.git("rev-parse", "HEAD")
    refused = works.run("accept")
    assert refused.returncode == 1
    assert "conflicts in T1.txt" in refused.stderr
    edit(works, LIST + "- [ ] T5 Five\n")
    works.git("rm", "-q", "T1.txt")
    works.git("commit", "-qm", "no conflict any more", "--", "T1.txt")
    head = works.git("rev-parse", "HEAD")
    (works.folder / "T1.txt").write_text("untracked and in the way\n")
    refused = works.run("accept")
    assert refused.returncode == 1, refused.stdout
    assert "T1.txt" in refused.stderr
    assert works.git("rev-parse", "HEAD") == head
    assert on_disk(works) == LIST + "- [ ] T5 Five\n"
    assert works.git("diff", "--cached", "--name-only") == ""


def test_a_discarded_backlog_run_can_be_restored(works: Works) -> None:
    works.todo("- [ ] T1 One\n- [ ] T2 Two\n  check: test -e never\n")
    assert works.work("--max-iterations", "1").returncode == 1
    tip = works.git("rev-parse", works.target)
    target = works.target
    done = works.run("discard")
    assert done.returncode == 0, done.stderr
    assert works.git("branch", "--list", "ralph/*") == ""
    assert "retry" not in works.run("show").stdout + works.run("work", "status").stdout, "it has no target any more"
    back = next(line for line in done.stdout.splitlines() if line.startswith(target))
    works.git(*back.partition("git ")[2].split())
    assert works.git("rev-parse", target) == tip
