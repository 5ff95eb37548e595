"""Fixtures of the lab: the stand-ins of a registry, and the process that starts the checks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.copies.lab import make_tools

from ralph.process.keeper import Keeper


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def keeper() -> Iterator[Keeper]:
    with Keeper.start() as keeper:
        yield keeper
