"""Which files are tests, and what is undone to get the tests as they were."""

import pytest

from ralph.core.file_classes import PathChange, changes_how_tests_run, file_class, is_test_file, plan_old_tests

TESTS = {
    "python": ("tests/test_a.py", "test_a.py", "a_test.py", "test.py", "tests.py", "app/tests.py", "tests/data/a.json"),
    "javascript": ("src/a.test.ts", "a.spec.jsx", "__tests__/a.js", "src/__mocks__/a.js", "e2e/login.js"),
    "snapshots": ("src/__snapshots__/a.test.js.snap", "a.snap", "snapshots/a.json"),
    "go": ("a/a_test.go", "a/testdata/in.txt"),
    "rust": ("tests/it.rs", "crates/a/tests/it.rs", "crates/a/tests/fixtures/a.toml"),
    "java": ("src/test/java/x/FooTest.java", "FooTest.java", "x/FooIT.java", "FooSpec.groovy", "FooTests.kt"),
    "c#": ("Foo.Tests/Usage.cs", "FooTests.cs", "Foo.UnitTests/A.cs", "Foo.IntegrationTests/appsettings.json"),
    "php": ("tests/FooTest.php", "src/FooTest.php"),
    "ruby": ("spec/models/a_spec.rb", "test/a_test.rb", "test/fixtures/users.yml"),
    "data": ("fixtures/a.json", "fixture/a.json", "__fixtures__/a.json", "test-data/a.csv"),
}
RUNNERS = (
    *("conftest.py", "tests/conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "noxfile.py"),
    *(
        "sitecustomize.py",
        "usercustomize.py",
        "a.pth",
        ".coveragerc",
        "pytest.py",
        "unittest/__init__.py",
        "_pytest.py",
    ),
    *(
        "jest.config.js",
        "jest.setup.ts",
        "jest.e2e.config.js",
        "vitest.config.ts",
        "vitest.workspace.ts",
        "vitest.setup.ts",
    ),
    *("karma.conf.js", "ava.config.js", "playwright.config.ts", "cypress.config.js", "cypress.json", "wdio.conf.js"),
    *(
        ".mocharc.json",
        ".mocharc",
        "mocha.opts",
        ".nycrc",
        ".c8rc.json",
        "setupTests.js",
        "src/setupTests.ts",
        "bunfig.toml",
    ),
    *(
        "phpunit.xml",
        "phpunit.xml.dist",
        "Pest.php",
        ".rspec",
        "spec/spec_helper.rb",
        "rails_helper.rb",
        "test_helper.exs",
    ),
    *("junit-platform.properties", "testng.xml", "nextest.toml", ".config/nextest.toml", "a.runsettings"),
)
MIXED = (
    *("pyproject.toml", "setup.cfg", "package.json", "packages/a/package.json", "Makefile", "GNUmakefile", "justfile"),
    *(
        "Cargo.toml",
        "go.mod",
        "pom.xml",
        "build.gradle.kts",
        "composer.json",
        "Rakefile",
        "CMakeLists.txt",
        "deno.json",
    ),
    *(
        "tsconfig.json",
        "tsconfig.build.json",
        "babel.config.js",
        ".babelrc",
        ".babelrc.json",
        "vite.config.ts",
        "A.csproj",
    ),
)
OTHERS = (
    *("src/contest.py", "latest.py", "src/testing.py", "attest/a.py", "src/latest.java", "src/Contest.java"),
    *("src/a.py", "README.md", "docs/testing.md", "src/respect.js", "src/pytest.py", "lib/unittest/a.py", "Audit.cs"),
)


@pytest.mark.parametrize("path", [path for paths in TESTS.values() for path in paths])
def test_tests_and_their_data_are_known_in_every_language(path: str) -> None:
    assert file_class(path) == "test"


@pytest.mark.parametrize("path", RUNNERS)
def test_files_that_only_say_how_tests_run(path: str) -> None:
    assert (file_class(path), is_test_file(path), changes_how_tests_run(path)) == ("runner", True, True)


@pytest.mark.parametrize("path", MIXED)
def test_files_that_say_how_tests_run_among_other_things(path: str) -> None:
    assert (file_class(path), is_test_file(path), changes_how_tests_run(path)) == ("mixed", False, True)


@pytest.mark.parametrize("path", OTHERS)
def test_other_files_are_none_of_these(path: str) -> None:
    assert file_class(path) == ""


@pytest.mark.parametrize(
    ("change", "restored", "removed"),
    [
        (("M", "tests/test_a.py"), ["tests/test_a.py"], []),
        (("T", "tests/test_a.py"), ["tests/test_a.py"], []),
        (("D", "tests/test_a.py"), ["tests/test_a.py"], []),
        (("A", "tests/test_b.py"), [], ["tests/test_b.py"]),
        (("A", "conftest.py"), [], ["conftest.py"]),
        (("M", "pyproject.toml"), ["pyproject.toml"], []),
        (("D", "Makefile"), ["Makefile"], []),
        (("A", "sitecustomize.py"), [], ["sitecustomize.py"]),
        (("R090", "tests/test_a.py", "tests/test_b.py"), ["tests/test_a.py"], ["tests/test_b.py"]),
        (("R100", "test_a.py", "old_a.txt"), ["test_a.py"], ["old_a.txt"]),  # hidden from the runner
        (("C075", "tests/test_a.py", "tests/test_b.py"), [], ["tests/test_b.py"]),
        (("C075", "tests/test_a.py", "src/a.py"), [], []),
        (("M", "src/a.py"), [], []),
        (("A", "src/b.py"), [], []),
        (("D", "README.md"), [], []),
    ],
)
def test_what_is_undone_of_a_change(change: tuple[str, ...], restored: list[str], removed: list[str]) -> None:
    status, old, new = change[0], change[1], change[-1]
    plan = plan_old_tests([PathChange(status, old, new)])
    assert ([*plan.restored], [*plan.removed], plan.reported) == (restored, removed, ())
    assert bool(plan) == bool(restored or removed)


def test_a_new_test_that_a_check_names_stays() -> None:
    added = [PathChange("A", "test_new.py", "test_new.py"), PathChange("A", "test_more.py", "test_more.py")]
    assert plan_old_tests(added, ["test_new.py"]).removed == ("test_more.py",)


def test_another_file_that_a_check_names_is_reported_and_stays() -> None:
    changes = [PathChange("M", "calc.py", "calc.py"), PathChange("M", "check.sh", "check.sh")]
    plan = plan_old_tests(changes, ["calc.py", "check.sh"])
    assert (plan.restored, plan.removed, plan.reported) == ((), (), ("calc.py", "check.sh"))
    assert not plan


def test_mixed_files_can_be_left_out() -> None:
    changes = [PathChange("M", path, path) for path in ("pyproject.toml", "tests/test_a.py")]
    plan = plan_old_tests([*changes, PathChange("A", "setup.cfg", "setup.cfg")])
    assert (plan.mixed, plan.without_mixed.restored) == (("pyproject.toml", "setup.cfg"), ("tests/test_a.py",))
    assert plan.without_mixed.removed == ()
