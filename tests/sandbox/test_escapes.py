"""A table of attempts by an agent and by a check to escape from the sandbox, as an ordinary user and as root. One run
makes all attempts, and each test looks at the result of one."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree

import pytest
from tests.conftest import Result
from tests.sandbox.conftest import KEY, Ground, listening

from ralph.agents import module

# Attempts in `sh`: one has escaped if its last command succeeds. $OUT is a folder with more of the user's files.
ATTEMPTS = {
    "read a key": "grep -q BEGIN ~/.ssh/id_rsa",
    "read a key through a link in the workspace": "grep -q BEGIN to-key",
    "read a key through /proc": "grep -q BEGIN /proc/1/root$HOME/.ssh/id_rsa",
    "read a key through the first process's folder": "grep -rq BEGIN /proc/1/cwd/.ssh /proc/*/cwd/../.ssh",
    "read another file of the person's": "cat $OUT/private",
    "write another file of the person's": "echo x > $OUT/private",
    "write to a system folder": "touch /etc/x || touch /usr/x || touch /usr/local/bin/x || touch /opt/x || touch /x",
    "read what only root may": "cat /etc/shadow",
    "write a setting of the kernel": "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern",
    "make the machine do something": "echo h > /proc/sysrq-trigger",
    "write to a control group": "mkdir /sys/fs/cgroup/x || mkdir /sys/fs/cgroup/*/x",
    "see a process outside": "cat /proc/[0-9]*/comm | grep -qx sleep",
    "end a process outside": "kill -9 $OUTSIDE",
    "trace a process outside": "head -c 1 /proc/$OUTSIDE/mem || grep -q . /proc/$OUTSIDE/environ",
    "send a signal to everybody else's": "kill -0 $RALPH",
    "become root": "sudo -n true || su -c true",
    "mount anew": "mount -o remount,rw / || mount -o remount,rw,bind /etc",
    "take a place off": "umount .git/config || umount ~ || umount /tmp",
    "mount anew in a namespace": "unshare -Urm sh -c 'mount -o remount,rw,bind / / && touch /etc/x'",
    "take a place off in a namespace": "unshare -Urm sh -c 'umount .git/config && echo x >> .git/config'",
    "mount something over a place": "unshare -Urm sh -c 'mount -t tmpfs x .git/hooks' && touch .git/hooks/x",
    "change the root": "unshare -Ur chroot /proc/1/root cat $OUT/private",
    "a device": "ls /dev/sd* /dev/vd* /dev/nvme* /dev/kvm /dev/mem",
    "swap .git": "mv .git .git2",
    "remove .git": "rm -rf .git/config || rmdir .git",
    "write git's settings": "git config core.fsmonitor 'touch $HOME/x'",
    "write git's settings as a file": "echo '[core]' >> .git/config",
    "put another file in the place of git's settings": "cp .git/config c && mv c .git/config",
    "write a hook": "echo '#!/bin/sh' > .git/hooks/pre-commit",
    "write attributes": "echo '* filter=x' > .git/info/attributes",
    "swap refs": "mv .git/refs .git/refs2",
    "swap objects": "mv .git/objects .git/objects2",
    "write a checkpoint": "mkdir -p .git/refs/ralph/x && git rev-parse HEAD > .git/refs/ralph/x/1",
    "write a checkpoint with git": "git update-ref refs/ralph/x/1 HEAD",
    "delete the checkpoints": "rm -r .git/refs/ralph/*",
    "swap .ralph": "mv .ralph .ralph2",
    "write the journal": "echo x >> .ralph/runs/*/journal.ndjson",
    "remove the runs": "rm -rf .ralph/runs/*",
    "swap the runs": "mv .ralph/runs .ralph/runs2",
    "write the settings": "echo {} > .ralph/settings.json",
    "take the lock": "rm .ralph/lock || echo x > .ralph/lock",
    "a loop for another session": "touch .ralph/hook/s.json",
    "see ralph's records": "ls $HOME/.local/state/ralph",
    "a socket by path": "reach $OUT/service.sock",
    "a socket in the open": "reach $OPEN/service.sock",
    "a socket below /run": "reach /run/ralph-$MARK.sock",
    "a socket without a path": "reach @ralph-$MARK",
    "the bus and the keys of the session": '[ -n "$SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS$XDG_RUNTIME_DIR" ]',
    "change the agent's settings": "echo '{\"hooks\":{}}' > ~/.claude/settings.json",
    "swap the agent's settings": "cp ~/.claude/settings.json s && mv s ~/.claude/settings.json",
    "add a command for the agent": "touch ~/.claude/commands/x.md",
    "swap the agent's commands": "mv ~/.claude/commands ~/.claude/c2",
    "change the agent": "echo x >> $AGENT",
    "change a program on PATH": "touch ~/bin/git",
    "type on the terminal": 'python3 -c \'import fcntl,os; fcntl.ioctl(os.open("/dev/tty", 2), 0x5412, b"x")\'',
    "link to what may not be changed": "ln .git/config ./hard && echo x >> hard",
}
REACH = """
reach() { "$PYTHON" -I -S -c 'import socket, sys
name = sys.argv[1]
socket.socket(socket.AF_UNIX).connect(chr(0) + name[1:] if name[0] == "@" else name)' "$1"; }
"""
# Attempts that succeed inside but have no lasting effect outside.
PLANTED = """
echo gone >> ~/.bashrc
echo gone > ~/.profile
mkdir -p ~/.ssh && echo gone > ~/.ssh/authorized_keys
mkdir -p ~/.claude/hooks && echo gone > ~/.claude/hooks/evil
echo '{"mcpServers":{"evil":{"command":"evil"}}}' > ~/.claude.json
echo /elsewhere > .git/commondir
echo '[core]' > .git/config.worktree
echo /elsewhere > .git/objects/info/alternates
rm -f .git/logs/HEAD .git/COMMIT_EDITMSG .ralph/progress.md
ln -s ~/.bashrc .git/logs/HEAD
ln -s ~/.bashrc .git/COMMIT_EDITMSG
ln -s ~/.bashrc .ralph/progress.md
echo '{"yolo":true}' > .ralph/settings.local.json
(setsid sleep $MARK > /dev/null 2>&1 &)
mkdir -p nested && git init -q nested && git -C nested config core.fsmonitor "touch $HOME/pwned; false"
git -C nested commit -q --allow-empty -m x && git add nested
echo '* filter=evil diff=evil' > .gitattributes
"""


class Attacked:
    """A finished run whose agent, or whose check, has made every attempt."""

    def __init__(self, ground: Ground, result: Result, outcomes: dict[str, str], outside: int) -> None:
        self.ground, self.result, self.outcomes, self.outside = ground, result, outcomes, outside


@pytest.fixture(scope="session")
def left_in_the_open() -> Iterator[list[Path]]:
    """Folders that stay until all tests are over. A sandbox hides every socket that it finds, and cannot start if one
    of them disappears in that moment."""
    left: list[Path] = []
    yield left
    for place in left:
        rmtree(place)


@pytest.fixture(scope="module", params=["agent", "check"])
def attacked(request: pytest.FixtureRequest, ground: Ground, left_in_the_open: list[Path]) -> Iterator[Attacked]:
    other, open_place = ground.folder / "other", _in_the_open(ground, request.param)
    left_in_the_open.append(open_place)
    other.mkdir(exist_ok=True)
    (other / "private").write_text("private\n")
    ground.own(other)
    for folder in ("results", ".ralph"):
        (ground.workspace / folder).mkdir(exist_ok=True)
    (ground.workspace / ".ralph" / "settings.json").write_text("{}\n")
    sockets = [f"{other}/service.sock", f"{open_place}/service.sock", f"\0ralph-{ground.mark}"]
    sockets += [f"/run/ralph-{ground.mark}.sock"] if os.geteuid() == 0 else []
    with ExitStack() as stack:
        for path in sockets:
            stack.enter_context(listening(path, stays=path.startswith(str(open_place))))
        outside = stack.enter_context(subprocess.Popen(["sleep", ground.mark], user=ground.user))
        stack.callback(outside.kill)
        script = ground.workspace / f"attempts-{request.param}.sh"
        script.write_text(_script(ground, other, open_place, outside.pid))
        ground.own(ground.workspace)
        ground.claude(f"sh {script}" if request.param == "agent" else "true")
        check = f"sh {script}" if request.param == "check" else "true"
        words = ("run", "attack", "--agent", "claude", "--sandbox", "--check", check, "--json", "-m", "1", "--commit")
        result = ground.ralph(*words)
        yield Attacked(ground, result, _outcomes(ground.workspace, result), outside.pid)
    rmtree(ground.workspace / "results")


def _in_the_open(ground: Ground, name: str) -> Path:
    """A world-readable folder for a socket; only root can make one outside /var/tmp."""
    place = Path("/srv" if os.geteuid() == 0 else "/var/tmp") / f"ralph-{ground.mark}-{name}"
    place.mkdir()
    ground.own(place)
    return place


def _script(ground: Ground, other: Path, open_place: Path, outside: int) -> str:
    facts = {
        "OUT": other, "OPEN": open_place, "OUTSIDE": outside, "RALPH": os.getpid(), "MARK": ground.mark,
        "AGENT": ground.home / "bin" / "claude", "PYTHON": ground.python,
    }  # fmt: skip
    lines = [*(f"{name}='{value}'" for name, value in facts.items()), "export OUT OUTSIDE MARK", REACH]
    for number, attempt in enumerate(ATTEMPTS.values()):
        lines.append(
            f"if ( {attempt} ) > results/{number}.txt 2>&1; then echo escaped; else echo held; fi > results/{number}"
        )
    return "\n".join([*lines, PLANTED, "echo all > results/tried", "exit 0\n"])


def _outcomes(workspace: Path, result: Result) -> dict[str, str]:
    results = workspace / "results"
    assert (results / "tried").exists(), f"the attempts were not made: {result.out} {result.err}"
    return {name: (results / str(number)).read_text().strip() for number, name in enumerate(ATTEMPTS)}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_the_escape_fails(attacked: Attacked, attempt: str) -> None:
    assert attacked.outcomes[attempt] == "held"


def test_the_run_ends_as_done_in_spite_of_the_escapes(attacked: Attacked) -> None:
    assert attacked.result.code == 0, attacked.result.err
    assert attacked.result.one("run_finished")["outcome"] == "done"


def test_the_home_is_unchanged(attacked: Attacked) -> None:
    home = attacked.ground.home
    assert (home / ".bashrc").read_text() == "# mine\n"
    assert sorted(path.name for path in (home / ".ssh").iterdir()) == ["id_rsa"]
    assert (home / ".ssh" / "id_rsa").read_text() == KEY
    assert not (home / ".profile").exists()
    assert (home / ".claude.json").read_text() == "{}\n"
    assert (home / ".claude" / "settings.json").read_text() == "{}\n"
    assert not (home / "pwned").exists()


def test_planted_files_are_moved_away_and_reported(attacked: Attacked) -> None:
    ground = attacked.ground
    planted = [
        ground.workspace / ".git" / "commondir",
        ground.workspace / ".git" / "config.worktree",
        ground.workspace / ".git" / "objects" / "info" / "alternates",
        ground.workspace / ".ralph" / "settings.local.json",
        ground.workspace / ".git" / "COMMIT_EDITMSG",
        ground.workspace / ".git" / "logs" / "HEAD",
        ground.home / ".claude" / "hooks",
    ]
    told = " ".join(notice["text"] for notice in attacked.result.all("notice"))
    for path in planted:
        assert not path.is_symlink()
        assert not path.exists() or path.name in ("COMMIT_EDITMSG", "HEAD")  # git creates them later
        assert str(path) in told


def test_no_process_outlives_its_turn(attacked: Attacked) -> None:
    found = subprocess.run(
        ["pgrep", "-f", f"sleep {attacked.ground.mark}"], capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [str(attacked.outside)]


def test_no_empty_mount_point_is_left(attacked: Attacked) -> None:
    """bubblewrap creates an empty file or folder if a mount point doesn't exist."""
    ground = attacked.ground
    assert sorted(path.name for path in ground.home.iterdir() if path.name.startswith(".")) == [
        *(".bashrc", ".claude", ".claude.json", ".gitconfig", ".local", ".ssh")
    ]
    private = module("claude").SANDBOX.private  # folders that Claude Code makes itself
    assert {path.name for path in (ground.home / ".claude").iterdir()} == {"commands", "settings.json", *private}
    empty = [path for path in ground.workspace.rglob("*") if path.is_file() and not path.stat().st_size]
    assert [path for path in empty if not {"results", ".ralph"} & set(path.parts)] == []
