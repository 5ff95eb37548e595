"""`ralph work` with a full disk, a sandbox, stale locks and an edited order: nothing is lost."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import which

import pytest
from tests.backlog.works import ONE, Works, left
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def tiny(tmp_path: Path, environment: dict[str, str], agent: Callable[..., str], warm: Warm) -> Iterator[Works]:
    """A repository and ralph's state folder on a disk of four megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk")
    (disk / "repo").mkdir()
    environment["XDG_STATE_HOME"] = str(disk / "state")
    yield Works(disk / "repo", environment, agent, warm)
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("free", [0, 120, 350])
def test_a_full_disk_loses_no_finished_work(tiny: Works, free: int, eventually: Callable[..., None]) -> None:
    tiny.todo("".join(f"- [ ] T{n} Make\n" for n in range(4)))
    tiny.script('head -c 20000 /dev/urandom > "$key.bin"; echo COMPLETE')
    disk = os.statvfs(tiny.folder)
    ballast = tiny.folder.parent / "ballast"
    ballast.write_bytes(bytes(disk.f_bavail * disk.f_bsize - free * 1024))
    full = tiny.work("-j", "2")
    assert full.returncode in (1, 2), full.stderr
    assert "Traceback" not in full.stderr
    said = (
        "No space left",
        "unable to write",
        "couldn't write",
        "Out of diskspace",
    )  # messages of ralph and of git
    assert any(words in full.stderr for words in said), full.stderr
    eventually(lambda: not left(tiny))
    ballast.unlink()
    status = tiny.run("work", "status", "--json")
    for row in map(json.loads, status.stdout.splitlines()):
        if row["state"] == "parked":
            assert tiny.run("work", "retry", row["key"]).returncode == 0
    again = tiny.run("resume") if status.stdout else tiny.work("-j", "2")
    assert again.returncode == 0, f"{full.stderr}\n{again.stderr}"
    assert sorted(tiny.merged()) == [f"T{n}" for n in range(4)]
    assert tiny.git("fsck", "--no-progress", "--no-dangling") == ""


def test_the_agents_of_a_backlog_can_be_sandboxed(works: Works, agent: Callable[..., str], bubblewrap: str) -> None:
    agent(
        """
        key=$(printf '%s\\n' "$PROMPT" | sed -n 's/^\\(T[0-9]*\\) .*/\\1/p' | head -1)
        echo out > "$HOME/outside"; echo out > "$REPOSITORY/outside"; rm -rf "$REPOSITORY/hot"
        test -e "$HOME/secret" && echo seen > "$key.txt" || echo hidden > "$key.txt"
        echo COMPLETE
        """,
        "claude",
    )
    home = Path(works.env["HOME"])
    (home / "secret").write_text("mine\n")
    works.env["REPOSITORY"] = str(works.folder)
    done = works.run("work", "TASKS.md", "-j", "2", "--check", "true", "--sandbox", "--agent", "claude")
    assert done.returncode == 0, done.stderr
    assert [works.show(f"T{n}.txt") for n in (1, 2)] == ["hidden"] * 2
    assert not (home / "outside").exists()
    assert not (works.folder / "outside").exists()
    assert (works.folder / "hot").read_text() == "line\n"


def test_a_stale_lock_of_packed_refs_is_removed(works: Works) -> None:
    lock = works.folder / ".git" / "packed-refs.lock"
    lock.touch()
    os.utime(lock, (1_000_000_000, 1_000_000_000))
    works.todo(ONE)
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert not lock.exists()
    assert works.git("branch", "--list", "--format=%(refname:short)").splitlines() == ["main", works.target]


def test_events_keep_their_numbers_after_a_killed_git(works: Works) -> None:
    mine = Path(works.env["HOME"]) / "bin" / "git"
    dies = '[ -e "$HOME/died" ] || { touch "$HOME/died"; kill -9 $$; }'
    mine.write_text(f'#!/bin/sh\ncase "$*" in *"worktree add"*" -b "*) {dies};; esac\nexec {which("git")} "$@"\n')
    mine.chmod(0o755)
    done = works.work("-j", "1")
    assert done.returncode == 0, done.stderr
    assert (mine.parent.parent / "died").exists()
    for journal in works.folder.glob(".ralph/runs/*/journal.ndjson"):
        numbers = [json.loads(line)["seq"] for line in journal.read_text().splitlines()]
        assert numbers == [*range(1, len(numbers) + 1)]


@pytest.mark.parametrize("deed", ["sed -i 's/test ! -e T2.txt/true/g' {}/work.json", "rm -f {}/*.json"])
def test_editing_the_order_in_the_workspace_changes_no_check(works: Works, deed: str) -> None:
    """The gate, other tasks and `ralph resume` do not read this copy."""
    forge = deed.format(f"{works.folder}/.ralph/runs/*") + '; touch "$key.txt"; echo COMPLETE'
    works.script(forge)
    done = works.work("-j", "1", "-m", "1", checks=("test ! -e T2.txt",))
    assert done.returncode == 1, done.stderr
    assert "T2" not in works.merged()
    works.run("work", "retry", "T2")
    works.run("resume")
    assert "T2" not in works.merged()
