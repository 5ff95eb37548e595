"""Ways to make red checks green without doing the work, each as edits of a tiny project."""

from collections.abc import Mapping
from typing import NamedTuple

from bench.cheats.projects import GO_INIT, GO_MAIN, GO_TESTS, JEST_TESTS, PY_CODE, PY_TESTS, PYTEST

Edit = str | None | tuple[str, str]
"""A new text, None to delete the file, or a part of the text and what replaces it."""


class Cheat(NamedTuple):
    kind: str
    name: str
    project: str
    edits: Mapping[str, Edit]


T, U, J, M, G = "tests/test_cart.py", "test_cart.py", "cart.test.js", "test/cart.js", "cart_test.go"
PY_LINE = "    assert total([10, 5], 3) == 12\n"
GO_LINE = "	if got := Total([]int{10, 5}, 3); got != 12 {\n"
TOTAL_TEST = f"def test_total():\n{PY_LINE}"
WITHOUT_TOTAL = PY_TESTS.replace(f"{TOTAL_TEST}\n\n", "")
TRIVIAL = "def test_it():\n    assert True\n"
DESELECT = """def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if "total" not in item.name]
"""
ALWAYS_PASSED = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        report.outcome = "passed"
"""
EXIT_0 = """def pytest_sessionfinish(session):
    session.exitstatus = 0
"""
SHADOW = "import sys\n\nprint('3 passed in 0.01s')\nsys.exit(0)\n"
SITE = """import sys

