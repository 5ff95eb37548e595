"""A fleet in small: a PostgreSQL, a bare repository as remote, and a clone for each machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.machines import Fleet, Machine
from tests.fleet.postgres import Postgres, needed


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One for all tests: each has a database of its own in it."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One that may be stopped, killed and started again."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def pgbouncer() -> str:
    return needed("pgbouncer", "pgbouncer")


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty one."""
    url = postgres.database()
    yield url
    postgres.forget(url)


@pytest.fixture
def fleet(tmp_path: Path, postgres: Postgres) -> Iterator[Fleet]:
    made = Fleet(tmp_path, postgres, is_warm=sys.platform == "linux")
    yield made
    made.close()


@pytest.fixture(scope="session")
def anywhere(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Machine]:
    """A clone for commands that bring no work."""
    made = Fleet(tmp_path_factory.mktemp("anywhere"), postgres)
    yield made.machine("a")
    made.close()
