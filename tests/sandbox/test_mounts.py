"""The table of mounts, and the errors if there is no sandbox. These tests don't need bubblewrap."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.sandbox.mounts import (
    IN_SANDBOX,
    GitFolders,
    GuardedFolder,
    Mount,
    SandboxView,
    bubblewrap_command,
    is_inside,
    mount_table,
    program_root,
    required_folders,
    sandbox_environment,
)
from ralph.sandbox.sandbox import explain_failure, find_bubblewrap

HOME, WORKSPACE, GIT = "/home/ann", "/home/ann/work", "/home/ann/work/.git"
FOLDERS = {"/etc/ssl/private", "/home/ann/work/secrets"}
PLAIN = SandboxView(
    workspace=WORKSPACE,
    home=HOME,
    private_home="/state/home",
    private_tmp="/var/box-tmp",
    hidden=("/home", "/run"),
    repository=GitFolders(
        top=WORKSPACE,
        own=GIT,
        common=GIT,
        guarded=(GuardedFolder(folder=GIT, read_only=("config", "refs/ralph"), absent=("commondir",)),),
    ),
    guarded=(GuardedFolder(folder=f"{WORKSPACE}/.ralph", read_only=("runs", "lock"), absent=("settings.json",)),),
)
LINKED = GitFolders(
    top=WORKSPACE,
    own="/repo/.git/worktrees/one",
    common="/repo/.git",
    guarded=(GuardedFolder(folder="/repo/.git/worktrees/one", read_only=("commondir", "gitdir")),),
    branch_folder="refs/heads/ralph",
)


def seen(around: SandboxView) -> dict[str, tuple[str, str]]:
    return {place.path: (place.access, place.source) for place in mount_table(around, FOLDERS.__contains__)}


def test_a_workspace_in_a_repository_has_these_mounts() -> None:
    assert [place.arguments() for place in mount_table(PLAIN, FOLDERS.__contains__)] == [
        ("--ro-bind", "/", "/"),
        ("--dev", "/dev"),
        ("--tmpfs", "/home"),
        ("--bind", "/state/home", "/home/ann"),
        ("--bind", WORKSPACE, WORKSPACE),
        ("--bind", GIT, GIT),
        ("--ro-bind", f"{GIT}/config", f"{GIT}/config"),
        ("--bind", f"{GIT}/refs", f"{GIT}/refs"),
        ("--ro-bind", f"{GIT}/refs/ralph", f"{GIT}/refs/ralph"),
        ("--bind", f"{WORKSPACE}/.ralph", f"{WORKSPACE}/.ralph"),
        ("--ro-bind", f"{WORKSPACE}/.ralph/lock", f"{WORKSPACE}/.ralph/lock"),
        ("--ro-bind", f"{WORKSPACE}/.ralph/runs", f"{WORKSPACE}/.ralph/runs"),
        ("--proc", "/proc"),
        ("--tmpfs", "/run"),
        ("--bind", "/var/box-tmp", "/tmp"),
    ]


def replaced(**more: object) -> SandboxView:
    from msgspec.structs import replace

    return replace(PLAIN, **more)


@pytest.mark.parametrize(
    ("around", "path", "expected"),
    [
        (replaced(shown=("/home/ann/.nvm",)), "/home/ann/.nvm", ("read", "")),
        (replaced(shown=("/usr/local",)), "/usr/local", None),  # visible anyway
        (replaced(shown=("/home/ann/.nvm", "/home/ann/.nvm/bin")), "/home/ann/.nvm/bin", None),
        (replaced(aliases={"/home/ann/bin": "/home/ann/dot/bin"}), "/home/ann/bin", ("read", "/home/ann/dot/bin")),
        (replaced(home="/data/ann", aliases={HOME: "/state/home"}), HOME, ("write", "/state/home")),
        (replaced(blank=("/etc/shadow",)), "/etc/shadow", ("blank", "")),
        (replaced(blank=("/etc/ssl/private",)), "/etc/ssl/private", ("empty", "")),
        (replaced(blank=("/run/docker.sock",)), "/run/docker.sock", None),  # hidden with its folder
        (replaced(blank=("/home/ann/.socket",)), "/home/ann/.socket", None),
        (replaced(user_hidden=(f"{WORKSPACE}/.env",)), f"{WORKSPACE}/.env", ("blank", "")),
        (replaced(user_hidden=(f"{WORKSPACE}/secrets",)), f"{WORKSPACE}/secrets", ("empty", "")),
        (replaced(writable=("/data/cache",)), "/data/cache", ("write", "")),
        (replaced(writable=("/dev/nvidia0",)), "/dev/nvidia0", ("device", "")),
        (replaced(read_only=(f"{WORKSPACE}/vendor",)), f"{WORKSPACE}/vendor", ("read", "")),
        (replaced(workspace="/tmp/w", repository=None), "/tmp/w", ("write", "")),
    ],
)
def test_each_path_is_mounted_as_the_view_says(
    around: SandboxView, path: str, expected: tuple[str, str] | None
) -> None:
    assert seen(around).get(path) == expected


def test_folders_around_a_mount_cannot_be_moved() -> None:
    found = seen(replaced(read_only=(f"{WORKSPACE}/a/b/c",)))
    assert found[f"{WORKSPACE}/a"] == found[f"{WORKSPACE}/a/b"] == ("write", "")
    outer = seen(replaced(writable=("/home/ann",), home="/root"))
    assert outer[WORKSPACE] == ("write", "")
    deeper = seen(replaced(writable=("/data",), workspace="/data/a/w", repository=None, guarded=()))
    assert deeper["/data/a"] == ("write", "")


def test_a_linked_worktree_may_write_objects_and_its_own_branch() -> None:
    found = seen(replaced(repository=LINKED))
    assert {path: how for path, (how, _) in found.items() if path.startswith("/repo")} == {
        "/repo/.git/logs/refs/heads/ralph": "empty",
        "/repo/.git/objects": "write",
        "/repo/.git/refs/heads/ralph": "write",
        "/repo/.git/worktrees/one": "write",
        "/repo/.git/worktrees/one/commondir": "read",
        "/repo/.git/worktrees/one/gitdir": "read",
    }
    assert found[f"{WORKSPACE}/.git"] == ("read", "")
    hidden = seen(replaced(repository=LINKED, hidden=("/home", "/repo")))
    assert hidden["/repo/.git"] == ("read", "")


def test_a_workspace_below_the_top_of_its_repository_can_commit() -> None:
    repository = GitFolders(top="/home/ann/all", own="/home/ann/all/.git", common="/home/ann/all/.git")
    found = seen(replaced(workspace="/home/ann/all/part", repository=repository, guarded=()))
    assert found["/home/ann/all"] == ("read", "")
    assert found["/home/ann/all/part"] == found["/home/ann/all/.git"] == ("write", "")


def test_folders_for_read_only_mounts_must_exist_before_the_start() -> None:
    assert list(required_folders(PLAIN)) == [
        f"{GIT}/refs/ralph",
        f"{WORKSPACE}/.ralph/runs",
        f"{WORKSPACE}/.ralph/hook",
    ]
    assert "/repo/.git/logs/refs/heads/ralph" in list(required_folders(replaced(repository=LINKED)))


def test_a_sandbox_has_its_own_namespaces_and_no_capabilities() -> None:
    online = bubblewrap_command("/usr/bin/bwrap", [Mount("/", "read")], "/w", is_online=True)
    assert online[0] == "/usr/bin/bwrap"
    assert online[-6:] == ("--ro-bind", "/", "/", "--chdir", "/w", "--")
    for wall in ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"):
        assert wall in online
    assert ("--cap-drop", "ALL") in pairwise(online)
    assert "--die-with-parent" in online
    assert "--new-session" in online
    assert "--unshare-net" not in online
    assert "--unshare-net" in bubblewrap_command("bwrap", [], "/w", is_online=False)


@pytest.mark.parametrize(
    ("entry", "exists", "root"),
    [
        ("/home/ann/.nvm/versions/v22/bin", {"/home/ann/.nvm/versions/v22/lib"}, "/home/ann/.nvm/versions/v22"),
        ("/home/ann/.pyenv/shims", {"/home/ann/.pyenv/versions"}, "/home/ann/.pyenv"),
        ("/home/ann/other/.venv/bin", {"/home/ann/other/.venv/pyvenv.cfg"}, "/home/ann/other/.venv"),
        ("/home/ann/bin", {"/home/ann/lib"}, "/home/ann/bin"),
        ("/home/ann/.local/bin", {"/home/ann/.local/share"}, "/home/ann/.local/bin"),
        ("/home/ann/.cargo/bin", {"/home/ann/.cargo/share"}, "/home/ann/.cargo/bin"),
        ("/home/ann/dotfiles/bin", set(), "/home/ann/dotfiles/bin"),
        ("/home/ann/tools", {"/home/ann/lib"}, "/home/ann/tools"),
        ("/home/bin", {"/home/lib"}, "/home/bin"),
        ("/home/ann/all/bin", {"/home/ann/all/lib"}, "/home/ann/all/bin"),  # next to the workspace
    ],
)
def test_programs_are_shown_with_their_libraries_but_no_shared_folder(entry: str, exists: set[str], root: str) -> None:
    assert program_root(entry, HOME, ("/home/ann/all/work",), exists.__contains__) == root


@pytest.mark.parametrize(
    ("path", "inside"), [("/a/b", True), ("/a", True), ("/ab", False), ("/", False), ("/a/../b", True)]
)
def test_is_inside_includes_the_folder_itself(path: str, inside: bool) -> None:
    assert is_inside(path, ("/a",)) is inside


def test_the_environment_inside_lacks_the_session_and_has_the_mark() -> None:
    env = {"SSH_AUTH_SOCK": "x", "DISPLAY": ":0", "TMPDIR": "/big", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b"}
    found = sandbox_environment(env, {"HTTPS_PROXY": "p"})
    assert found[IN_SANDBOX] == "1"
    assert (found["TMPDIR"], found["HTTPS_PROXY"], found["GIT_CONFIG_KEY_0"]) == ("/tmp", "p", "a.b")
    assert (found["GIT_CONFIG_COUNT"], found["GIT_CONFIG_KEY_1"], found["GIT_CONFIG_VALUE_1"]) == ("5", "gc.auto", "0")
    assert not {"SSH_AUTH_SOCK", "DISPLAY"} & set(found)
    assert "TMP" not in sandbox_environment({}, {})


def test_these_tests_do_not_depend_on_this_machine() -> None:
    assert os.path.realpath("/home/ann") == "/home/ann"  # there is no user of this name


@pytest.mark.parametrize(
    ("said", "machine", "message"),
    [
        ("bwrap: setting up uid map: Permission denied\n", {"has_apparmor": True}, "AppArmor"),
        ("bwrap: pivot_root: Operation not permitted", {"is_container": True}, "this container"),
        ("bwrap: Unknown option --unshare-cgroup", {}, "could not create a sandbox: Unknown option --unshare-cgroup"),
        ("sh: 1: cannot create /tmp/.probe: No space left on device", {"is_container": True}, "no room"),
        ("bwrap: Can't mount proc: Oh no", {}, "could not create a sandbox: Can't mount proc: Oh no"),
        ("", {}, "it printed nothing"),
    ],
)
def test_every_refusal_is_one_line_with_a_hint(said: str, machine: dict[str, bool], message: str) -> None:
    error = explain_failure(said, **machine)
    assert message in error.message
    assert error.hint
    assert "\n" not in error.advice


def test_a_bubblewrap_in_the_workspace_is_not_used(tmp_path: Path) -> None:
    for name in ("workspace", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bwrap").write_text("#!/bin/sh\n")
        (tmp_path / name / "bwrap").chmod(0o755)
    path = f"{tmp_path}/missing:{tmp_path}/workspace:{tmp_path}/elsewhere"
    assert find_bubblewrap({"PATH": path}, f"{tmp_path}/workspace") == f"{tmp_path}/elsewhere/bwrap"
    with pytest.raises(UserError, match="not installed"):
        find_bubblewrap({"PATH": f"{tmp_path}/workspace"}, f"{tmp_path}/workspace")
