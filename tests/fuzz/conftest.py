"""The amount of fuzzing: `make fuzz` runs all of it; SHARE=0.02 is a fiftieth, always with the same seed."""

import os

import pytest

SHARE = float(os.environ.get("SHARE", "1"))


@pytest.fixture(scope="session")
def share() -> float:
    return SHARE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(7200))
