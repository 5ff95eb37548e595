"""Set-ups of Python projects."""

from collections.abc import Mapping
from typing import Any

from tests.system.copies.setups import SetUp

PIP = "{python} -m pip --python ../env/bin/python install -q --no-index --no-deps --no-build-isolation"
IGNORED = "__pycache__/\nbuild/\n*.egg-info/\n.venv/\n.tox/\n.nox/\n.pdm-build/\nuv.lock\n"
TEST = "from mypk import f\n\n\ndef test():\n    assert f() == 1\n"
SOURCE = "def f():\n    return 1\n"
BREAK = ("src/mypk/__init__.py", "return 1", "return 10")
SRC = {"src/mypk/__init__.py": SOURCE, "tests/test_a.py": TEST, ".gitignore": IGNORED}
ACTIVE = {"PATH": "{outside}/env/bin:{PATH}"}
IN_TREE = {"PATH": "{main}/.venv/bin:{PATH}", "VIRTUAL_ENV": "{main}/.venv"}


def project(backend: str = "setuptools.build_meta", requires: str = "setuptools", extra: str = "") -> Mapping[str, str]:
    build = f'[build-system]\nrequires = ["{requires}"]\nbuild-backend = "{backend}"\n'
    return {"pyproject.toml": f'{build}[project]\nname = "mypk"\nversion = "0.1"\ndescription = "x"\n{extra}'}


def active(name: str, more: Mapping[str, str] = {}, **fields: Any) -> SetUp:
    """Return a project with a `src` folder that is installed as editable in an active environment outside."""
    row: dict[str, Any] = {
        "files": {**SRC, **project(), **more},
        "environment": "../env",
        "prepare": f"{PIP} -e .",
        "check": "pytest -q",
        "broken": BREAK,
        "env": ACTIVE,
    }
    return SetUp(name=name, **{**row, **fields})


def isolated(name: str, check: str, more: Mapping[str, str] = {}, **fields: Any) -> SetUp:
    """Return a project whose check makes its own environment, from wheels without a network."""
    files = {**SRC, **project(), **more}
    return SetUp(name=name, files=files, check=check, broken=BREAK, **fields)


