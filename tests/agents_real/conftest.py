"""Install the real agents before the first test, and give each test a room to run one in."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import install
import lab
import table
from modelserver import ModelServer

# Not in memory as the other tests: an agent's own sandbox brings a /dev along, and sees no workspace below it.
os.environ.pop("PYTEST_DEBUG_TEMPROOT", None)

NETWORK = pytest.StashKey[str]()
MISSING = pytest.StashKey[dict[str, str]]()
Rooms = Callable[..., AbstractContextManager[lab.Room]]


def pytest_configure(config: pytest.Config) -> None:
    """Install the agents, then leave the network: only the installation needs the registry."""
    config.addinivalue_line("markers", "scenario(title): a row of the table of agents and scenarios")
    config.pluginmanager.register(table.Results(config))
    config.stash[MISSING] = config.workerinput["missing"] if hasattr(config, "workerinput") else _missing()
    config.stash[NETWORK] = lab.leave_the_network()


def _missing() -> dict[str, str]:
    with suppress(install.InstallError):  # the test that needs it says so
        install.actionlint()
    found = install.bring(install.NAMES)
    return {name: str(error) for name, error in found.items() if isinstance(error, install.InstallError)}


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass on which agents are missing: the processes of a parallel run have no network to install them."""
    node.workerinput["missing"] = node.config.stash[MISSING]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(f"network: {config.stash[NETWORK]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test a little more time than a command may take, so that it can report what it saw."""
    for item in items:
        item.add_marker(pytest.mark.timeout(lab.LIMIT + 20))


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(params=lab.DRIVEN)
def agent(request: pytest.FixtureRequest) -> str:
    """Return each agent in turn; fail if it could not be installed."""
    name: str = request.param
    if name in (missing := request.config.stash[MISSING]):
        pytest.fail(missing[name])
    return name


@pytest.fixture
def room(agent: str, server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Rooms:
    """`with room(step, …) as place`: open a room with this test's agent and a script."""
    folder = tmp_path_factory.mktemp(agent)
    folder.rmdir()
    return partial(lab.room, agent, folder, server)


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`note(text)`: add a note to the result in the table."""
    return partial(record_property, "note")


@pytest.fixture(autouse=True)
def _stand_in_the_table(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    mark = request.node.get_closest_marker("scenario")
    if mark:
        record_property("scenario", mark.args[0])
        record_property("line", request.function.__code__.co_firstlineno)
        record_property("agent", request.node.callspec.params["agent"])
