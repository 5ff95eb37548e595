"""The settings and checks of a project as they are at a commit: what is judged must not choose its own judge."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from ralph.core.text import listed
from ralph.errors import UserError
from ralph.files import temporary_folder
from ralph.git.change_range import ChangeRange
from ralph.git.client import Git
from ralph.settings import Settings, load
from ralph.settings.detect_checks import installed_checks
from ralph.settings.load import override

MAX_FILE = 1 << 20  # bytes; larger files say nothing about checks
# The settings, and the files by which checks are detected.
_FILES = re.compile(r"[^/]+|\.ralph/settings(?:\.local)?\.json|tests?/(?:[^/]+/)?(?:test_[^/]*|conftest)\.py")


class SettingsAtBase(Struct, frozen=True):
    """The settings by which a change is judged. `notices` say what the change would change about them."""

    settings: Settings
    notices: tuple[str, ...] = ()


def settings_at_base(
    git: Git, change: ChangeRange, overrides: Mapping[str, Any], *, env: Mapping[str, str], options: Mapping[str, str]
) -> SettingsAtBase:
    """Return the settings as they are at the base, with the checks that are detected there if none are given.

    Settings files that git tracks neither at the base nor at the head are the person's, and count as they are.
    """
    workspace = Path(git.root) / git.prefix
    with project_files(git, change.base) as base, project_files(git, change.tip) as tip:

        def locate(path: Path) -> Path | None:
            if not path.is_relative_to(workspace):
                return path  # the user's own
            name = path.relative_to(workspace)
            is_tracked = (base / name).exists() or (tip / name).exists()
            return base / name if is_tracked else path

        settings = load(workspace, overrides, env=env, options=options, locate=locate).settings
        detected = [] if settings.checks else installed_checks(base)
        with project_files(git, change.head) as head:
            now = load(
                workspace, overrides, env=env, locate=lambda path: _at_head(path, workspace, head, locate)
            ).settings
            detected_now = [] if now.checks else installed_checks(head)
    if not settings.checks and not detected and not settings.exams:
        example = f' --check "{detected_now[0]}"' if detected_now else ' --check "CMD"'
        raise UserError(
            f"no checks given, and none found in this project at the base ({change.base[:7]})",
            f"name what must pass: ralph judge{example}",
        )
    if detected:
        settings = override(settings, {"checks": detected})
    if detected_now:
        now = override(now, {"checks": detected_now})
    return SettingsAtBase(settings, tuple(_differences(settings, now)))


def _at_head(path: Path, workspace: Path, head: Path, locate: Any) -> Path | None:
    if path.is_relative_to(workspace) and (head / path.relative_to(workspace)).exists():
        return head / path.relative_to(workspace)
    place: Path | None = locate(path)
    return place if place == path else None


def _differences(base: Settings, head: Settings) -> Iterator[str]:
    """Yield one line if the change would be judged differently by its own settings."""
    pairs = {
        "checks": (_commands(base), _commands(head)),
        "exams": ([exam.command for exam in base.exams], [exam.command for exam in head.exams]),
        "setup": ([base.setup], [head.setup]),
        "protect": ([*base.protect.globs], [*head.protect.globs]),
    }
    if names := [name for name, (before, now) in pairs.items() if before != now]:
        judged = f": {listed(_commands(base), 3)}" if names[0] == "checks" else ""
        yield f"the change has other {listed(names)} than the base, whose own count{judged}"


def _commands(settings: Settings) -> list[str]:
    return [check.command for check in settings.checks]


@contextmanager
def project_files(git: Git, commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the files of the workspace at a commit that say how it is verified."""
    prefix = f"{git.prefix}/" if git.prefix else ""
    rows = git.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit, *([prefix] if prefix else [])).split(b"\0")[:-1]
    paths = []
    for about, _, path in (row.partition(b"\t") for row in rows):
        mode, _, _, size = about.split()
        name = os.fsdecode(path).removeprefix(prefix)
        if mode.startswith(b"100") and int(size) <= MAX_FILE and _FILES.fullmatch(name):
            paths.append(path)
    with temporary_folder() as folder:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git.run("read-tree", commit, env=env)
        target = os.path.join(folder, "files")
        stdin = b"\0".join([*paths, b""])
        git.run("checkout-index", f"--prefix={target}/", "-z", "--stdin", stdin=stdin, env=env)
        os.makedirs(os.path.join(target, git.prefix), exist_ok=True)
        yield Path(target) / git.prefix