HATCHLING = project("hatchling.build", "hatchling")
UV_PROJECT = project(
    "hatchling.build",
    "hatchling",
    'requires-python = ">=3.11"\n[dependency-groups]\ndev = ["pytest"]\n'
    "[tool.uv]\nenvironments = [\"sys_platform == 'linux'\"]\n",
)
TOX_FILE = "[testenv]\n{}deps = pytest\ncommands = pytest -q\n"
NOX_FILE = """import nox


@nox.session
def t(session):
    session.install("pytest", "hatchling", "-e", ".")
    session.run("pytest", "-q")
"""
ASKS_GIT = """import os
import subprocess


def test_git():
    def ask(*words):
        return subprocess.check_output(["git", *words], text=True).strip()

    assert ask("describe", "--always", "--dirty")
    assert os.path.samefile(ask("rev-parse", "--show-toplevel"), os.getcwd())
"""
EXTENSION = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_c"};
PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&module); }
"""
SETUP_PY = 'from setuptools import Extension, setup\n\nsetup(ext_modules=[Extension("mypk._c", ["src/mypk/_c.c"])])\n'
FLAT = {"mypk/__init__.py": SOURCE, "tests/test_a.py": TEST, ".gitignore": IGNORED}
FLAT |= project(extra='[tool.setuptools]\npackages = ["mypk"]\n')
FLAT_BREAK = ("mypk/__init__.py", *BREAK[1:])
MONOREPO = {f"pkgs/a/{name}": text for name, text in {**SRC, **project()}.items()}

PYTHON = (
    active("editable, setuptools"),
    active("editable, hatchling", project("hatchling.build", "hatchling")),
    active("editable, pdm", project("pdm.backend", "pdm-backend")),
    active("editable, poetry", project("poetry.core.masonry.api", "poetry-core")),
    active("editable, flit", project("flit_core.buildapi", "flit-core")),
    active("editable, strict", prepare=f"{PIP} --config-settings editable_mode=strict -e .", own_path="named"),
    active("editable, flat, pytest", files=FLAT, broken=FLAT_BREAK),
    active("editable, flat, python -m pytest", files=FLAT, broken=FLAT_BREAK, check="python -m pytest -q"),
    active("editable, pythonpath = src", project(extra='[tool.pytest.ini_options]\npythonpath = ["src"]\n')),
    active(
        ".venv in the tree, .venv/bin/pytest",
        environment=".venv",
        prepare=f"{PIP} -e .".replace("../env", ".venv"),
        check=".venv/bin/pytest -q",
        env={},
    ),
    active(
        ".venv in the tree, activated",
        environment=".venv",
        prepare=f"{PIP} -e .".replace("../env", ".venv"),
        env=IN_TREE,
    ),
    active(
        "editable, a sub-folder of a monorepo",
        files=MONOREPO,
        folder="pkgs/a",
        prepare=f"{PIP} -e pkgs/a",
        broken=(f"pkgs/a/{BREAK[0]}", *BREAK[1:]),
    ),
    active("editable, a test that asks git", {"tests/test_b.py": ASKS_GIT}),
    active(
        "editable, an ignored _version.py",
        {
            "src/mypk/__init__.py": "from mypk._version import v\n\n\ndef f():\n    return v\n",
            "src/mypk/w.py": "W = 1\n",
            "tests/test_a.py": "from mypk import f\nfrom mypk.w import W\n\n\ndef test():\n    assert f() == W\n",
            ".gitignore": f"{IGNORED}_version.py\n",
            **project("hatchling.build", "hatchling"),
        },
        prepare=f"echo 'v = 1' > src/mypk/_version.py && {PIP} -e .",
        broken=("src/mypk/w.py", "W = 1", "W = 10"),
    ),
    active(
        "editable, a C extension built in place",
        {
            "src/mypk/__init__.py": f"import mypk._c\n\n\n{SOURCE}",
            "src/mypk/_c.c": EXTENSION,
            "setup.py": SETUP_PY,
            ".gitignore": f"{IGNORED}*.so\n",
        },
        needs=(("cc", "build-essential"),),
    ),
    active(
        "a .pth by hand, as conda develop",
        files=SRC,
        prepare='for packages in ../env/lib/python*/site-packages; do echo "$PWD/src" > $packages/conda.pth; done',
    ),
    active("PYTHONPATH absolute", files=SRC, prepare="", env={**ACTIVE, "PYTHONPATH": "{main}/src"}),
    active("PYTHONPATH relative", files=SRC, prepare="", env={**ACTIVE, "PYTHONPATH": "src"}),
    # Nothing of this installation leads to a tree: the check tests neither the copy nor the user's tree.
    active("pip install . without -e", prepare=f"{PIP} .", in_place="named", own_path="named"),
    isolated("uv run", "uv run -q pytest -q", UV_PROJECT, prepare="uv sync -q"),
    isolated("uv run, .venv activated", "uv run -q pytest -q", UV_PROJECT, prepare="uv sync -q", env=IN_TREE),
    isolated(
        "uv run, the environment outside",
        "uv run -q --no-sync pytest -q",
        UV_PROJECT,
        prepare="uv sync -q",
        env={"UV_PROJECT_ENVIRONMENT": "{outside}/env"},
        own_path="named",
    ),
    isolated("tox, a package", "tox -q -e py", {**HATCHLING, "tox.ini": TOX_FILE.format("")}),
    isolated(
        "tox, usedevelop",
        "tox -q -e py",
        {**HATCHLING, "tox.ini": TOX_FILE.format("usedevelop = true\n")},
        prepare="tox -q -e py > tox.log && rm tox.log",
    ),
    isolated(
        "nox",
        "nox -s t",
        {**HATCHLING, "noxfile.py": NOX_FILE},
    ),
    SetUp(
        name="dmypy, a server for each folder",
        files={"m.py": "def f() -> int:\n    return 1\n", ".gitignore": ".dmypy.json\n.mypy_cache/\n"},
        check="dmypy run -- m.py; code=$?; dmypy stop > /dev/null; exit $code",
        broken=("m.py", "return 1", "return 'x'"),
    ),
    SetUp(
        name="pre-commit, a local hook",
        files={
            "a.py": "x = 1\n",
            ".pre-commit-config.yaml": "repos:\n- repo: local\n  hooks:\n  - id: x\n    name: x\n    language: system\n"
            "    entry: grep -q '= 1$'\n    files: a.py\n",
        },
        check="pre-commit run --all-files",
        broken=("a.py", "= 1", "= 20"),
    ),
)
