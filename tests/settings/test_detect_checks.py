"""Checks are detected from the files of a project."""

from pathlib import Path

import pytest

from ralph.settings import detect_checks as module
from ralph.settings.detect_checks import detect_checks

PYTHON = {"pyproject.toml": "[tool.pytest.ini_options]\n[tool.ruff]\n[tool.mypy]\nfiles = ['src']\n"}
MAKEFILE = "CHECK := yes\n.PHONY: all test\nall: test\ntest lint: setup\n\tpytest\nsetup::\n\ttrue\n"
JUSTFILE = "set shell := ['sh', '-c']\nalias t := test\n@test *words:\n    cargo test {{words}}\nlint path:\n    x\n"

PROJECTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "settings of Python's tools": (PYTHON, ["pytest -q", "ruff check .", "mypy"]),
    "uv runs them": ({**PYTHON, "uv.lock": "version = 1"}, ["uv run pytest -q", "uv run ruff check .", "uv run mypy"]),
    "a dependency group": ({"pyproject.toml": "[dependency-groups]\ndev = ['pytest>=8']"}, ["pytest -q"]),
    "poetry": (
        {"pyproject.toml": "[tool.poetry.group.dev.dependencies]\npytest = '^8'", "poetry.lock": "# made"},
        ["poetry run pytest -q"],
    ),
    "mypy without files": ({"pyproject.toml": "[tool.mypy]\nstrict = true"}, ["mypy ."]),
    "requirements": ({"requirements.txt": "pytest==8\n"}, ["pytest -q"]),
    "tests that bear pytest's names": ({"tests/test_a.py": "def test_a(): pass"}, ["pytest -q"]),
    "the standard library's tests": (
        {"tests/test_a.py": "import unittest\n"},
        ["python3 -m unittest discover -s tests"],
    ),
    "npm": (
        {"package.json": '{"scripts": {"test": "jest", "lint": "eslint .", "build": "tsc"}}'},
        ["npm test", "npm run lint"],
    ),
    "pnpm and its types": (
        {
            "package.json": '{"scripts": {"test": "vitest run"}, "devDependencies": {"typescript": "5"}}',
            "pnpm-lock.yaml": "lockfileVersion: 9",
            "tsconfig.json": "{}",
        },
        ["pnpm run test", "pnpm exec tsc --noEmit"],
    ),
    "npm's own placeholder is no test": (
        {"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'},
        [],
    ),
    "a script that never ends is no check": ({"package.json": '{"scripts": {"test": "jest --watch"}}'}, []),
    "cargo": (
        {"Cargo.toml": "[workspace]\nmembers = ['a']\n[workspace.lints.clippy]\nall = 'warn'"},
        ["cargo test --workspace", "cargo clippy --workspace -- -D warnings"],
    ),
    "go": ({"go.mod": "module example.com/a\n"}, ["go test ./...", "go vet ./..."]),
    "go with its linter": (
        {"go.mod": "module a\n", ".golangci.yml": "version: 2"},
        ["go test ./...", "golangci-lint run"],
    ),
    "make stands for its purposes, tools for the rest": (
        {**PYTHON, "Makefile": MAKEFILE},
        ["make test", "make lint", "mypy"],
    ),
    "just comes before make": ({"justfile": JUSTFILE, "Makefile": MAKEFILE}, ["just test", "make lint"]),
    "check is a test where there is none": ({"Makefile": "check:\n\ttrue\n"}, ["make check"]),
    "two languages": (
        {**PYTHON, "go.mod": "module a\n"},
        ["pytest -q", "go test ./...", "ruff check .", "go vet ./...", "mypy"],
    ),
    "nothing": ({"README.md": "pytest"}, []),
    "files that cannot be read": ({"pyproject.toml": "[tool", "package.json": "[1]", "go.mod": ""}, []),
}


@pytest.mark.parametrize("case", PROJECTS)
def test_checks_are_detected_from_the_projects_files(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, commands = PROJECTS[case]
    monkeypatch.setattr(module, "which", lambda name: name)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert detect_checks(tmp_path) == commands


def test_a_project_file_that_is_too_large_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("test:\n\ttrue\n" + "#" * (1 << 20))
    assert detect_checks(tmp_path) == []


def test_a_folder_or_pipe_with_the_name_of_a_project_file_is_ignored(tmp_path: Path) -> None:
    import os

    (tmp_path / "Makefile").mkdir()
    os.mkfifo(tmp_path / "package.json")
    assert detect_checks(tmp_path) == []
