"""The documentation is true: the reference is current, links lead somewhere, and the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_is_generated_from_the_code_as_it_is() -> None:
    check = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_every_module_that_the_architecture_names_is_there() -> None:
    source, text = ROOT / "src" / "ralph", (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in source.iterdir() if path.is_dir()}
    named = [name for name, room in re.findall(r"\b((\w+)/\w+)\.py\b", text) if room in rooms]
    named += [name for name, room in re.findall(r"`((\w+)/\w+)`", text) if room in rooms]
    assert len(named) > 20
    assert [name for name in named if not (source / f"{name}.py").exists()] == []


def test_the_readme_fits_its_promise_of_size() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_options_in_the_docs_exist() -> None:
    from ralph.run import options

    known = {name for rows in options.COMMANDS.values() for row in rows for name in row.names}
    for page in (ROOT / "README.md", ROOT / "docs" / "tutorial.md", *(ROOT / "docs" / "guides").glob("*.md")):
        for line in re.findall(r"^ *ralph (?:run|loop) .*$", page.read_text(), re.MULTILINE):
            used = set(re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", re.sub(r'"[^"]*"', '""', line)))
            assert used <= known | {"-c", "-m", "-f", "-p"}, line


def test_the_rule_of_the_guide_runs() -> None:
    page = (ROOT / "docs" / "guides" / "own-rule.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "Outcome.DONE 2\n", result.stderr


def test_every_guarantee_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reference" / "guarantees.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert named
    assert named <= there


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs mkdocs-material: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    pages = (tmp_path / "site").rglob("*.html")
    elsewhere = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//')
    assert [str(page) for page in pages if elsewhere.search(page.read_text())] == []
