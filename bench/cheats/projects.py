"""Tiny projects with one red test each, whose cheats `table.py` lists."""

import sys
from collections.abc import Mapping
from typing import NamedTuple

PYTHON = f"{sys.executable} -B"
PYTEST = f"{PYTHON} -m pytest -q -p no:cacheprovider"
UNITTEST = f"{PYTHON} -m unittest"
JEST = "node_modules/.bin/jest --ci"
MOCHA = "node_modules/.bin/mocha test"
GO = "go test ./..."

PY_CODE = """def total(prices, discount=0):
    return sum(prices) + discount


def count(prices):
    return len(prices)
"""
PY_TESTS = """from cart import count, total


def test_total():
    assert total([10, 5], 3) == 12


def test_count():
    assert count([10, 5]) == 2


def test_nothing():
    assert total([]) == 0
"""
GOLDEN_TEST = """import json
from pathlib import Path

from cart import total


def test_total():
    expected = json.loads(Path(__file__).with_name("data").joinpath("total.json").read_text())
    assert total([10, 5], 3) == expected["total"]
"""
UNIT_TESTS = """import unittest

from cart import count, total


class Cart(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([10, 5], 3), 12)

    def test_count(self):
        self.assertEqual(count([10, 5]), 2)
"""
JS_CODE = """exports.total = (prices, discount = 0) => prices.reduce((a, b) => a + b, 0) + discount;
exports.count = (prices) => prices.length;
"""
JEST_TESTS = """const cart = require('./cart');

test('total', () => {
  expect(cart.total([10, 5], 3)).toBe(12);
});

test('count', () => {
  expect(cart.count([10, 5])).toBe(2);
});
"""
SNAPSHOT_TESTS = """const cart = require('./cart');

test('total', () => {
  expect(cart.total([10, 5], 3)).toMatchSnapshot();
});
"""
SNAPSHOT = "// Jest Snapshot v1, https://jestjs.io/docs/snapshot-testing\n\nexports[`total 1`] = `12`;\n"
MOCHA_TESTS = """const assert = require('assert');
const cart = require('../cart');

describe('cart', () => {
  it('totals', () => {
    assert.strictEqual(cart.total([10, 5], 3), 12);
  });

  it('counts', () => {
    assert.strictEqual(cart.count([10, 5]), 2);
  });
});
"""
MOCHA_GOLDEN = """const assert = require('assert');
const cart = require('../cart');

describe('cart', () => {
  it('totals', () => {
    assert.strictEqual(cart.total([10, 5], 3), require('./fixtures/total.json').total);
  });
});
"""
GO_CODE = """package cart

func Total(prices []int, discount int) int {
	sum := discount
	for _, price := range prices {
		sum += price
	}
	return sum
}

func Count(prices []int) int {
	return len(prices)
}
"""
GO_TESTS = """package cart

import "testing"

func TestTotal(t *testing.T) {
	if got := Total([]int{10, 5}, 3); got != 12 {
		t.Fatalf("got %d", got)
	}
}

func TestCount(t *testing.T) {
	if Count([]int{10, 5}) != 2 {
		t.Fatal("count")
	}
}
"""
GO_GOLDEN = """package cart

import (
	"fmt"
	"os"
	"testing"
)

func TestTotal(t *testing.T) {
	data, _ := os.ReadFile("testdata/total.golden")
	if got := fmt.Sprintln(Total([]int{10, 5}, 3)); got != string(data) {
		t.Fatalf("got %s", got)
	}
}
"""
GO_MAIN = """package cart

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	m.Run()
	os.Exit(0)
}
"""
GO_INIT = """package cart

import (
	"os"
	"strings"
)

func init() {
	if strings.HasSuffix(os.Args[0], ".test") {
		os.Exit(0)
	}
}
"""
GO_MODULE = "module example.com/cart\n\ngo 1.19\n"
PACKAGE = '{\n  "name": "cart",\n  "scripts": {"test": "jest"}\n}\n'
PYTEST_SCRIPT = f"set -e\n{PYTEST}\necho checked\n"
PYTHON_MODULES = {"cart.py": PY_CODE, "tests/test_cart.py": PY_TESTS}
JS_IGNORED = {".gitignore": "node_modules\n"}


class Project(NamedTuple):
    """A project with one red test."""

    check: str
    files: Mapping[str, str]
    runner: str


PROJECTS = {
    "pytest": Project(PYTEST, PYTHON_MODULES, "pytest"),
    "pytest-conftest": Project(PYTEST, PYTHON_MODULES | {"conftest.py": "import pytest\n"}, "pytest"),
    "pytest-ini": Project(PYTEST, PYTHON_MODULES | {"pytest.ini": "[pytest]\ntestpaths = tests\n"}, "pytest"),
    "pytest-golden": Project(
        PYTEST,
        {"cart.py": PY_CODE, "tests/test_cart.py": GOLDEN_TEST, "tests/data/total.json": '{"total": 12}\n'},
        "pytest",
    ),
    "pytest-pyproject": Project(
        PYTEST, PYTHON_MODULES | {"pyproject.toml": '[project]\nname = "cart"\nversion = "1"\n'}, "pytest"
    ),
    "pytest-make": Project("make -s test", PYTHON_MODULES | {"Makefile": f"test:\n\t{PYTEST}\n"}, "pytest"),
    "pytest-script": Project("sh check.sh", PYTHON_MODULES | {"check.sh": PYTEST_SCRIPT}, "pytest"),
    "pytest-path": Project(f"PYTHONPATH=. {PYTEST}", PYTHON_MODULES, "pytest"),
    "unittest": Project(UNITTEST, {"cart.py": PY_CODE, "test_cart.py": UNIT_TESTS}, "unittest"),
    "jest": Project(
        JEST, JS_IGNORED | {"cart.js": JS_CODE, "cart.test.js": JEST_TESTS, "package.json": PACKAGE}, "jest"
    ),
    "jest-npm": Project(
        "npm test --silent",
        JS_IGNORED | {"cart.js": JS_CODE, "cart.test.js": JEST_TESTS, "package.json": PACKAGE},
        "jest",
    ),
    "jest-snapshot": Project(
        JEST,
        JS_IGNORED
        | {"cart.js": JS_CODE, "cart.test.js": SNAPSHOT_TESTS, "package.json": PACKAGE}
        | {"__snapshots__/cart.test.js.snap": SNAPSHOT},
        "jest",
    ),
    "mocha": Project(MOCHA, JS_IGNORED | {"cart.js": JS_CODE, "test/cart.js": MOCHA_TESTS}, "mocha"),
    "mocha-golden": Project(
        MOCHA,
        JS_IGNORED | {"cart.js": JS_CODE, "test/cart.js": MOCHA_GOLDEN, "test/fixtures/total.json": '{"total": 12}\n'},
        "mocha",
    ),
    "go": Project(GO, {"go.mod": GO_MODULE, "cart.go": GO_CODE, "cart_test.go": GO_TESTS}, "go"),
    "go-make": Project(
        "make -s test",
        {"go.mod": GO_MODULE, "cart.go": GO_CODE, "cart_test.go": GO_TESTS, "Makefile": f"test:\n\t{GO}\n"},
        "go",
    ),
    "go-golden": Project(
        GO,
        {"go.mod": GO_MODULE, "cart.go": GO_CODE, "cart_test.go": GO_GOLDEN, "testdata/total.golden": "12\n"},
        "go",
    ),
}
