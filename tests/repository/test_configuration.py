"""Committing obeys the user's settings and hooks as they were when the run started, never what an agent wrote since."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest

Ralph = Callable[..., Any]
Git = Callable[..., str]


@pytest.fixture
def at_work(ralph: Ralph, workspace: Path, git: Git) -> Callable[[str], Any]:
    """Plays a run that commits, whose agent runs this script and then claims to be done."""
    git("init", "-q")
    git("config", "user.name", "A Person")
    git("config", "user.email", "person@example.org")
    (workspace / "a.txt").write_text("one\n")
    git("add", "-A")
    git("commit", "-qm", "first")

    def play(script: str, *words: str) -> Any:
        path = workspace.parent / "agent.sh"
        path.write_text(f"cat > /dev/null\n{script}\necho '<response>DONE</response>'\n")
        return ralph("run", "go", "--agent", f"sh {path}", "--check", "true", "--commit", "-m", "1", *words)

    return play


def test_a_hook_or_filter_that_the_agent_plants_does_not_run_when_ralph_commits(
    at_work: Callable[..., Any], git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    planted = f"""
printf '#!/bin/sh\\ntouch {proof}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
git config filter.evil.clean "sh -c 'touch {proof}; cat'"
echo '*.txt filter=evil' > .gitattributes
echo two > a.txt
"""
    done = at_work(planted)
    assert done.code == 0
    assert git("log", "--format=%H").count("\n") == 2, done.err
    assert not proof.exists()
    assert "filter.evil.clean" in done.err
    assert "hooks/pre-commit" in done.err


def test_a_setting_that_the_agent_adds_does_not_keep_ralph_from_committing(
    at_work: Callable[..., Any], git: Git
) -> None:
    """What was not said before cannot be unsaid for a moment, and "empty" is no number to git."""
    added = ("core.compression 9", "status.showUntrackedFiles no", "diff.ignoreSubmodules all", "gc.auto 0")
    done = at_work("; ".join(f"git config {each}" for each in added) + "; echo two > a.txt; echo three > new.txt")
    assert done.code == 0
    assert git("log", "--format=%H").count("\n") == 2, done.err
    assert "new.txt" in git("show", "--stat", "HEAD")


@pytest.mark.parametrize("name", ["info/exclude", "COMMIT_EDITMSG", "logs/HEAD", "shallow"])
def test_a_pipe_that_only_a_commit_would_wait_for_is_said(at_work: Callable[..., Any], name: str) -> None:
    done = at_work(f"rm -f .git/{name}; mkfifo .git/{name}; echo two > a.txt")
    assert f".git/{name} is a pipe, for which git waits in vain" in done.err


def test_the_users_own_hooks_go_on_working(at_work: Callable[..., Any], workspace: Path, tmp_path: Path) -> None:
    proof = tmp_path / "mine-ran"
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\necho ran >> {proof}\n")
    hook.chmod(0o755)
    done = at_work("echo two > a.txt; rm .git/hooks/pre-commit")
    assert done.code == 0
    assert proof.read_text() == "ran\n"


def test_the_users_own_hooks_elsewhere_go_on_working_as_they_were(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    mine, theirs = tmp_path / "mine-ran", tmp_path / "it-ran"
    hook = workspace / ".githooks" / "pre-commit"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\necho ran >> {mine}\n")
    hook.chmod(0o755)
    git("config", "core.hooksPath", ".githooks")
    assert at_work("echo two > a.txt").code == 0
    assert at_work(f"echo three > a.txt; echo 'touch {theirs}' >> .githooks/pre-commit").code == 0
    assert mine.read_text() == "ran\nran\n"
    assert not theirs.exists()


def test_a_hooks_path_that_the_agent_sets_has_no_say(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    planted = f"""
mkdir evil && printf '#!/bin/sh\\ntouch {proof}\\n' > evil/pre-commit && chmod +x evil/pre-commit
git config core.hooksPath "$PWD/evil"; echo two > a.txt
"""
    assert at_work(planted).code == 0
    assert not proof.exists()


def test_a_hooks_path_that_the_agent_sets_does_not_take_the_place_of_the_users_hooks(
    at_work: Callable[..., Any], workspace: Path, tmp_path: Path
) -> None:
    """As tools do that an agent installs: husky, say."""
    mine = tmp_path / "mine-ran"
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\necho ran >> {mine}\n")
    hook.chmod(0o755)
    assert at_work("mkdir .husky; git config core.hooksPath .husky; echo two > a.txt").code == 0
    assert mine.read_text() == "ran\n"


def test_what_the_user_ignores_everywhere_stays_ignored_though_the_agent_names_another_file(
    at_work: Callable[..., Any], git: Git, environment: dict[str, str]
) -> None:
    ignored = Path(environment["HOME"], ".config", "git", "ignore")
    ignored.parent.mkdir(parents=True)
    ignored.write_text(".DS_Store\n")
    done = at_work("git config core.excludesFile /dev/null; touch .DS_Store; echo two > a.txt", "--commit=all")
    assert git("show", "--format=", "--name-only", "HEAD").split() == ["a.txt"], done.err


ELSEWHERE = {
    "a file": "mv .git ../moved; HOOKS=../moved/hooks; echo gitdir: ../moved > .git",
    "the folder above": "mv .git ../.git; HOOKS=../.git/hooks",
    "a repository that is nearer": "cp -r .git sub/.git; HOOKS=sub/.git/hooks",
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_hooks_of_another_repository_that_the_agent_leads_git_to_do_not_run(
    at_work: Callable[..., Any], workspace: Path, tmp_path: Path, where: str
) -> None:
    proof = tmp_path / "it-ran"
    (workspace / "sub").mkdir()
    place = ("-C", str(workspace / "sub")) if "nearer" in where else ()
    planted = f"""
