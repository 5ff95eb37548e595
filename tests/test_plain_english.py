"""The lint for variable names finds what it looks for, and its limit has no slack."""

from pathlib import Path

from tests.plain_english import MOST_VAGUE_NAMES, find_vague_names, list_vague_names

PLANTED = """
def changed(files: list[str], known: str, *, _kept: int = 0) -> list[str]:
    found = [one for one in files if one != known]
    with open("x") as said:
        seen: int = 1
    return (lambda one: one)(found)
"""
NOUNS = """
def changed(files: list[str]) -> list[str]:
    result = [file.found for file in files]
    return f(seen=result)
"""


def test_the_lint_finds_variables_and_arguments_named_after_an_act(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(PLANTED)
    names = sorted(name for _, name in find_vague_names(source))
    assert names == ["_kept", "found", "known", "one", "one", "said", "seen"]


def test_the_lint_allows_nouns_attributes_and_keywords_of_a_call(tmp_path: Path) -> None:
    source = tmp_path / "nouns.py"
    source.write_text(NOUNS)
    assert not list(find_vague_names(source))


def test_the_limit_of_vague_names_has_little_slack() -> None:
    count = len(list_vague_names(Path(__file__).parents[1]))
    assert count <= MOST_VAGUE_NAMES <= count + 20, f"{count} vague names: set MOST_VAGUE_NAMES to that"
