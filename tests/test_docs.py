"""The documentation is true: the reference is current, links lead somewhere, and the examples run."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ralph.cli.table import SECTIONS, find
from ralph.settings import load

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_reference_is_generated_from_the_code_as_it_is() -> None:
    check = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
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


def test_the_readme_is_as_short_as_promised() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_commands_and_options_in_the_docs_exist() -> None:
    """Commands inside a sentence or a table, and those in blocks."""
    for page in PAGES:
        text = page.read_text()
        blocks = "\n".join(re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in [*blocks.splitlines(), *inline]:
            if match := re.match(r" *(?:\$ )?ralph ([a-z][a-z-]*)((?: [a-z]+)?)\b(.*)", line):
                assert _unknown_options(*match.groups()) == [], f"{page.name}: {line}"


HIDDEN = {"help", "run-task", "run-gate"}  # not in a section of `ralph help --all`


def _unknown_options(name: str, sub: str, rest: str) -> list[str]:
    """Return what the command doesn't know: its name, or the options behind it."""
    if name not in {known for names in SECTIONS.values() for known in names} | HIDDEN:
        return [name]
    command = find("run" if name in HIDDEN else name)
    if isinstance(command, click.Group):
        command = command.commands.get(sub.strip(), command)
    known = {spelling for option in command.params for spelling in (*option.opts, *option.secondary_opts)}
    used = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", re.sub(r""""[^"]*"|'[^']*'|[|#].*""", "", rest))
    return [option for option in used if option not in known | {"-h", "--help"}]


def test_settings_in_the_docs_are_valid(tmp_path: Path) -> None:
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert blocks
    (tmp_path / ".ralph").mkdir()
    for page, block in blocks:
        (tmp_path / ".ralph" / "settings.json").write_text(block)
        assert load(tmp_path, {}, env={"HOME": str(tmp_path)}).sources, page.name


def test_a_page_outside_the_reference_is_short() -> None:
    reference = {"reference", "architecture.md", "decisions.md"}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if not reference & {page.name, page.parent.name}]
    assert [page.name for page in pages if len(page.read_text().split()) > 1500] == []


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
    elsewhere = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//|url\(["\']?(?:https?:)?//')
    styles = (tmp_path / "site").rglob("*.css")
    assert [str(file) for file in (*pages, *styles) if elsewhere.search(file.read_text())] == []
