"""What git obeys in a git folder, and why a sandboxed agent cannot write it.

The names are those of gitrepository-layout(5). A name that git treats as an instruction is in one of the tables
`GUARDED`; the others are in `DATA`, with the reason why the agent may write them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conftest import Result
from tests.sandbox.conftest import Ground

READ_ONLY = "mounted read-only"
REMOVED = "did not exist: ralph moves it away after the turn, and reports it"
PRIVATE = "the agent has an empty folder there: nothing that it writes reaches the real one"

PROGRAMS = "names programs that git runs: filters, editors, a file system monitor"
ELSEWHERE = "leads git to another folder with settings, hooks and attributes"
HIDES = "changes what `git status` and `git add` see"

# In the main working tree, below .git.
GUARDED = {
    "config": (READ_ONLY, PROGRAMS),
    "config.worktree": (REMOVED, PROGRAMS),
    "commondir": (REMOVED, ELSEWHERE),
    "hooks/post-checkout": (READ_ONLY, "is a program that git runs"),
    "info/attributes": (READ_ONLY, "chooses the filters and merge drivers of files"),
    "info/exclude": (READ_ONLY, HIDES),
    "info/sparse-checkout": (READ_ONLY, "removes files from the working tree"),
    "info/grafts": (READ_ONLY, "changes the history that git shows"),
    "branches/topic": (READ_ONLY, "is the address of a remote: a push to a folder runs the hooks there"),
    "remotes/origin": (REMOVED, "is the address of a remote, as in `branches`"),
    "objects/info/alternates": (REMOVED, "adds objects from another folder"),
    "objects/info/http-alternates": (REMOVED, "makes git fetch objects from another address"),
    "refs/ralph/x/1": (READ_ONLY, "is ralph's checkpoint"),
    "modules/sub/config": (READ_ONLY, f"{PROGRAMS}: git enters submodules"),
    "modules/sub/hooks/post-checkout": (READ_ONLY, "is a program that git runs in the submodule"),
    "modules/sub/info/attributes": (READ_ONLY, "chooses the filters of files in the submodule"),
    "modules/sub/commondir": (REMOVED, ELSEWHERE),
    "modules/sub/config.worktree": (REMOVED, PROGRAMS),
    "modules/sub/worktrees/x/commondir": (PRIVATE, ELSEWHERE),
    "worktrees/other/commondir": (READ_ONLY, ELSEWHERE),
    "worktrees/other/config.worktree": (READ_ONLY, PROGRAMS),
    "worktrees/other/gitdir": (READ_ONLY, "names the folder that `git worktree` removes, moves and repairs"),
    "worktrees/other/HEAD": (READ_ONLY, "is the branch to which a commit in the other working tree goes"),
    "worktrees/other/locked": (READ_ONLY, "keeps `git worktree prune` away"),
    "worktrees/other/info/sparse-checkout": (READ_ONLY, "removes files from the other working tree"),
    "worktrees/other/modules/sub/config": (READ_ONLY, f"{PROGRAMS}: a worktree has submodules of its own"),
    "worktrees/new/commondir": (PRIVATE, ELSEWHERE),
    "worktrees/new/gitdir": (PRIVATE, "as in other/gitdir"),
    "worktrees/new/config.worktree": (PRIVATE, PROGRAMS),
}
# In a linked worktree, such as that of a run with --worktree: names in its own folder. All of GUARDED is read-only.
GUARDED_LINKED = {
    "commondir": (READ_ONLY, ELSEWHERE),
    "gitdir": (READ_ONLY, "names the folder that `git worktree` removes, moves and repairs"),
    "config.worktree": (REMOVED, PROGRAMS),
}
DATA = {
    "HEAD": "names a branch or a commit; only `links` would lead elsewhere, and ralph removes them",
    "refs/heads": "branches are the agent's work, and a sandbox does not protect them (guide)",
    "refs/tags": "as refs/heads",
    "refs/remotes": "as refs/heads: a fetch restores them",
    "refs/replace": "replaces objects, not settings; ralph's git ignores it, and objects are not protected (guide)",
    "packed-refs": "as refs/heads",
    "objects": "objects are not protected (guide); they name no program",
    "objects/[0-9a-f][0-9a-f]": "as objects",
    "objects/pack": "as objects",
    "objects/info": "alternates are guarded; the rest lists packs and commits",
    "objects/info/packs": "lists packs for old servers",
    "common": "holds nothing that git reads",
    "index": "lists files; the names of its extensions are no programs",
    "sharedindex": "a part of the index",
    "info/refs": "lists branches for old servers; read-only anyway",
    "logs": "is only written; links in it are removed",
    "logs/refs/heads": "as logs",
    "logs/refs/tags": "as logs",
    "rebase-merge": "the list of an unfinished rebase can name commands: the guide says to look at it first",
    "shallow": "cuts off history, and names no program",
    "modules": "a new submodule is a nested repository, which is the user's to look at (guide)",
    "worktrees": "each entry is guarded, present or not",
}
# gitrepository-layout(5) of git 2.39 to 2.51.
LAYOUT = (
    "objects", "objects/[0-9a-f][0-9a-f]", "objects/pack", "objects/info", "objects/info/packs",
    "objects/info/alternates", "objects/info/http-alternates", "refs/heads", "refs/tags", "refs/remotes",
    "refs/replace", "packed-refs", "HEAD", "config", "config.worktree", "branches", "hooks", "common", "index",
    "sharedindex", "info", "info/refs", "info/grafts", "info/exclude", "info/attributes", "info/sparse-checkout",
    "remotes", "logs", "logs/refs/heads", "logs/refs/tags", "shallow", "commondir", "modules", "worktrees",
    "worktrees/<id>/gitdir", "worktrees/<id>/locked", "worktrees/<id>/config.worktree",
)  # fmt: skip

WRITE = """
attempt() {
  { mkdir -p "${1%/*}" && echo evil > "$1"; } && return
  { rm -rf "$1" && echo evil > "$1"; } && return
  mv "${1%/*}" "${1%/*}-aside" && mkdir -p "${1%/*}" && echo evil > "$1"
}
"""


class Attacked(NamedTuple):
    """What the agent could write in a run, and the git folder before and after."""

    git_dir: Path
    before: dict[str, str]
    written: set[str]
    result: Result

    def after(self) -> dict[str, str]:
        return contents(self.git_dir)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file()
    }


def attack(names: dict[str, tuple[str, str]], folder: str) -> str:
    """Return a script that tries to write each name, and notes those that it could write."""
    lines = [f"git_dir=$({folder})", WRITE]
    lines += [f"attempt $git_dir/{name} 2> /dev/null && echo {name} >> written" for name in names]
    return "\n".join([*lines, "touch written", "true"])


@pytest.fixture(scope="module")
def prepared(ground: Ground) -> Ground:
    """Give the repository another linked worktree, both with a submodule."""
    git = ground.workspace / ".git"
    ground.git("worktree", "add", "-q", "-b", "other", str(ground.folder / "other"))
    for number, modules in enumerate((git / "modules", git / "worktrees" / "other" / "modules")):
        modules.mkdir()
        ground.own(modules)
        ground.git("init", "-q", f"--separate-git-dir={modules}/sub", str(ground.folder / f"sub-{number}"))
    (git / "branches").mkdir(exist_ok=True)
    ground.own(git)
    return ground


@pytest.fixture(scope="module")
def in_main(prepared: Ground) -> Iterator[Attacked]:
    ground, git_dir = prepared, prepared.workspace / ".git"
    ground.claude(attack(GUARDED, "git rev-parse --absolute-git-dir"))
    before = contents(git_dir)
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--json", "-m", "1")
    written = ground.workspace / "written"
    assert written.exists(), result.err
    yield Attacked(git_dir, before, set(written.read_text().split()), result)
    written.unlink()


@pytest.mark.parametrize("name", GUARDED)
def test_an_agent_in_the_main_working_tree_cannot_write_what_git_obeys(in_main: Attacked, name: str) -> None:
    way, _ = GUARDED[name]
    assert (name in in_main.written) == (way is not READ_ONLY)
    assert in_main.after().get(name) == in_main.before.get(name)
    if way is REMOVED:
        notices = " ".join(notice["text"] for notice in in_main.result.all("notice"))
        assert f"{in_main.git_dir}/{name.split('/')[0] if name.startswith('remotes') else name}" in notices


@pytest.fixture(scope="module")
def in_linked(prepared: Ground) -> tuple[Attacked, Attacked]:
    """The shared git folder, and the one of the run's own worktree."""
    ground, common = prepared, prepared.workspace / ".git"
    shared = attack(GUARDED, 'cd "$(git rev-parse --git-common-dir)" && pwd')
    own = attack(GUARDED_LINKED, "git rev-parse --absolute-git-dir")
    ground.claude(f"{shared}\nmv written shared\n{own}\nmv written own")
    before = contents(common)
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--worktree", "--json", "-m", "1")
    assert result.code == 0, result.err
    worktree = Path(result.one("run_finished")["worktree"])
    git_dir = Path((worktree / ".git").read_text().removeprefix("gitdir:").strip())
    shared_names, own_names = (set((worktree / name).read_text().split()) for name in ("shared", "own"))
    expected = {"commondir": "../..\n", "gitdir": f"{worktree}/.git\n"}
    return Attacked(common, before, shared_names, result), Attacked(git_dir, expected, own_names, result)


