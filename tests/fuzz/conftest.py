"""How much is tried? `make fuzz` is all of it; SHARE=0.02 is a fiftieth, with the same seed every time."""

import os

import pytest

SHARE = float(os.environ.get("SHARE", "1"))


@pytest.fixture(scope="session")
def share() -> float:
    return SHARE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(7200))
