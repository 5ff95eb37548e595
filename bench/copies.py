"""A command in a copy that is in place of the user's tree, and a copy of 10,000 files."""

import os
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bench.lab import MILLI, Lab
from bench.samples import Row, Wanted, compared
from ralph.git.client import git_at
from ralph.git.dependencies import find_dependencies
from ralph.git.worktree_setup import check_out_copy
from ralph.git.worktrees import worktrees_folder
from ralph.process.keeper import Keeper
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command
from ralph.verdict.in_place import Namespace, Obstacle, find_method

PYTHON, GIT = "python3 -S -c pass", "git worktree add"
FOLDERS, FILES_EACH = 100, 100


def measure(lab: Lab) -> list[Row]:
    os.environ["XDG_STATE_HOME"] = str(lab.folder("state"))
    tree = _repository(lab)
    with Keeper.start() as keeper:
        return [*_command(lab, tree, keeper), _copy(lab, tree, keeper)]


def _repository(lab: Lab) -> Path:
    tree = lab.folder("tree")
    for folder in range(FOLDERS):
        (tree / f"folder-{folder}").mkdir()
        for file in range(FILES_EACH):
            (tree / f"folder-{folder}/{file}.txt").write_text(f"{folder} {file}\n" * 20)
    (tree / "node_modules").mkdir()
    (tree / "node_modules/file").write_text("installed\n")
    (tree / ".gitignore").write_text("node_modules/\n")
    git = str(shutil.which("git"))
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "files")):
        lab.seconds((git, *words), tree)
    return tree


def _command(lab: Lab, tree: Path, keeper: Keeper) -> list[Row]:
    """Measure `true` in a namespace that is held, with one dependency folder."""
    repository, method = git_at(str(tree)), find_method(worktrees_folder())
    if isinstance(method, Obstacle):
        return []
    with check_out_copy(repository, "bench", repository.resolve("HEAD"), keeper) as worktree:
        namespace = Namespace(worktree, method, find_dependencies(repository))
        namespace.open()
        try:
            inside = Command(argv=("/bin/true",), cwd=worktree.path, env=os.environ)
            python = Command(argv=(lab.python, "-S", "-c", "pass"), cwd=worktree.path, env=os.environ)
            contenders = {"ralph": _timing(lambda: namespace.enter(inside)), PYTHON: _timing(lambda: python)}
            return [compared("a command in a copy in place", contenders, 41, Wanted(1.2, PYTHON))]
        finally:
            namespace.close()


def _timing(make: Callable[[], Command]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        with OwnProcess(make()) as process:
            process.output(timeout=60)
        assert not process.code, process.error
        return (time.perf_counter() - began) * MILLI

    return run


def _copy(lab: Lab, tree: Path, keeper: Keeper) -> Row:
    repository, places, git = git_at(str(tree)), lab.folder("places"), str(shutil.which("git"))
    head, numbers = repository.resolve("HEAD"), count()

    def copy() -> float:
        began = time.perf_counter()
        with check_out_copy(repository, "bench", head, keeper):
            return (time.perf_counter() - began) * MILLI

    def add() -> float:
        place = str(places / str(next(numbers)))
        seconds = lab.seconds((git, "worktree", "add", "-q", "--detach", place), tree)
        lab.seconds((git, "worktree", "remove", "--force", place), tree)
        return seconds * MILLI

    return compared("a copy of 10,000 files", {"ralph": copy, GIT: add}, 7, Wanted(2, GIT))
