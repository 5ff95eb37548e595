import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.repository.protect import matches, parse_glob

PATHS = [
    "a.lock",
    "src/a.lock",
    "src/deep/a.lock",
    "tests/x.py",
    "tests/sub/x.py",
    "src/tests/x.py",
    "tests",
    "conftest.py",
    "tests/conftest.py",
    "a/b/c",
    "a/c",
    "a/x/y/c",
    "abc",
    "a[b]c",
    "ac",
    "a-c",
    "a]c",
    "a\\c",
    "é.txt",
    "x y",
    "-dash",
    "!bang",
    "a/b",
    "b/a/b",
    "foo/bar/baz.txt",
    "foo/baz.txt",
    "line\nend",
    "a/line\nend/x",
]
PATTERNS = [
    ("*.lock",),
    ("tests/**",),
    ("tests/",),
    ("tests",),
    ("/tests",),
    ("./tests",),
    ("**/conftest.py",),
    ("conftest.py",),
    ("a/**/c",),
    ("a/*/c",),
    ("a/*",),
    ("a?c",),
    ("a[bx]c",),
    ("a[!b]c",),
    ("a[^b]c",),
    ("a[a-c]c",),
    ("a[]]c",),
    (r"a\[b\]c",),
    ("a[-]c",),
    ("*",),
    ("**",),
    ("foo/**/baz.txt",),
    ("/*.py",),
    ("tests/**", "!tests/conftest.py"),
    ("*.py", "!conftest.py"),
    ("!a.lock", "*.lock"),
    (r"\!bang",),
    ("-dash",),
    ("x y",),
    ("é.*",),
    ("line*",),
    ("a/b",),
    ("b",),
    ("a**b",),
    ("a/**",),
]


@pytest.mark.parametrize("patterns", PATTERNS)
def test_patterns_match_as_in_a_gitignore(tmp_path: Path, patterns: tuple[str, ...]) -> None:
    subprocess.run(("git", "init", "-q", tmp_path), check=True)
    (tmp_path / ".git/info/exclude").write_text("".join(f"{one.removeprefix('.')}\n" for one in patterns))
    asked = subprocess.run(
        ("git", "-C", tmp_path, "check-ignore", "--no-index", "-z", "--stdin"),
        input="\0".join(PATHS).encode(),
        capture_output=True,
        check=False,
    )
    ignored = {*asked.stdout.decode().split("\0")} - {""}
    globs = [parse_glob(text) for text in patterns]
    found = {path for path in PATHS if matches(globs, path)}
    if patterns == ("tests/",):  # git knows that a path it is asked about is no folder
        found -= {"tests"}
    assert found == ignored


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("tests/**", "tests"),
        ("a/b/c.txt", "a/b/c.txt"),
        ("*.lock", ""),
        ("tests", ""),
        ("/tests", "tests"),
        ("a/b*/c", "a"),
        ("**/x", ""),
        ("./x", "x"),
        ("tests/", ""),
        ("a/[x]/c", "a"),
    ],
)
def test_the_start_says_where_to_look(text: str, start: str) -> None:
    assert parse_glob(text).start == start


@pytest.mark.parametrize("text", ["", "/", "!", "!/", "../x", "a/../../b", "..", "[z-a]"])
def test_what_can_match_nothing_in_the_workspace_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_glob(text)


@pytest.mark.parametrize(
    "text", ["[", "a[b", "[]", "[!]", "(", "a+b", "[[x]", "[a&&b]", "[a--z]", "[~~]", "[||]", "\\", "a\\"]
)
def test_odd_patterns_are_read_literally_or_refused_but_do_no_harm(text: str) -> None:
    with suppress(UserError):
        matches([parse_glob(text)], "some/path")
