"""Set-ups of Node projects. The runners are stand-ins: only a registry has the real ones."""

import json
from collections.abc import Mapping
from typing import Any

from tests.system.copies.setups import SetUp

RUNNER = "a runner with 20 lines"
NODE = (("node", "nodejs"), ("npm", "npm"))
IGNORED = {".gitignore": "node_modules/\n"}
INDEX = {"index.js": "exports.f = () => 1\n"}
BREAK = ("index.js", "=> 1", "=> 2")
NODE_TEST = "require('node:test')('x', () => require('assert').equal(require('{}').f(), 1))\n"
INSTALL = "npm install -s --offline --no-audit --no-fund"


def package(test: str, **more: Any) -> Mapping[str, str]:
    return {"package.json": json.dumps({"name": "x", "version": "1.0.0", "scripts": {"test": test}, **more})}


def with_runner(runner: str, test_file: str, test: str, **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "name": f"npm, {runner}",
        "files": {**IGNORED, **INDEX, test_file: test, **package(runner)},
        "prepare": f"{INSTALL} -D {{tools}}/little-runner.tgz",
        "check": "npm test",
        "broken": BREAK,
        "needs": NODE,
        "stand_in": RUNNER,
    }
    return SetUp(**{**row, **fields})


MOCHA = "it('x', () => require('assert').equal(require('..').f(), 1))\n"
JEST = "test('x', () => require('assert').equal(require('./index').f(), 1))\n"
# What pnpm makes: each package in a store, and links to it.
PNPM = """set -- node_modules/.pnpm/little-runner@1.0.0/node_modules
mkdir -p $1 node_modules/.bin
tar -xzf {tools}/little-runner.tgz -C $1
mv $1/package $1/little-runner
ln -s .pnpm/little-runner@1.0.0/node_modules/little-runner node_modules/little-runner
ln -s ../little-runner/runner.js node_modules/.bin/mocha
"""
WORKSPACES = {
    **IGNORED,
    **package("node --test packages/b", private=True, workspaces=["packages/*"]),
    "packages/a/package.json": '{"name": "@r/a", "version": "1.0.0"}',
    "packages/b/package.json": '{"name": "@r/b", "version": "1.0.0", "dependencies": {"@r/a": "1.0.0"}}',
    "packages/a/index.js": INDEX["index.js"],
    "packages/b/b.test.js": NODE_TEST.replace("{}", "@r/a"),
}
LINKED = (
    "mkdir -p node_modules/@r && ln -s ../../packages/a node_modules/@r/a && ln -s ../../packages/b node_modules/@r/b"
)


def workspaces(name: str, **fields: Any) -> SetUp:
    row: dict[str, Any] = {
        "files": WORKSPACES,
        "prepare": LINKED,
        "check": "npm test",
        "broken": ("packages/a/index.js", "=> 1", "=> 2"),
        "needs": NODE,
    }
    return SetUp(name=name, **{**row, **fields})


NODE_SETUPS = (
    with_runner("mocha", "test/t.js", MOCHA),
    with_runner("jest", "a.test.js", JEST),
    with_runner("vitest", "a.test.js", JEST),
    with_runner(
        "mocha",
        "test/t.js",
        MOCHA,
        name="pnpm, mocha",
        prepare=PNPM,
        stand_in=f"{RUNNER}, and the folders that pnpm makes",
    ),
    workspaces("npm workspaces", prepare=INSTALL),
    workspaces("yarn workspaces", stand_in="the links that Yarn makes"),
    # Without a namespace the link leads to the user's tree, and its own links to the packages there.
    workspaces("npm workspaces, --setup ln -s", setup="ln -s {main}/node_modules node_modules", own_path="named"),
    workspaces("npm workspaces, --setup cp -a", setup="cp -a {main}/node_modules ."),
    SetUp(
        name="npm, file:../lib",
        files={
            **IGNORED,
            **package("node --test"),
            "../lib/package.json": '{"name": "lib", "version": "1.0.0"}',
            "../lib/index.js": "exports.g = 1\n",
            "index.js": "exports.f = () => require('lib').g\n",
            "a.test.js": NODE_TEST.replace("{}", "./index"),
        },
        prepare=f"{INSTALL} ../lib",
        check="npm test",
        broken=("index.js", "require('lib').g", "2"),
        needs=NODE,
        own_path="cannot start",
    ),
    SetUp(
        name="node --test, no dependencies",
        files={**IGNORED, **INDEX, "a.test.js": NODE_TEST.replace("{}", "./index")},
        check="node --test",
        broken=BREAK,
        needs=NODE[:1],
    ),
    SetUp(
        name="npm link",
        files={name: text for name, text in WORKSPACES.items() if name != "packages/b/package.json"},
        prepare='mkdir -p ../global/@r && ln -s "$PWD/packages/a" ../global/@r/a',
        check="node --test packages/b",
        broken=("packages/a/index.js", "=> 1", "=> 2"),
        env={"NODE_PATH": "{outside}/global"},
        needs=NODE[:1],
        own_path="named",
    ),
)
