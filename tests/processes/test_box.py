"""What a program in the box sees, as tables: nothing here needs bubblewrap."""

import os
from itertools import pairwise

import pytest

from ralph.processes.box import (
    MARK,
    GitFolders,
    GuardedFolder,
    Mount,
    Surroundings,
    environment,
    folders,
    is_inside,
    places,
    root_of,
    words,
)

HOME, WORKSPACE, GIT = "/home/ann", "/home/ann/work", "/home/ann/work/.git"
FOLDERS = {"/etc/ssl/private", "/home/ann/work/secrets"}
PLAIN = Surroundings(
    workspace=WORKSPACE,
    home=HOME,
    private_home="/state/home",
    private_tmp="/var/box-tmp",
    hidden=("/home", "/run"),
    repository=GitFolders(
        top=WORKSPACE, own=GIT, common=GIT, kept=(GuardedFolder(GIT, ("config", "refs/ralph"), ("commondir",)),)
    ),
    kept=(GuardedFolder(f"{WORKSPACE}/.ralph", ("runs", "lock"), ("settings.json",)),),
)
LINKED = GitFolders(
    top=WORKSPACE,
    own="/repo/.git/worktrees/one",
    common="/repo/.git",
    kept=(GuardedFolder("/repo/.git/worktrees/one", ("commondir", "gitdir")),),
    branch_folder="refs/heads/ralph",
)


def seen(around: Surroundings) -> dict[str, tuple[str, str]]:
    return {place.path: (place.how, place.source) for place in places(around, FOLDERS.__contains__)}


