"""A fleet in small: a PostgreSQL, a bare repository as remote, and a clone for each machine."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.machines import Fleet
from tests.fleet.postgres import HOW, Postgres, program


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if not program("initdb"):
        if os.environ.get("CI"):
            pytest.fail(HOW)
        pytest.skip(HOW)
    made = Postgres()
    yield made
    made.close()


@pytest.fixture
def pgbouncer() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if not found:
        how = "pgbouncer is not installed: apt-get install pgbouncer"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    return found


@pytest.fixture
def fleet(tmp_path: Path, postgres: Postgres) -> Iterator[Fleet]:
    made = Fleet(tmp_path, postgres)
    yield made
    made.close()
