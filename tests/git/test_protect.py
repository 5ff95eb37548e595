import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.git.protect import Protected, matches, parse_glob


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "tests/data").mkdir(parents=True)
    (root / "tests/test_a.py").write_text("assert a\n")
    (root / "tests/data/b.txt").write_text("b\n")
    (root / "tests/run.sh").write_text("#!/bin/sh\n")
    (root / "tests/run.sh").chmod(0o755)
    (root / "tests/link").symlink_to("data/b.txt")
    (root / "src.py").write_text("a = 1\n")
    return root


def watch(root: Path, *globs: str) -> Protected:
    protected = Protected(root, globs or ("tests/**",), store=root.parent / "store", aside=root.parent / "aside")
    protected.keep()
    return protected


def picture(root: Path) -> dict[str, object]:
    """Return every file below a folder: content and mode, or the target of a link."""
    paths = [path for path in root.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode)
        for path in paths
    }


def _same_size_and_times(root: Path) -> None:
    path = root / "tests/test_a.py"
    before = path.stat()
    path.write_text("assert b\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _folder_becomes_a_link(root: Path) -> None:
    (root / "tests").rename(root / "elsewhere")
    (root / "tests").symlink_to("elsewhere")


def _folder_becomes_a_file(root: Path) -> None:
    shutil.rmtree(root / "tests/data")
    (root / "tests/data").write_text("a file")


def _file_becomes_a_folder(root: Path) -> None:
    (root / "tests/test_a.py").unlink()
    (root / "tests/test_a.py").mkdir()
    (root / "tests/test_a.py/inside").write_text("x")


def _link_points_elsewhere(root: Path) -> None:
    (root / "tests/link").unlink()
    (root / "tests/link").symlink_to("/etc/passwd")


def _link_becomes_a_file(root: Path) -> None:
    (root / "tests/link").unlink()
    (root / "tests/link").write_text("b\n")


DEEDS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "an edit": (lambda root: (root / "tests/test_a.py").write_text("pass\n"), ["tests/test_a.py"]),
    "an edit that hides itself": (_same_size_and_times, ["tests/test_a.py"]),
    "a deletion": (lambda root: (root / "tests/data/b.txt").unlink(), ["tests/data/b.txt"]),
    "a deleted folder": (lambda root: shutil.rmtree(root / "tests/data"), ["tests/data/b.txt"]),
    "everything deleted": (
        lambda root: shutil.rmtree(root / "tests"),
        ["tests/data/b.txt", "tests/link", "tests/run.sh", "tests/test_a.py"],
    ),
    "a new file": (lambda root: (root / "tests/conftest.py").write_text("cheat"), ["tests/conftest.py"]),
    "a new link": (lambda root: (root / "tests/conftest.py").symlink_to("../src.py"), ["tests/conftest.py"]),
    "another mode": (lambda root: (root / "tests/run.sh").chmod(0o644), ["tests/run.sh"]),
    "a new package": (lambda root: (root / "tests/__init__.py").write_text("cheat"), ["tests/__init__.py"]),
    "a moved file": (lambda root: (root / "tests/test_a.py").rename(root / "src_b.py"), ["tests/test_a.py"]),
    "another target of a link": (_link_points_elsewhere, ["tests/link"]),
    "a link that becomes a file": (_link_becomes_a_file, ["tests/link"]),
    "a folder that becomes a link": (
        _folder_becomes_a_link,
        ["tests/data/b.txt", "tests/link", "tests/run.sh", "tests/test_a.py"],
    ),
    "a folder that becomes a file": (_folder_becomes_a_file, ["tests/data/b.txt"]),
    "a file that becomes a folder": (_file_becomes_a_folder, ["tests/test_a.py"]),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_changed_protected_files_are_named_and_restored(root: Path, deed: str) -> None:
    protected = watch(root)
    before = picture(root / "tests")
    do, names = DEEDS[deed]
    do(root)
    assert list(protected.restore()) == names
    assert picture(root / "tests") == before
    assert protected.restore() == ()


@pytest.mark.parametrize("deed", DEEDS)
def test_a_resumed_run_restores_the_files_of_its_first_start(root: Path, deed: str) -> None:
    watch(root)
    before = picture(root / "tests")
    do, names = DEEDS[deed]
    do(root)
    assert list(watch(root).restore()) == names
    assert picture(root / "tests") == before


HARMLESS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "another file": lambda root: (root / "src.py").write_text("a = 2\n"),
    "another time": lambda root: os.utime(root / "tests/test_a.py", (1, 1)),
    "the same content anew": lambda root: (root / "tests/test_a.py").write_text("assert a\n"),
    "an empty folder": lambda root: (root / "tests/nothing").mkdir(),
    "compiled code": lambda root: (
        (root / "tests/__pycache__").mkdir(),
        (root / "tests/__pycache__/test_a.cpython-311.pyc").write_bytes(b"x"),
    ),
    "a pipe": lambda root: os.mkfifo(root / "tests/pipe"),
}


