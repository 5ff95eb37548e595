"""A repository on a simulated GitHub, reached by the real `gh` and `git`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import installed
from tests.e2e.conftest import live
from tests.forge.hosted import LoopbackHost

__all__ = ["live"]


@pytest.fixture(scope="session")
def gh() -> str:
    """The real `gh`."""
    return installed("gh", "gh")


@pytest.fixture
def host(tmp_path: Path, environment: dict[str, str], gh: str) -> Iterator[LoopbackHost]:
    folder = tmp_path / "host"
    folder.mkdir()
    made = LoopbackHost(folder)
    environment |= made.env
    yield made
    made.close()


@pytest.fixture
def clone(host: LoopbackHost, repository: Path, git: Callable[..., str]) -> Path:
    """A clone of the host's repository."""
    git("remote", "add", "origin", "https://github.com/acme/shop.git")
    git("push", "-q", "-u", "origin", "main")
    return repository
