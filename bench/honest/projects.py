"""The projects whose commits are judged, and how their tests are run."""

from collections.abc import Mapping

from msgspec import Struct, field

PYTEST = "pytest -q --tb=short -p no:cacheprovider -o addopts= -W ignore --color=no"


class Project(Struct, frozen=True):
    """`source` is the folder on PYTHONPATH. `generated` are files that a build makes. If it `is_scoped`, only the test
    files that the commit touches are run."""

    check: str
    source: str = "."
    newest: str = "HEAD"
    generated: Mapping[str, str] = field(default_factory=dict)
    is_scoped: bool = False
    modules: bool = False

    def is_scope(self, path: str) -> bool:
        return path.rpartition("/")[2].startswith("test_") and path.endswith(".py")


PROJECTS: dict[str, Project] = {
    "un33k+python-slugify": Project(f"{PYTEST} test.py"),
    "python-humanize+humanize": Project(
        f"{PYTEST} tests", "src", generated={"src/humanize/_version.py": "__version__ = version = '4.0'\n"}
    ),
    "mahmoud+boltons": Project(f"{PYTEST} tests"),
    "astanin+python-tabulate": Project(f"{PYTEST} test"),
    "keleshev+schema": Project(f"{PYTEST} test_schema.py"),
    "more-itertools+more-itertools": Project(PYTEST, is_scoped=True),
    "pallets+itsdangerous": Project(f"{PYTEST} tests", "src"),
    "alecthomas+voluptuous": Project(f"{PYTEST} voluptuous/tests"),
    "Suor+funcy": Project(f"{PYTEST} tests"),
    "theskumar+python-dotenv": Project(f"{PYTEST} tests", "src"),
    "Masterminds+semver": Project("go test ./..."),
    "spf13+pflag": Project("go test ./..."),
    "micromatch+picomatch": Project("node_modules/.bin/mocha --recursive test", modules=True),
}