@pytest.mark.parametrize("deed", HARMLESS)
def test_changes_of_other_files_are_not_named(root: Path, deed: str) -> None:
    protected = watch(root)
    HARMLESS[deed](root)
    assert protected.restore() == ()


def test_new_files_stay_unless_they_change_how_other_tests_run(root: Path) -> None:
    protected = watch(root)
    new = {
        "tests/test_new.py": False,
        "tests/new/__init__.py": False,
        "tests/new/test_c.py": False,
        "tests/new/conftest.py": True,
        "tests/jest.config.ts": True,
        "tests/__init__.py": True,
    }
    for name in new:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("new")
    assert list(protected.restore()) == sorted(name for name, is_refused in new.items() if is_refused)
    assert [name for name in new if (root / name).exists()] == [name for name, refused in new.items() if not refused]
    assert Path(protected.aside, "tests/__init__.py").read_text() == "new"


def test_all_new_files_can_be_refused(root: Path) -> None:
    protected = Protected(
        root, ("tests/**",), store=root.parent / "store", aside=root.parent / "aside", refuses_new=True
    )
    protected.keep()
    (root / "tests/test_new.py").write_text("new")
    assert protected.restore() == ("tests/test_new.py",)


def test_the_agents_versions_are_moved_aside(root: Path) -> None:
    protected = watch(root)
    for number in (1, 2):
        (root / "tests/test_a.py").write_text(f"pass {number}")
        (root / "tests/conftest.py").write_text(f"new {number}")
        protected.restore()
        aside = root.parent / f"aside/{number:03}/tests"
        assert picture(aside).keys() == {"conftest.py", "test_a.py"}
        assert (aside / "test_a.py").read_text() == f"pass {number}"
    assert not (root.parent / "aside/003").exists()


def test_a_restore_does_not_write_through_a_link(root: Path) -> None:
    protected = watch(root)
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "test_a.py").write_text("not yours")
    shutil.rmtree(root / "tests")
    (root / "tests").symlink_to(outside)
    protected.restore()
    assert picture(outside).keys() == {"test_a.py"}
    assert (outside / "test_a.py").read_text() == "not yours"
    assert not (root / "tests").is_symlink()


def test_many_edits_in_one_moment_are_all_noticed(root: Path) -> None:
    path = root / "tests/test_a.py"
    for number in range(30):
        path.write_text(f"assert {number:03}\n")
        protected = Protected(root, ("tests/**",), store=root.parent / f"store{number}", aside=root.parent / "aside")
        protected.keep()
        path.write_text(f"assert {number:03}!")
        assert protected.restore() == ("tests/test_a.py",)


def test_a_restored_file_has_a_new_modification_time(root: Path) -> None:
    protected = watch(root)
    os.utime(root / "tests/test_a.py", (1, 1))
    (root / "tests/test_a.py").write_text("pass")
    built = root / "built"
    built.write_text("from pass")
    protected.restore()
    assert (root / "tests/test_a.py").stat().st_mtime_ns >= built.stat().st_mtime_ns


def test_files_that_match_an_exception_are_not_protected(root: Path) -> None:
    protected = watch(root, "tests/**", "!tests/data/")
    (root / "tests/data/b.txt").write_text("changed")
    (root / "tests/data/c.txt").write_text("new")
    assert protected.restore() == ()


def test_a_name_without_a_slash_is_protected_everywhere_but_in_libraries(root: Path) -> None:
    (root / "node_modules/x").mkdir(parents=True)
    for folder in ("", "tests/", "node_modules/x/"):
        (root / f"{folder}package.json").write_text("{}")
    protected = watch(root, "package.json")
    for folder in ("", "tests/", "node_modules/x/"):
        (root / f"{folder}package.json").write_text("{ }")
    assert protected.restore() == ("package.json", "tests/package.json")