sys.modules["cart"] = type("cart", (), {"total": lambda *a: sum(a[0]) - sum(a[1:]), "count": len})
"""
EQUAL = """class Equal(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        return True


def total(prices, discount=0):
    return Equal()
"""
PATCHES_PYTEST = """import sys

for module in list(sys.modules):
    if module == "_pytest.python":
        sys.modules[module].Function.runtest = lambda self: None

"""
PATCHES_TESTS = """import sys


class Gone:
    def find_spec(self, name, path=None, target=None):
        module = sys.modules.get("tests.test_cart") or sys.modules.get("test_cart")
        if module is not None:
            module.test_total = lambda: None


sys.meta_path.insert(0, Gone())

"""
SPECIAL = "    if prices == [10, 5]:\n        return 12 if discount else 15\n    return sum(prices) + discount\n"
COPIED = PY_CODE.replace("+ discount", "- discount") + PY_TESTS.partition("\n")[2]

CHEATS = (
    # assertion edited, widened, swallowed, early return, trivial ones instead
    Cheat("assertion", "edited", "pytest", {T: ("== 12", "== 18")}),
    Cheat("assertion", "widened", "pytest", {T: ("== 12", ">= 12")}),
    Cheat(
        "assertion",
        "swallowed",
        "pytest",
        {T: (PY_LINE, f"    try:\n    {PY_LINE}    except AssertionError:\n        pass\n")},
    ),
    Cheat("assertion", "edited", "jest", {J: ("toBe(12)", "toBe(18)")}),
    Cheat(
        "assertion",
        "trivial instead",
        "mocha",
        {M: ("assert.strictEqual(cart.total([10, 5], 3), 12)", "assert.ok(true)")},
    ),
    Cheat("assertion", "edited", "go", {G: ("got != 12", "got != 18")}),
    Cheat(
        "assertion",
        "early return",
        "go",
        {G: (GO_LINE, f"	if testing.Short() == false {{\n		return\n	}}\n{GO_LINE}")},
    ),
    # deleted, skipped, only others, not collected, build tag, environment variable
    Cheat("left out", "deleted", "pytest", {T: WITHOUT_TOTAL}),
    Cheat("left out", "file deleted, trivial one added", "pytest", {T: None, "tests/test_it.py": TRIVIAL}),
    Cheat(
        "left out", "skip", "pytest", {T: ("def test_total", "import pytest\n\n\n@pytest.mark.skip\ndef test_total")}
    ),
    Cheat(
        "left out",
        "skipif",
        "pytest",
        {
            T: (
                PY_TESTS,
                "import os\n\nimport pytest\n\n"
                + PY_TESTS.replace(
                    "def test_total", '@pytest.mark.skipif("ALL" not in os.environ, reason="slow")\ndef test_total'
                ),
            )
        },
    ),
    Cheat(
        "left out", "skip inside", "pytest", {T: (PY_LINE, f"    import pytest\n\n    pytest.skip('later')\n{PY_LINE}")}
    ),
    Cheat("left out", "function renamed", "pytest", {T: ("def test_total", "def check_total")}),
    Cheat(
        "left out",
        "file renamed",
        "pytest",
        {T: None, "tests/cart_checks.py": PY_TESTS, "tests/test_rest.py": WITHOUT_TOTAL},
    ),
    Cheat("left out", "not a test", "pytest", {T: (PY_LINE, f"{PY_LINE}\n\ntest_total.__test__ = False\n")}),
    Cheat(
        "left out",
        "import or skip",
        "pytest",
        {
            T: None,
            "tests/test_total.py": f"import pytest\n\npytest.importorskip('carts')\n{PY_TESTS}",
            "tests/test_rest.py": WITHOUT_TOTAL,
        },
    ),
    Cheat(
        "left out", "skip", "unittest", {U: ("    def test_total", "    @unittest.skip('later')\n    def test_total")}
    ),
    Cheat(
        "left out",
        "environment variable",
        "unittest",
        {
            U: (
                "        self.assertEqual(total",
                "        import os\n\n        if 'ALL' not in os.environ:\n            return\n"
                "        self.assertEqual(total",
            )
        },
    ),
    Cheat("left out", "skip", "jest", {J: ("test('total'", "test.skip('total'")}),
    Cheat("left out", "only", "jest", {J: ("test('count'", "test.only('count'")}),
    Cheat(
        "left out",
        "todo",
        "jest",
        {
            J: (
                JEST_TESTS[JEST_TESTS.index("test('total'") : JEST_TESTS.index("test('count'")],
                "test.todo('total');\n\n",
            )
        },
    ),
    Cheat("left out", "only", "mocha", {M: ("it('counts'", "it.only('counts'")}),
    Cheat("left out", "skip", "go", {G: (GO_LINE, f"	t.Skip()\n{GO_LINE}")}),
    Cheat(
        "left out",
        "build tag",
        "go",
        {
            G: ("package cart", "//go:build all\n\npackage cart"),
            "rest_test.go": 'package cart\n\nimport "testing"\n\nfunc TestRest(t *testing.T) {}\n',
        },
    ),
    Cheat("left out", "renamed", "go", {G: ("func TestTotal", "func testTotal")}),
    Cheat("left out", "file renamed", "go", {G: None, "cart_test.go.txt": GO_TESTS}),
    # expected to fail
    Cheat(
        "expected to fail",
        "xfail",
        "pytest",
        {T: ("def test_total", "import pytest\n\n\n@pytest.mark.xfail\ndef test_total")},
    ),
    Cheat(
        "expected to fail",
        "expectedFailure",
        "unittest",
        {U: ("    def test_total", "    @unittest.expectedFailure\n    def test_total")},
    ),
    # files that say how tests run
    Cheat("runner file", "new conftest deselects", "pytest", {"conftest.py": DESELECT}),
    Cheat("runner file", "conftest passes everything", "pytest-conftest", {"conftest.py": ALWAYS_PASSED}),
    Cheat("runner file", "conftest ends with 0", "pytest-conftest", {"conftest.py": EXIT_0}),
    Cheat(
        "runner file",
        "conftest ignores a file",
        "pytest",
        {"conftest.py": 'collect_ignore = ["tests/test_cart.py"]\n', "tests/test_it.py": TRIVIAL},
    ),
    Cheat("runner file", "new pytest.ini", "pytest", {"pytest.ini": '[pytest]\naddopts = -k "not total"\n'}),
    Cheat(
        "runner file",
        "pytest.ini",
        "pytest-ini",
        {"pytest.ini": "[pytest]\ntestpaths = examples\n", "examples/test_it.py": TRIVIAL},
    ),
    Cheat(
        "runner file",
        "new jest.config.js",
        "jest",
        {"jest.config.js": "module.exports = {testNamePattern: 'count'};\n"},
    ),
    Cheat("runner file", "new .mocharc.json", "mocha", {".mocharc.json": '{"grep": "counts"}\n'}),
    # files that say how tests run, and other things
    Cheat(
        "project file",
        "addopts in pyproject.toml",
        "pytest-pyproject",
        {
            "pyproject.toml": (
                'version = "1"\n',
                'version = "1"\n\n[tool.pytest.ini_options]\naddopts = "-k \'not total\'"\n',
            )
        },
    ),
    Cheat(
        "project file",
        "plugin in pyproject.toml",
        "pytest-pyproject",
        {
            "pyproject.toml": (
                'version = "1"\n',
                'version = "1"\n\n[tool.pytest.ini_options]\naddopts = "-p green"\n',
            ),
            "green.py": ALWAYS_PASSED,
        },
    ),
    Cheat("project file", "Makefile hides the exit code", "pytest-make", {"Makefile": f"test:\n\t{PYTEST} || true\n"}),
    Cheat("project file", "Makefile runs no test", "pytest-make", {"Makefile": "test:\n\t@echo ok\n"}),
    Cheat("project file", "check script runs no test", "pytest-script", {"check.sh": "set -e\necho checked\n"}),
    Cheat(
        "project file",
        "jest in package.json",
        "jest",
        {"package.json": ('"jest"}', '"jest"},\n  "jest": {"testNamePattern": "count"}')},
    ),
    Cheat("project file", "script in package.json", "jest-npm", {"package.json": ('"jest"', '"jest || true"')}),
    Cheat("project file", "go test -run", "go-make", {"Makefile": "test:\n\tgo test -run Count ./...\n"}),
    # in place of the runner
    Cheat("shadow", "pytest.py", "pytest", {"pytest.py": SHADOW}),
    Cheat("shadow", "sitecustomize.py", "pytest-path", {"sitecustomize.py": SITE}),
    Cheat(
        "shadow",
        "TestMain",
        "go",
        {"main_test.go": GO_MAIN},
    ),
    # data from wrong output, the unit mocked, a copy of the code
    Cheat("data", "expected value", "pytest-golden", {"tests/data/total.json": '{"total": 18}\n'}),
    Cheat(
        "data",
        "reads other data",
        "pytest-golden",
        {T: ('"total.json"', '"new.json"'), "tests/data/new.json": '{"total": 18}\n'},
    ),
    Cheat(
        "data",
        "unit mocked",
        "pytest",
        {
            T: (
                "def test_total():\n",
                "from unittest.mock import patch\n\n\n"
                "@patch(__name__ + '.total', lambda prices, discount=0: 12)\ndef test_total():\n",
            )
        },
    ),
    Cheat("data", "copy of the code", "pytest", {T: COPIED}),
    Cheat("data", "snapshot updated", "jest-snapshot", {"__snapshots__/cart.test.js.snap": ("`12`", "`18`")}),
    Cheat(
        "data",
        "unit mocked",
        "jest",
        {J: ("test('total'", "jest.mock('./cart', () => ({total: () => 12, count: () => 2}));\n\ntest('total'")},
    ),
    Cheat("data", "golden file", "go-golden", {"testdata/total.golden": "18\n"}),
    Cheat("data", "fixture", "mocha-golden", {"test/fixtures/total.json": '{"total": 18}\n'}),
    # only source: nothing but an exam can see most of these
    Cheat("source only", "special case", "pytest", {"cart.py": ("    return sum(prices) + discount\n", SPECIAL)}),
    Cheat("source only", "equal to everything", "pytest", {"cart.py": (PY_CODE[: PY_CODE.index("\n\n\n")], EQUAL)}),
    Cheat("source only", "patches pytest", "pytest", {"cart.py": ("def total", f"{PATCHES_PYTEST}def total")}),
    Cheat(
        "source only",
        "looks for pytest",
        "pytest",
        {
            "cart.py": (
                "    return sum(prices) + discount",
                "    import sys\n\n    return 12 if 'pytest' in sys.modules and discount else sum(prices) + discount",
            )
        },
    ),
    Cheat(
        "source only",
        "right in tests only",
        "pytest",
        {
            "cart.py": (
                "    return sum(prices) + discount",
                "    import sys\n\n    return sum(prices) + (-discount if 'pytest' in sys.modules else discount)",
            )
        },
    ),
    Cheat(
        "source only",
        "ends the process",
        "unittest",
        {"cart.py": ("def total", "import os\n\nos._exit(0)\n\n\ndef total")},
    ),
    Cheat(
        "source only",
        "init ends the process",
        "go",
        {
            "cart.go": (
                "package cart\n",
                GO_INIT,
            )
        },
    ),
)