def test_a_workspace_in_a_repository() -> None:
    assert [place.words() for place in places(PLAIN, FOLDERS.__contains__)] == [
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


def replaced(**more: object) -> Surroundings:
    from msgspec.structs import replace

    return replace(PLAIN, **more)


@pytest.mark.parametrize(
    ("around", "path", "expected"),
    [
        (replaced(shown=("/home/ann/.nvm",)), "/home/ann/.nvm", ("read", "")),
        (replaced(shown=("/usr/local",)), "/usr/local", None),  # seen anyway
        (replaced(shown=("/home/ann/.nvm", "/home/ann/.nvm/bin")), "/home/ann/.nvm/bin", None),
        (replaced(aliases={"/home/ann/bin": "/home/ann/dot/bin"}), "/home/ann/bin", ("read", "/home/ann/dot/bin")),
        (replaced(home="/data/ann", aliases={HOME: "/state/home"}), HOME, ("write", "/state/home")),
        (replaced(blank=("/etc/shadow",)), "/etc/shadow", ("blank", "")),
        (replaced(blank=("/etc/ssl/private",)), "/etc/ssl/private", ("empty", "")),
        (replaced(blank=("/run/docker.sock",)), "/run/docker.sock", None),  # hidden with its folder
        (replaced(blank=("/home/ann/.socket",)), "/home/ann/.socket", None),
        (replaced(nothing=(f"{WORKSPACE}/.env",)), f"{WORKSPACE}/.env", ("blank", "")),
        (replaced(nothing=(f"{WORKSPACE}/secrets",)), f"{WORKSPACE}/secrets", ("empty", "")),
        (replaced(opened=("/data/cache",)), "/data/cache", ("write", "")),
        (replaced(opened=("/dev/nvidia0",)), "/dev/nvidia0", ("device", "")),
        (replaced(closed=(f"{WORKSPACE}/vendor",)), f"{WORKSPACE}/vendor", ("read", "")),
        (replaced(workspace="/tmp/w", repository=None), "/tmp/w", ("write", "")),
    ],
)
def test_how_a_path_looks(around: Surroundings, path: str, expected: tuple[str, str] | None) -> None:
    assert seen(around).get(path) == expected


def test_a_folder_between_cannot_be_moved_away_with_what_is_in_it() -> None:
    found = seen(replaced(closed=(f"{WORKSPACE}/a/b/c",)))
    assert found[f"{WORKSPACE}/a"] == found[f"{WORKSPACE}/a/b"] == ("write", "")
    outer = seen(replaced(opened=("/home/ann",), home="/root"))
    assert outer[WORKSPACE] == ("write", "")
    deeper = seen(replaced(opened=("/data",), workspace="/data/a/w", repository=None, kept=()))
    assert deeper["/data/a"] == ("write", "")


def test_of_what_its_worktrees_share_a_linked_one_writes_objects_and_its_branch() -> None:
    found = seen(replaced(repository=LINKED))
    assert {path: how for path, (how, _) in found.items() if path.startswith("/repo")} == {
        "/repo/.git/logs/refs/heads/ralph": "write",
        "/repo/.git/objects": "write",
        "/repo/.git/refs/heads/ralph": "write",
        "/repo/.git/worktrees/one": "write",
        "/repo/.git/worktrees/one/commondir": "read",
        "/repo/.git/worktrees/one/gitdir": "read",
    }
    assert found[f"{WORKSPACE}/.git"] == ("read", "")
    hidden = seen(replaced(repository=LINKED, hidden=("/home", "/repo")))
    assert hidden["/repo/.git"] == ("read", "")


def test_a_workspace_in_a_folder_of_its_repository_sees_the_rest_and_writes_the_repository() -> None:
    repository = GitFolders(top="/home/ann/all", own="/home/ann/all/.git", common="/home/ann/all/.git")
    found = seen(replaced(workspace="/home/ann/all/part", repository=repository, kept=()))
    assert found["/home/ann/all"] == ("read", "")
    assert found["/home/ann/all/part"] == found["/home/ann/all/.git"] == ("write", "")


def test_what_must_be_there_before() -> None:
    assert list(folders(PLAIN)) == [
        f"{GIT}/refs/ralph",
        f"{WORKSPACE}/.ralph/runs",
        f"{WORKSPACE}/.ralph/hook",
    ]
    assert "/repo/.git/logs/refs/heads/ralph" in list(folders(replaced(repository=LINKED)))


def test_the_walls() -> None:
    online = words("/usr/bin/bwrap", [Mount("/", "read")], "/w", is_online=True)
    assert online[0] == "/usr/bin/bwrap"
    assert online[-6:] == ("--ro-bind", "/", "/", "--chdir", "/w", "--")
    for wall in ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"):
        assert wall in online
    assert ("--cap-drop", "ALL") in pairwise(online)
    assert "--die-with-parent" in online
    assert "--new-session" in online
    assert "--unshare-net" not in online
    assert "--unshare-net" in words("bwrap", [], "/w", is_online=False)


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
        ("/home/ann/all/bin", {"/home/ann/all/lib"}, "/home/ann/all/bin"),  # the workspace is beside it
    ],
)
def test_what_is_shown_for_the_programs_in_a_folder(entry: str, exists: set[str], root: str) -> None:
    assert root_of(entry, HOME, ("/home/ann/all/work",), exists.__contains__) == root


@pytest.mark.parametrize(
    ("path", "inside"), [("/a/b", True), ("/a", True), ("/ab", False), ("/", False), ("/a/../b", True)]
)
def test_a_folder_holds_itself_and_what_lies_in_it(path: str, inside: bool) -> None:
    assert is_inside(path, ("/a",)) is inside


def test_the_environment_loses_the_session_and_gains_the_mark() -> None:
    env = {"SSH_AUTH_SOCK": "x", "DISPLAY": ":0", "TMPDIR": "/big", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "a.b"}
    found = environment(env, {"HTTPS_PROXY": "p"})
    assert found[MARK] == "1"
    assert (found["TMPDIR"], found["HTTPS_PROXY"], found["GIT_CONFIG_KEY_0"]) == ("/tmp", "p", "a.b")
    assert (found["GIT_CONFIG_COUNT"], found["GIT_CONFIG_KEY_1"], found["GIT_CONFIG_VALUE_1"]) == ("5", "gc.auto", "0")
    assert not {"SSH_AUTH_SOCK", "DISPLAY"} & set(found)
    assert "TMP" not in environment({}, {})


def test_nothing_here_looks_at_this_machine() -> None:
    assert os.path.realpath("/home/ann") == "/home/ann"  # nobody of this name is at home here
