"""Why there is no box here, told in one line with a way out."""

from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.processes.box import Refusing, find_bubblewrap, refusal, version_in


@pytest.mark.parametrize(
    ("said", "machine", "message"),
    [
        ("bwrap: setting up uid map: Permission denied\n", Refusing(has_apparmor=True), "AppArmor"),
        ("bwrap: No permissions to create new namespace", Refusing(has_no_namespaces=True), "the kernel lets nobody"),
        ("bwrap: pivot_root: Operation not permitted", Refusing(is_container=True), "this container"),
        ("bwrap: Unknown option --unshare-cgroup", Refusing(), "bubblewrap is too old"),
        ("sh: 1: cannot create /tmp/.probe: No space left on device", Refusing(is_container=True), "no room"),
        ("bwrap: Can't mount proc: Oh no", Refusing(), "could not make a box: Can't mount proc: Oh no"),
        ("", Refusing(), "it said nothing"),
    ],
)
def test_every_refusal_is_one_line_with_a_hint(said: str, machine: Refusing, message: str) -> None:
    error = refusal(said, machine)
    assert message in error.message
    assert error.hint
    assert "\n" not in error.advice


@pytest.mark.parametrize(
    ("text", "version"), [("bubblewrap 0.8.0\n", (0, 8, 0)), ("bubblewrap 0.11\n", (0, 11)), ("", ())]
)
def test_its_version_is_read(text: str, version: tuple[int, ...]) -> None:
    assert version_in(text) == version


def test_one_in_the_workspace_is_not_trusted(tmp_path: Path) -> None:
    for name in ("workspace", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bwrap").write_text("#!/bin/sh\n")
        (tmp_path / name / "bwrap").chmod(0o755)
    path = f"{tmp_path}/missing:{tmp_path}/workspace:{tmp_path}/elsewhere"
    assert find_bubblewrap({"PATH": path}, f"{tmp_path}/workspace") == f"{tmp_path}/elsewhere/bwrap"
    with pytest.raises(UserError, match="not installed"):
        find_bubblewrap({"PATH": f"{tmp_path}/workspace"}, f"{tmp_path}/workspace")