cd {workspace}; {ELSEWHERE[where]}
printf '#!/bin/sh\\ntouch {proof}\\n' > $HOOKS/pre-commit && chmod +x $HOOKS/pre-commit; echo two > sub/b.txt
"""
    done = at_work(f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; {planted}\n}}", "--commit=all", *place)
    assert "is part of another repository than when the run began" in done.err
    assert not proof.exists()


BROKEN = {
    "an index that git cannot read": ("head -c 99 /dev/zero > .git/index", "bad signature"),
    "a submodule that names a program": (
        "git init -q sub; git -C sub commit -q --allow-empty -m s; git add sub;"
        " printf '[submodule \"sub\"]\\npath=sub\\nupdate=!true\\n' > .gitmodules",
        "invalid value for 'submodule.sub.update'",
    ),
    "a HEAD that is none": ("echo garbage > .git/HEAD", "git cannot work in"),
    "a repository without a working tree": ("git config core.bare true", "core.worktree or core.bare in"),
    "a folder in the place of a file of ralph's": ("mkdir .git/ralph-paths", "ralph-paths: Is a directory"),
    "a repository of a later format": (
        "git config core.repositoryFormatVersion 1; git config extensions.later yes",
        "unknown repository extension found: later",
    ),
    "a repository that is gone": ("rm -rf .git", "no git repository any more"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_commit_that_git_refuses_is_told_and_ends_nothing(
    at_work: Callable[..., Any], tmp_path: Path, broken: str
) -> None:
    how, said = BROKEN[broken]
    done = at_work(f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; echo two > a.txt; {how}; }}")
    assert (done.code, "commit failed" in done.err, said in done.err) == (0, True, True), done.err


def test_a_file_that_is_named_like_a_commit_is_committed_like_any_other(at_work: Callable[..., Any], git: Git) -> None:
    done = at_work("echo two > HEAD")
    assert git("show", "HEAD:HEAD", "--") == "two\n", done.err


PLANTED = """
git config filter.evil.clean "sh -c 'touch {proof}; cat'"
git config filter.evil.smudge "sh -c 'touch {proof}; cat'"
echo '*.txt filter=evil' > .gitattributes
echo two > a.txt
"""


def test_a_filter_that_the_agent_plants_does_not_run_when_ralph_commits_in_a_worktree(
    at_work: Callable[..., Any], git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    done = at_work(PLANTED.format(proof=proof), "--worktree")
    assert done.code == 0, done.err
    assert not proof.exists()
    (branch,) = git("for-each-ref", "--format=%(refname)", "refs/heads/ralph").split()
    assert git("show", f"{branch}:a.txt") == "two\n"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_filter_that_the_agent_plants_does_not_run_when_a_person_rewinds(
    at_work: Callable[..., Any],
    ralph: Ralph,
    environment: dict[str, str],
    workspace: Path,
    tmp_path: Path,
    is_kept: bool,
) -> None:
    proof = tmp_path / "it-ran"
    at_work(PLANTED.format(proof=proof))
    if not is_kept:
        (kept,) = Path(environment["HOME"]).glob(".local/state/ralph/git/*.json")
        kept.unlink()
    done = ralph("rewind", "0")
    assert done.code == 0, done.err
    assert (workspace / "a.txt").read_text() == "one\n"
    assert not proof.exists()
    assert ("filters were not applied" in done.err) is not is_kept


def test_the_users_own_filter_goes_on_working_when_a_person_rewinds(
    at_work: Callable[..., Any], ralph: Ralph, workspace: Path, git: Git
) -> None:
    git("config", "filter.shout.clean", "tr A-Z a-z")
    git("config", "filter.shout.smudge", "tr a-z A-Z")
    (workspace / ".gitattributes").write_text("*.txt filter=shout\n")
    (workspace / "a.txt").write_text("ONE\n")
    git("add", "-A")
    git("commit", "-qm", "shout")
    at_work("git config filter.shout.smudge rev; echo TWO > a.txt")
    done = ralph("rewind", "0")
    assert done.code == 0, done.err
    assert (workspace / "a.txt").read_text() == "ONE\n"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("git config core.sshCommand evil", "core.sshcommand"),
        ("echo '*.txt filter=evil' > .git/info/attributes", "info/attributes"),
        ("echo '*.txt filter=evil' > .gitattributes", ".gitattributes"),
        ("printf '[core]\\n\\tsshCommand = evil\\n' > ../mine", "core.sshcommand"),
        ("echo evil > .git/hooks/pre-push", "hooks/pre-push"),
    ],
)
def test_a_change_of_gits_settings_hooks_or_attributes_is_told(
    at_work: Callable[..., Any], workspace: Path, git: Git, change: str, told: str
) -> None:
    git("config", "include.path", str(workspace.parent / "mine"))
    (workspace.parent / "mine").write_text("[core]\n\tsshCommand = mine\n")
    done = at_work(f"{change}; echo two > a.txt")
    assert done.code == 0
    (said,) = [line for line in done.err.splitlines() if "hooks or attributes were changed" in line]
    assert told in said


def test_what_is_planted_between_a_stop_and_a_resume_has_no_say_either(
    at_work: Callable[..., Any], ralph: Ralph, workspace: Path, git: Git, tmp_path: Path
) -> None:
    proof = tmp_path / "it-ran"
    assert at_work("[ -e ../again ] || { touch ../again; exit 0; }; echo two > a.txt").code == 1
    subprocess.run(("sh", "-c", PLANTED.format(proof=proof)), cwd=workspace, check=True)
    done = ralph("resume", "-m", "2")
    assert done.code == 0, done.err
    assert git("show", "HEAD:a.txt") == "two\n"
    assert not proof.exists()


def test_work_is_not_pushed_where_the_agent_leads_it(
    at_work: Callable[..., Any], workspace: Path, git: Git, tmp_path: Path
) -> None:
    for name in ("mine", "theirs"):
        git("init", "-q", "--bare", str(tmp_path / name))
    git("remote", "add", "origin", str(tmp_path / "mine"))
    git("push", "-q", "-u", "origin", "HEAD")
    done = at_work(f"git config remote.origin.url {tmp_path}/theirs; echo two > a.txt", "--push")
    assert "changed meanwhile: remote.origin.url" in done.err
    assert git("--git-dir", str(tmp_path / "theirs"), "for-each-ref") == ""


PLANTS_IN_THE_REMOTE = {
    "a hook": "printf '#!/bin/sh\\ntouch {proof}\\n' > {mine}/hooks/pre-receive; chmod +x {mine}/hooks/pre-receive",
    "a setting": "git -C {mine} config core.alternateRefsCommand 'touch {proof}; true'",
}


@pytest.mark.parametrize("planted", PLANTS_IN_THE_REMOTE)
def test_nothing_is_pushed_into_a_folder_whose_hooks_or_settings_the_agent_has_changed(
    at_work: Callable[..., Any], git: Git, tmp_path: Path, planted: str
) -> None:
    mine, proof, ran = tmp_path / "mine", tmp_path / "it-ran", tmp_path / "mine-ran"
    git("init", "-q", "--bare", str(mine))
    hook = mine / "hooks" / "post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho ran >> {ran}\n")
    hook.chmod(0o755)
    git("remote", "add", "origin", f"file://{mine}")
    git("push", "-q", "-u", "origin", "HEAD")
    assert "✓ push" in at_work("echo two > a.txt", "--push").err
    assert ran.read_text() == "ran\nran\n"
    done = at_work(f"{PLANTS_IN_THE_REMOTE[planted].format(mine=mine, proof=proof)}; echo three > a.txt", "--push")
    assert "changed meanwhile: remote.origin.url: " in done.err
    assert not proof.exists()


WAYS_TO_A_FOLDER = {
    "a name without its end": ("init -q --bare {top}/mine.git", "{top}/mine", "mine.git"),
    "a folder whose repository is elsewhere": ("init -q --separate-git-dir {top}/own {top}/mine", "../mine", "own"),
    "a short name of the user's": ("init -q --bare {top}/mine", "short:mine", "mine"),
    "a name of this machine": ("init -q --bare {top}/mine", "file://localhost{top}/mine", "mine"),
}


@pytest.mark.parametrize("way", WAYS_TO_A_FOLDER)
def test_a_folder_of_this_machine_is_known_however_it_is_named(
    at_work: Callable[..., Any], git: Git, tmp_path: Path, way: str
) -> None:
    init, url, own = (word.format(top=tmp_path) for word in WAYS_TO_A_FOLDER[way])
    proof, hook = tmp_path / "it-ran", tmp_path / own / "hooks" / "post-update"
    git(*init.split())
    git("config", f"url.{tmp_path}/.insteadOf", "short:")
    git("remote", "add", "origin", url)
    git("push", "-q", "-u", "origin", "HEAD:elsewhere")
    git("config", "push.default", "upstream")
    planted = f"printf '#!/bin/sh\\ntouch {proof}\\n' > {hook}; chmod +x {hook}; echo two > a.txt"
    done = at_work(planted, "--push")
    assert "changed meanwhile: remote.origin.url: " in done.err
    assert not proof.exists()


@pytest.mark.parametrize("folder", ["bin", "."])
def test_a_push_does_not_take_an_ssh_that_the_agent_has_put_on_the_path(
    at_work: Callable[..., Any], workspace: Path, environment: dict[str, str], git: Git, tmp_path: Path, folder: str
) -> None:
    proof = tmp_path / "it-ran"
    (workspace / "bin").mkdir()
    own = Path(environment["HOME"], "bin", "ssh")
    own.write_text("#!/bin/sh\necho my own ssh, and no network >&2\nexit 1\n")
    own.chmod(0o755)
    environment["PATH"] = f"{workspace}/bin:{folder}:{environment['PATH']}"
    git("remote", "add", "origin", "git@localhost:mine.git")
    git("config", "branch.main.remote", "origin")
    git("config", "branch.main.merge", "refs/heads/main")
    git("branch", "-qM", "main")
    planted = f"printf '#!/bin/sh\\ntouch {proof}\\n' > bin/ssh; cp bin/ssh .; chmod +x bin/ssh ssh; echo two > a.txt"
    done = at_work(planted, "--push")
    assert "my own ssh, and no network" in done.err
    assert not proof.exists()


def test_what_git_says_of_its_own_work_is_not_taken_for_its_answer(
    at_work: Callable[..., Any], environment: dict[str, str]
) -> None:
    environment |= {"GIT_TRACE": "1", "GIT_TRACE2": "1", "GIT_TRACE_SETUP": "1"}
    assert "✓ commit: [" in at_work("echo two > a.txt").err


BEGUN = {
    "a merge": (("merge", "other"), "MERGE_HEAD"),
    "a squashed merge": (("merge", "--squash", "other"), "SQUASH_MSG"),
    "one commit of another branch": (("cherry-pick", "-n", "other"), "MERGE_MSG"),
    "a stash that does not fit": (("stash", "pop"), "index"),
}


@pytest.mark.parametrize("how", ["--commit", "--commit=all"])
@pytest.mark.parametrize("begun", BEGUN)
def test_nothing_is_committed_in_the_middle_of_a_merge_of_the_users(
    at_work: Callable[..., Any], workspace: Path, git: Git, begun: str, how: str
) -> None:
    git("checkout", "-qb", "other")
    (workspace / "a.txt").write_text("other\n")
    git("commit", "-qam", "other")
    git("checkout", "-q", "-")
    (workspace / "a.txt").write_text("stashed\n")
    git("stash")
    (workspace / "a.txt").write_text("mine\n")
    git("commit", "-qam", "mine")
    words, left = BEGUN[begun]
    with pytest.raises(CalledProcessError):
        git(*words)
    done = at_work("echo new > new.txt", how)
    assert "merge is under way" in done.err
    assert git("log", "--format=%s", "-1") == "mine\n"
    assert git("ls-files", "--unmerged")
    assert (workspace / ".git" / left).exists()
