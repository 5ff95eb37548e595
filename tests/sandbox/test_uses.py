"""Common work succeeds in a sandbox: git, packages, tests, large prompts, worktrees."""

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Result
from tests.sandbox.conftest import KEY, Ground

USES = {
    "add": "echo one > new.txt && git add -A && git diff --cached --quiet --exit-code README",
    "commit": "git commit -qm 'from inside'",
    "commit as the person that one is": "git log -1 --format=%an | grep -qx Ann",
    "stash": "echo two >> new.txt && git stash -q && git stash pop -q && git commit -qam two",
    "branch and merge": "git checkout -qb side && echo s > side.txt && git add -A && git commit -qm side"
    " && git checkout -q main && echo m > main.txt && git add -A && git commit -qm m && git merge -q side -m merged",
    "rebase": "git checkout -qb topic HEAD~1 && echo t > t.txt && git add -A && git commit -qm t && git rebase -q main"
    " && git checkout -q main && git merge -q topic",
    "tag": "git tag v1 && git tag -d v1",
    "a linked worktree": "git worktree add -q linked -b linked && git -C linked commit -q --allow-empty -m x"
    " && git worktree remove linked",
    "clone": "git clone -q . /tmp/copy",
    "temporary files": "f=$(mktemp) && echo x > $f && [ -w /var/tmp ] && [ -w /dev/shm ]",
    "a server of its own": '"$PYTHON" -I -c "import socket; s = socket.create_server((\'127.0.0.1\', 0));'
    ' socket.create_connection(s.getsockname())"',
    "processes in the background": "sleep 0.01 & wait",
    "read the prompt's file": 'grep -q . "$RALPH_PROMPT_FILE"',
    "install a package for Python": '"$PYTHON" -m venv --without-pip env && env/bin/python -c "import sys;'
    " sys.path.insert(0, 'small-1-py3-none-any.whl'); import small\"",
    "caches at home": "mkdir -p ~/.cache/x && echo x > ~/.cache/x/y",
    "leave a question": "echo 'Which one?' > .ralph/QUESTION.md",
}


@pytest.fixture(scope="module")
def used(ground: Ground) -> tuple[Ground, Result]:
    with zipfile.ZipFile(ground.workspace / "small-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small.py", "x = 1\n")
        wheel.writestr("small-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1\n")
        wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("small-1.dist-info/RECORD", "")
    lines = [f"PYTHON='{ground.python}'", "mkdir -p results"]
    for number, use in enumerate(USES.values()):
        lines.append(f"if ( {use} ) > results/{number}.txt 2>&1; then echo works > results/{number}; fi")
    ground.own(ground.workspace)
    ground.claude("\n".join(lines))
    result = ground.ralph("run", "use it", "--agent", "claude", "--sandbox", "--json", "-m", "1")
    assert result.code == 0, result.err
    return ground, result


@pytest.mark.parametrize("use", USES)
def test_common_work_succeeds_inside(used: tuple[Ground, Result], use: str) -> None:
    ground, _ = used
    outcome = ground.workspace / "results" / str(list(USES).index(use))
    assert outcome.exists(), outcome.with_suffix(".txt").read_text()


def test_work_done_inside_is_visible_outside(used: tuple[Ground, Result]) -> None:
    ground, result = used
    assert "from inside" in ground.git("log", "--format=%s")
    assert ground.git("status", "--porcelain", "--untracked-files=no") == ""
    assert result.one("question_asked")["text"].strip() == "Which one?"


def test_ralph_keeps_its_checkpoints_and_looks_at_them(used: tuple[Ground, Result]) -> None:
    ground, _ = used
    assert ground.git("for-each-ref", "refs/ralph").strip()
    assert "new.txt" in ground.ralph("diff", "--stat").out


def test_caches_persist_between_runs(used: tuple[Ground, Result]) -> None:
    ground, _ = used
    ground.claude("cat ~/.cache/x/y > cached; echo again > /tmp/left")
    assert ground.ralph("run", "go on", "--agent", "claude", "--sandbox", "-m", "1").code == 0
    assert (ground.workspace / "cached").read_text() == "x\n"
    ground.claude("[ -e /tmp/left ] && touch still-there")
    assert ground.ralph("run", "go on", "--agent", "claude", "--sandbox", "-m", "1").code == 0
    assert not (ground.workspace / "still-there").exists()


def test_a_prompt_of_five_megabytes_arrives(ground: Ground) -> None:
    (ground.workspace / "goal.md").write_text("x" * 5_000_000)
    ground.own(ground.workspace / "goal.md")
    ground.claude("wc -c < /tmp/prompt > size")
    assert ground.ralph("run", "-f", "goal.md", "--agent", "claude", "--sandbox", "-m", "1").code == 0
    assert int((ground.workspace / "size").read_text()) >= 5_000_000


