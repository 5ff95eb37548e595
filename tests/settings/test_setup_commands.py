"""One table says how the dependencies of a copy are installed."""

from pathlib import Path

import pytest

from ralph.settings.setup_commands import check_in_copy, setup_command, setup_hint, setup_options

PROJECT = '[project]\nname = "x"\n'
PIP = "python3 -m venv .venv && .venv/bin/pip install -q -e . pytest"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, ""),
        ({"uv.lock": "", "pyproject.toml": PROJECT}, ""),
        ({"poetry.lock": "", "pyproject.toml": PROJECT}, "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry install -q"),
        ({"pdm.lock": ""}, "pdm install --frozen-lockfile -q"),
        ({"pyproject.toml": PROJECT}, PIP),
        ({"pyproject.toml": "[tool.ruff]\n"}, ""),
        ({"setup.py": ""}, PIP),
        (
            {"pyproject.toml": f'{PROJECT}[project.optional-dependencies]\ndocs = ["a"]\ntests = ["b"]\n'},
            PIP.replace("-e .", "-e '.[tests]'"),
        ),
        ({"package.json": "{}", "package-lock.json": "{}"}, "npm ci"),
        ({"package.json": "{}"}, "npm install"),
        ({"pnpm-lock.yaml": ""}, "pnpm install --frozen-lockfile"),
        ({"yarn.lock": ""}, "yarn install --frozen-lockfile"),
        ({"yarn.lock": "", ".yarnrc.yml": ""}, "yarn install --immutable"),
        ({"bun.lock": ""}, "bun install --frozen-lockfile"),
        ({"composer.lock": "{}"}, "composer install -q"),
        ({"Gemfile.lock": ""}, ""),
        ({"Gemfile.lock": "", ".bundle/config": ""}, "bundle install --quiet"),
        ({"go.mod": "", "Cargo.toml": ""}, ""),
        ({"setup.py": "", "package-lock.json": "{}"}, f"{PIP} && npm ci"),
    ],
)
def test_the_lock_file_decides_what_installs_the_dependencies(
    tmp_path: Path, files: dict[str, str], command: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert setup_command(str(tmp_path)) == command


def test_the_options_name_the_checks_that_use_what_was_installed(tmp_path: Path) -> None:
    assert setup_options(str(tmp_path)) == ""
    assert setup_hint(str(tmp_path)) == 'install its dependencies in each copy: --setup "CMD"'
    (tmp_path / "setup.py").write_text("")
    options = f'--setup "{PIP}" --check ".venv/bin/pytest -q"'
    assert setup_options(str(tmp_path), ["make lint", "pytest -q"]) == options
    assert setup_hint(str(tmp_path), ["pytest -q"]) == f"install it in each copy: {options}"
    assert check_in_copy(str(tmp_path), "./check") == "./check"
    (tmp_path / "poetry.lock").write_text("")
    assert check_in_copy(str(tmp_path), "pytest -q") == "poetry run pytest -q"
