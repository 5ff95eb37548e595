"""Which command installs the dependencies of a project in a new copy: one table, by lock file.

`ralph init` writes it, and the messages about checks that cannot start in a copy or don't test it suggest it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from shlex import quote

from msgspec import Struct

from ralph.settings.detect_checks import read_table

_PYTHON, _NODE, _PHP, _RUBY = "python", "node", "php", "ruby"
_PIP = "python3 -m venv .venv && .venv/bin/pip install -q {} pytest"
_TEST_EXTRAS = ("test", "tests", "testing", "dev")
_PYTHON_PROGRAMS = frozenset({"pytest", "python", "python3", "mypy", "coverage"})


class Installation(Struct, frozen=True):
    """How dependencies are installed if the project has `file`. The first row of a language counts."""

    language: str
    file: str
    folder: str
    """What the command makes, and git ignores."""
    command: str
    """Empty if the check itself installs what it needs."""
    prefix: str = ""
    """What a check of this language begins with to use the folder."""


_TABLE = (
    Installation(_PYTHON, "uv.lock", ".venv", ""),  # `uv run` makes the environment
    Installation(_PYTHON, "poetry.lock", ".venv", "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install -q", "poetry run "),
    Installation(_PYTHON, "pdm.lock", ".venv", "pdm install --frozen-lockfile -q", "pdm run "),
    Installation(_PYTHON, "pyproject.toml", ".venv", _PIP, ".venv/bin/"),
    Installation(_PYTHON, "setup.py", ".venv", _PIP, ".venv/bin/"),
    Installation(_NODE, "package-lock.json", "node_modules", "npm ci"),
    Installation(_NODE, "npm-shrinkwrap.json", "node_modules", "npm ci"),
    Installation(_NODE, "pnpm-lock.yaml", "node_modules", "pnpm install --frozen-lockfile"),
    Installation(_NODE, "yarn.lock", "node_modules", "yarn install --{}"),
    Installation(_NODE, "bun.lock", "node_modules", "bun install --frozen-lockfile"),
    Installation(_NODE, "bun.lockb", "node_modules", "bun install --frozen-lockfile"),
    Installation(_NODE, "package.json", "node_modules", "npm install"),
    Installation(_PHP, "composer.lock", "vendor", "composer install -q"),
    Installation(_RUBY, "Gemfile.lock", "vendor/bundle", "bundle install --quiet"),
)


def installations(root: str) -> Iterator[Installation]:
    """Yield how the dependencies of each language in a project are installed."""
    languages = set[str]()
    for row in _TABLE:
        if row.language in languages or not os.path.isfile(f"{root}/{row.file}"):
            continue
        if row.file == "pyproject.toml" and not read_table(Path(root, row.file), "project"):
            continue  # only settings of tools: there is nothing to install
        languages.add(row.language)
        # Without Bundler's own settings gems are installed outside the project, for all copies.
        if row.command and (row.language != _RUBY or os.path.isdir(f"{root}/.bundle")):
            yield Installation(row.language, row.file, row.folder, _complete(row, root), row.prefix)


def setup_command(root: str) -> str:
    """Return the command that installs the dependencies of a project; empty if none is known."""
    return " && ".join(row.command for row in installations(root))


def setup_options(root: str, checks: Iterable[str] = ()) -> str:
    """Return the options that install the dependencies of a project in each copy, with the checks that use them; empty
    if nothing has to be installed."""
    command = setup_command(root)
    if not command:
        return ""
    changed = ((check, check_in_copy(root, check)) for check in checks)
    return " ".join((f'--setup "{command}"', *(f'--check "{new}"' for old, new in changed if new != old)))


def setup_hint(root: str, checks: Iterable[str] = ()) -> str:
    """Return what to do if the checks of a project don't test its copies."""
    options = setup_options(root, checks)
    return f"install it in each copy: {options}" if options else 'install its dependencies in each copy: --setup "CMD"'


def check_in_copy(root: str, check: str) -> str:
    """Return a check as it uses what the setup has installed: `.venv/bin/pytest -q`."""
    prefix = next((row.prefix for row in installations(root) if row.language == _PYTHON), "")
    return prefix + check if check.split(maxsplit=1)[:1] and check.split()[0] in _PYTHON_PROGRAMS else check


def _complete(row: Installation, root: str) -> str:
    if row.file == "yarn.lock":  # Yarn 2 and later have this file, and another option
        return row.command.format("immutable" if os.path.isfile(f"{root}/.yarnrc.yml") else "frozen-lockfile")
    return row.command.format(f"-e {_with_tests(root)}") if "{}" in row.command else row.command


def _with_tests(root: str) -> str:
    """Return the project for pip, with the extra that its tests need: `'.[test]'`."""
    extras = read_table(Path(root, "pyproject.toml"), "project").get("optional-dependencies")
    extra = next((name for name in _TEST_EXTRAS if isinstance(extras, dict) and name in extras), "")
    return quote(f".[{extra}]") if extra else "."