def test_hooks_of_ralphs_commits_run_inside(ground: Ground) -> None:
    hook = ground.workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\nsh ./lint.sh\n")
    hook.chmod(0o755)
    ground.own(hook)
    ground.claude("echo 'touch ~/pwned; echo $RALPH_SANDBOX > linted' > lint.sh; echo c > c.txt")
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--check", "true", "--commit", "-m", "1")
    hook.unlink()
    assert result.code == 0, result.err
    assert not (ground.home / "pwned").exists()
    assert (ground.workspace / "linted").read_text() == "1\n"
    assert "c.txt" in ground.git("show", "--stat", "--format=", "HEAD")


WORKTREE = """
echo w > w.txt && git add -A && git commit -qm 'in the worktree' && echo works > commit
git merge -q --no-edit HEAD && echo works > merge
for attempt in 'branch -f main HEAD~1' 'update-ref refs/heads/main HEAD~1' 'branch -D main' 'tag evil' \\
  'config user.name Evil' 'worktree add /tmp/x' 'update-ref refs/ralph/x HEAD' 'pack-refs --all'; do
  git $attempt 2> /dev/null && echo "$attempt" >> escaped
done
common=$(git rev-parse --git-common-dir); own=$(git rev-parse --git-dir)
for file in $common/config $common/hooks/x $common/packed-refs $common/refs/heads/main $own/commondir $own/gitdir \\
  .git; do
  (echo x >> $file) 2> /dev/null && echo "$file" >> escaped
done
mv .git .git2 2> /dev/null && echo 'mv .git' >> escaped
cat "$OLD/unsaved" > /dev/null 2>&1 && echo "read the user's tree" >> escaped
true
"""


def test_in_a_worktree_the_work_is_committed_and_other_branches_stay(ground: Ground) -> None:
    before = ground.git("rev-parse", "main")
    (ground.workspace / "unsaved").write_text("not in the copy, which is at the same path\n")
    ground.own(ground.workspace / "unsaved")
    ground.claude(f"OLD='{ground.workspace}'\n{WORKTREE}")
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--worktree", "--json", "-m", "1")
    assert result.code == 0, result.err
    worktree = Path(result.one("run_finished")["worktree"])
    assert [(worktree / name).read_text() for name in ("commit", "merge")] == ["works\n", "works\n"]
    assert not (worktree / "escaped").exists(), (worktree / "escaped").read_text()
    assert ground.git("rev-parse", "main") == before
    branch = result.one("run_finished")["branch"]
    assert "in the worktree" in ground.git("log", "--format=%s", branch)


@pytest.mark.parametrize("head", ["refs/heads/main", "refs/heads/../../hooks/x"])
def test_in_a_worktree_another_head_gives_no_more_branches_to_write(ground: Ground, head: str) -> None:
    """HEAD decided which branches may be written, in the agent's next process and when the run is resumed."""
    before = ground.git("for-each-ref", "refs/heads/main") + str(
        sorted((ground.workspace / ".git" / "hooks").iterdir())
    )
    script = f"""
    own=$(sed 's/gitdir: //' .git); common=$own/../..; echo "ref: {head}" > $own/HEAD
    echo $(cat $common/refs/heads/main) > $common/refs/heads/main && echo main >> escaped
    touch $common/hooks/x && echo hooks >> escaped
    true
    """
    ground.claude(script, "not yet")
    ran = ("--agent", "claude", "--sandbox", "--json", "-m", "1", "--check", script)
    first = ground.ralph("run", "x", "--worktree", *ran)
    worktree = Path(first.one("run_finished")["worktree"])
    assert (worktree / ".git").exists(), first.err
    resumed = ground.ralph("resume", "-m", "3")
    assert "iteration 2" in resumed.out + resumed.err
    assert not (worktree / "escaped").exists(), (worktree / "escaped").read_text()
    after = ground.git("for-each-ref", "refs/heads/main") + str(sorted((ground.workspace / ".git" / "hooks").iterdir()))
    assert after == before


def test_a_folder_of_a_repository_is_a_workspace(ground: Ground) -> None:
    part = ground.workspace / "part"
    part.mkdir()
    ground.own(part)
    ground.claude("echo p > p.txt; git add -A . && git commit -qm part; touch ../outside-part; git init -q .; true")
    words = ("run", "x", "--agent", "claude", "--sandbox", "--json", "-m", "1", "-C", str(part))
    result = ground.ralph(*words)
    assert result.code == 0, result.err
    assert ground.git("log", "-1", "--format=%s").strip() == "part"
    assert not (ground.workspace / "outside-part").exists()
    assert not (part / ".git").exists()
    assert any("part/.git was taken away" in notice["text"] for notice in result.all("notice"))


