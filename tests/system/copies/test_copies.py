"""The lab: usual set-ups, each built for real. A check in a copy of it tests the copy, or ralph names what it tests."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import installed
from tests.system.copies.lab import Lab, Mode
from tests.system.copies.node_setups import NODE_SETUPS
from tests.system.copies.other_setups import OTHERS
from tests.system.copies.python_setups import PYTHON
from tests.system.copies.setups import SetUp, Verdict

from ralph.process.keeper import Keeper

SETUPS = (*PYTHON, *NODE_SETUPS, *OTHERS)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces")


@pytest.mark.slow
@pytest.mark.parametrize("set_up", SETUPS, ids=lambda set_up: set_up.name)
def test_a_check_in_a_copy_tests_the_copy(
    set_up: SetUp, tmp_path: Path, tools: Path, keeper: Keeper, record_property: Callable[[str, object], None]
) -> None:
    for program, packages in set_up.needs:
        installed(program, packages)
    lab = Lab(set_up, tmp_path, tools, keeper)
    lab.build()
    before = lab.files()
    expectations: dict[Mode, Verdict] = {"in-place": set_up.in_place, "plain": set_up.own_path}
    verdicts: dict[Mode, tuple[str, str]] = {}
    with lab.serve():
        for mode, expected in expectations.items():
            verdicts[mode] = lab.try_copy(mode, canary=mode == "in-place" or expected == "named")
    record_property("copies", {mode: verdict for mode, (verdict, _) in verdicts.items()})
    assert verdicts["in-place"][0] == set_up.in_place, verdicts["in-place"][1]
    assert verdicts["plain"][0] == set_up.own_path, verdicts["plain"][1]
    assert lab.files() == before, "a file of the user's tree has changed"


def test_most_set_ups_work_and_none_is_silently_wrong() -> None:
    """The rows state what the test above has seen."""
    assert len({set_up.name for set_up in SETUPS}) == len(SETUPS) >= 55
    assert sum(set_up.in_place == "right" for set_up in SETUPS) >= 50
    assert sum(set_up.own_path == "right" for set_up in SETUPS) >= 40
    assert not [set_up.name for set_up in SETUPS if "wrong" in (set_up.in_place, set_up.own_path)]