@pytest.mark.parametrize("name", GUARDED)
def test_an_agent_in_a_linked_worktree_cannot_write_to_the_shared_git_folder(
    in_linked: tuple[Attacked, Attacked], name: str
) -> None:
    shared, _ = in_linked
    assert (name in shared.written) == name.startswith("objects/")  # there, new names are moved away after the turn
    assert shared.after().get(name) == shared.before.get(name)


@pytest.mark.parametrize("name", GUARDED_LINKED)
def test_an_agent_in_a_linked_worktree_cannot_write_what_git_obeys_there(
    in_linked: tuple[Attacked, Attacked], name: str
) -> None:
    _, own = in_linked
    way, _ = GUARDED_LINKED[name]
    assert (name in own.written) == (way is not READ_ONLY)
    assert own.after().get(name) == own.before.get(name)


@pytest.mark.parametrize("name", LAYOUT)
def test_every_name_of_gits_documentation_is_guarded_or_data(name: str) -> None:
    plain = name.replace("<id>", "other")
    assert name in DATA or any(guarded == plain or guarded.startswith(f"{plain}/") for guarded in GUARDED)


# Another git folder, whose settings make git run a program.
EVIL = """
mkdir -p evil && cp -r .git/HEAD .git/refs .git/objects evil/
printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch '$PWNED'; false\\n' > evil/config
poison() { for entry in .git/worktrees/*; do echo $PWD/evil > $entry/commondir; done; }
"""