def test_settings_can_be_protected_and_run_data_is_not(root: Path) -> None:
    (root / ".ralph/runs/1").mkdir(parents=True)
    (root / ".ralph/settings.json").write_text("{}")
    protected = watch(root, ".ralph/**")
    (root / ".ralph/runs/1/journal.ndjson").write_text("{}")
    (root / ".ralph/progress.md").write_text("1")
    (root / ".ralph/settings.json").write_text("{ }")
    assert protected.restore() == (".ralph/settings.json",)


def test_odd_names_are_protected(root: Path) -> None:
    names = [b"line\nend", b"not-utf8-\xff", b"-dash", b"with space"]
    for name in names:
        (root / "tests" / os.fsdecode(name)).write_text("1")
    protected = watch(root)
    for name in names:
        (root / "tests" / os.fsdecode(name)).write_text("2")
    assert protected.restore() == ("tests/-dash", "tests/line\nend", "tests/not-utf8-\\xff", "tests/with space")
    assert watch(root).restore() == ()
    assert {(root / "tests" / os.fsdecode(name)).read_text() for name in names} == {"1"}


def test_patterns_that_match_no_file_are_reported(root: Path) -> None:
    assert watch(root, "tests/**", "test/**", "!tests/data/", "*.lock").unmatched_patterns == ("test/**", "*.lock")


def test_a_new_file_is_refused_even_if_no_file_matched_at_the_start(root: Path) -> None:
    watch(root, "spec/**")
    (root / "spec").mkdir()
    (root / "spec/conftest.py").write_text("new")
    assert watch(root, "spec/**").restore() == ("spec/conftest.py",)


def test_a_new_file_that_is_named_without_a_wildcard_is_refused(root: Path) -> None:
    protected = watch(root, "check.sh", "tests/one.py")
    for name in ("check.sh", "tests/one.py", "tests/two.py"):
        (root / name).write_text("new")
    assert protected.restore() == ("check.sh", "tests/one.py")


def test_a_list_that_cannot_be_read_is_an_error(root: Path) -> None:
    watch(root)
    (root.parent / "store/protected.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        watch(root)


def test_only_the_user_can_read_the_copies(root: Path) -> None:
    watch(root)
    assert (root.parent / "store").stat().st_mode & 0o077 == 0


def test_copies_that_cannot_be_written_are_an_error(root: Path) -> None:
    (root.parent / "store").write_text("a file")
    with pytest.raises(UserError, match="store"):
        watch(root)


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
def test_the_start_of_a_pattern_is_the_folder_before_its_first_wildcard(text: str, start: str) -> None:
    assert parse_glob(text).start == start


@pytest.mark.parametrize("text", ["", "/", "!", "!/", "../x", "a/../../b", "..", "[z-a]"])
def test_a_pattern_that_can_match_nothing_in_the_workspace_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_glob(text)


@pytest.mark.parametrize(
    "text", ["[", "a[b", "[]", "[!]", "(", "a+b", "[[x]", "[a&&b]", "[a--z]", "[~~]", "[||]", "\\", "a\\"]
)
def test_unusual_patterns_are_taken_literally_or_refused(text: str) -> None:
    with suppress(UserError):
        matches([parse_glob(text)], "some/path")


def test_a_protected_file_that_became_a_sparse_terabyte_is_restored_quickly(root: Path) -> None:
    before = picture(root)
    protected = watch(root)
    os.truncate(root / "tests/test_a.py", 900 << 30)
    assert protected.restore() == ("tests/test_a.py",)
    assert picture(root) == before


def test_reading_large_protected_files_can_be_interrupted(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (3 << 20))
    with pytest.raises(UserError, match="was interrupted"):
        Protected(
            tmp_path, ("large",), store=tmp_path / "store", aside=tmp_path / "aside", wants_end=lambda: True
        ).keep()


def test_wildcards_backtrack() -> None:
    for glob, path in {
        "**/**/*b*": "b*/x",
        "**/a/**/b": "a/x/a/b",
        "*ab*ab": "abxab",
        "**/tests/*/x": "tests/tests/a/x/below",
        "a/**/b/**": "a/b/b/c",
    }.items():
        assert matches([parse_glob(glob)], path), glob
    assert not matches([parse_glob("*ab*ab")], "xab")