def test_pip_installs_into_the_workspace(ground: Ground) -> None:
    if subprocess.run([ground.python, "-m", "pip", "--version"], env=ground.env, capture_output=True).returncode:
        pytest.skip("this Python has no pip")
    wheel = ground.workspace / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tiny.py", "x = 7\n")
        made.writestr("tiny-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        made.writestr("tiny-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr("tiny-1.dist-info/RECORD", "")
    ground.own(wheel)
    install = f"'{ground.python}' -m pip install --no-index --no-deps --target installed ./{wheel.name}"
    ground.claude(f"{install} > pip.txt 2>&1; true")
    assert ground.ralph("run", "x", "--agent", "claude", "--sandbox", "-m", "1").code == 0
    assert (ground.workspace / "installed" / "tiny.py").exists(), (ground.workspace / "pip.txt").read_text()


SIDE_WORK = """
case "$(cat /tmp/prompt)" in
  *REVIEW-IT*) what=review ;;
  *"commit message"*|*"Commit message"*) what=message ;;
  *) what=work; echo w >> worked.txt ;;
esac
echo "$RALPH_SANDBOX" > .ralph/seen-by-$what  # where a reviewer's files stay
cat ~/.ssh/id_rsa >> escaped 2> /dev/null; touch "$OLD_HOME/outside-$what" 2> /dev/null
"""


def test_reviews_and_commit_messages_use_the_same_sandbox(ground: Ground) -> None:
    settings = {
        "reviews": {"prompts": [{"name": "look", "prompt": "REVIEW-IT"}]},
        "scm": {"command": "git", "tasks": ["commit"]},
    }
    place = ground.workspace / ".ralph" / "settings.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps(settings))
    ground.own(place.parent)
    ground.claude(f"OLD_HOME='{ground.home}'\n{SIDE_WORK}")
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--check", "true", "-m", "1")
    place.unlink()
    assert result.code == 0, result.err
    for what in ("work", "review", "message"):
        assert (ground.workspace / ".ralph" / f"seen-by-{what}").read_text() == "1\n", what
        assert not (ground.home / f"outside-{what}").exists()
    assert not (ground.workspace / "escaped").exists() or KEY not in (ground.workspace / "escaped").read_text()


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm: apt-get install npm")
def test_npm_installs_into_the_workspace(ground: Ground) -> None:
    package = ground.workspace / "package"
    package.mkdir()
    (package / "package.json").write_text('{"name": "small", "version": "1.0.0"}')
    (ground.workspace / "package.json").write_text('{"name": "w", "version": "1.0.0"}')
    ground.own(ground.workspace)
    ground.claude("npm install --offline --no-audit --no-fund ./package > npm.txt 2>&1; true")
    assert ground.ralph("run", "x", "--agent", "claude", "--sandbox", "-m", "1").code == 0
    assert (ground.workspace / "node_modules" / "small").exists(), (ground.workspace / "npm.txt").read_text()


def test_pytest_can_run_as_a_check_inside(ground: Ground) -> None:
    """Needs a Python with pytest."""
    if subprocess.run([ground.python, "-c", "import pytest"], env=ground.env, check=False, user=ground.user).returncode:
        pytest.skip("this Python has no pytest")
    if ground.env.get("PYTHONPATH", "").startswith("/tmp/"):
        pytest.skip("this checkout lies in /tmp, which is another folder in the box")
    (ground.workspace / "test_it.py").write_text("def test_it(tmp_path):\n    (tmp_path / 'x').write_text('x')\n")
    ground.own(ground.workspace)
    ground.claude("true")
    check = f"{ground.python} -m pytest -q -p no:cacheprovider test_it.py"
    result = ground.ralph("run", "x", "--agent", "claude", "--sandbox", "--check", check, "-m", "1")
    assert result.code == 0, result.err + result.out
    assert os.path.exists(ground.workspace / "test_it.py")


def test_a_sandboxed_agent_can_ask_the_person(
    ralph: Callable[..., Result], agent: Callable[..., str], workspace: Path, bubblewrap: str
) -> None:
    script = """
if [ ! -e asked ]; then touch asked; mkdir -p deep; cd deep; ralph ask 'Which one: a or b?' > ../said; exit; fi
printf '%s' "$PROMPT" > prompt; echo '<response>DONE</response>'
"""
    ran = ralph("run", "x", "--agent", agent(script), "--sandbox", "-m", "2", "--json", timeout=120)
    assert ran.code == 0, ran.err
    assert "passed on" in (workspace / "said").read_text()
    told = [json.loads(line) for line in ran.out.splitlines()]
    (question,) = [event["data"] for event in told if event["type"] == "question_asked"]
    assert question["text"] == "Which one: a or b?"
    assert not (workspace / ".ralph" / "QUESTION.md").exists()