def test_a_git_in_another_worktree_runs_nothing_that_the_agent_left(prepared: Ground) -> None:
    pwned = prepared.folder / "pwned"
    prepared.claude(f"PWNED={pwned}\n{EVIL}\npoison 2> /dev/null; true")
    result = prepared.ralph("run", "x", "--agent", "claude", "--sandbox", "-m", "1")
    assert result.code == 0, result.err
    prepared.run("git", "status", cwd=prepared.folder / "other")
    assert not pwned.exists()


def test_a_worktree_that_is_added_during_the_turn_is_out_of_reach(prepared: Ground) -> None:
    """The agent waits in its turn until the user has added a worktree, and then tries to write to its git folder."""
    pwned, later = prepared.folder / "pwned-later", prepared.folder / "later"
    for name in ("ready", "added"):
        os.mkfifo(prepared.workspace / name)
        prepared.own(prepared.workspace / name)
    prepared.claude(f"PWNED={pwned}\n{EVIL}\necho > ready; cat added; poison 2> /dev/null; true")
    adding = f"cat ready; git worktree add -q -b later {later}; echo > added"
    agent = f"{prepared.python} -m ralph run x --agent claude --sandbox -m 1"
    result = prepared.run("sh", "-c", f"({adding}) & {agent}; code=$?; wait; exit $code")
    assert result.code == 0, result.err
    prepared.run("git", "status", cwd=later)
    assert not pwned.exists()
    assert prepared.run("git", "rev-parse", "--git-common-dir", cwd=later).out.strip() == f"{prepared.workspace}/.git"


def test_settings_that_are_replaced_during_the_turn_are_reported(prepared: Ground) -> None:
    """`git config` replaces the file. Linux then removes the read-only mount, also from the agent's view."""
    for name in ("begun", "configured"):
        os.mkfifo(prepared.workspace / name)
        prepared.own(prepared.workspace / name)
    prepared.claude("echo > begun; cat configured; true")
    configuring = "cat begun; git config user.nickname ann; echo > configured"
    agent = f"{prepared.python} -m ralph run x --agent claude --sandbox -m 1 --json"
    result = prepared.run("sh", "-c", f"({configuring}) > /dev/null & {agent}; code=$?; wait; exit $code")
    assert result.code == 0, result.err
    config = prepared.workspace / ".git" / "config"
    notices = [notice["text"] for notice in result.all("notice")]
    assert [text for text in notices if "was replaced" in text] == [
        f"{config} was replaced while the agent ran, so the agent could write it: check its content"
    ]


@pytest.mark.parametrize("is_link", [False, True], ids=["a file", "a link"])
def test_git_is_not_led_to_another_folder(ground: Ground, is_link: bool) -> None:
    """`.git` may be a file that names the git folder, as in a submodule, or a link to it."""
    folder = ground.folder / f"apart-{is_link}"
    ground.git("init", "-q", f"--separate-git-dir={folder}.git", str(folder))
    mark = folder / ".git"
    if is_link:
        mark.unlink()
        mark.symlink_to(f"{folder}.git")
    ground.claude("rm -f .git; mkdir evil; echo 'gitdir: evil' > .git; echo tried > tried")
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "-m", "1", "-C", str(folder))
    assert (folder / "tried").exists(), result.err
    assert Path(ground.run("git", "rev-parse", "--absolute-git-dir", cwd=folder).out.strip()) == Path(f"{folder}.git")
