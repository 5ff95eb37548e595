"""Fixtures of a small fleet: a PostgreSQL server, a bare repository as remote, and a clone for each machine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.machines import Fleet, Machine
from tests.fleet.postgres import Postgres, needed


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server that all tests share; each test has its own database."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A server for one test, which may stop, kill and restart it."""
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def pgbouncer() -> str:
    return needed("pgbouncer", "pgbouncer")


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty database."""
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
    """A clone for commands that don't change anything in it."""
    made = Fleet(tmp_path_factory.mktemp("anywhere"), postgres)
    yield made.machine("a")
    made.close()
