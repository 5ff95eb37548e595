"""A machine is identified by an id that stays when its name changes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralph.process import machine
from ralph.process.machine import machine_id


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    machine_id.cache_clear()
    yield
    machine_id.cache_clear()


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only file that may contain the id of this machine; it does not exist yet."""
    monkeypatch.setattr(machine, "FILES", (str(tmp_path / "machine-id"),))
    return tmp_path / "machine-id"


def rename(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sysname, _, *rest = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((sysname, name, *rest)))


def test_the_name_of_a_machine_with_an_id_does_not_matter(ids: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids.write_text("3d1219c7c4c5404aaa1f6d2a48adfda4\n")
    before = machine_id()
    machine_id.cache_clear()
    rename(monkeypatch, "other")
    assert machine_id() == before
    assert "3d1219c7" not in before  # machine-id(5): it is not for everyone


@pytest.mark.parametrize("content", [None, "", "\n", "uninitialized\n"])
def test_a_container_without_an_id_is_identified_by_its_name(
    ids: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        ids.write_text(content)
    before = machine_id()
    machine_id.cache_clear()
    rename(monkeypatch, "other")
    assert machine_id() != before


def test_a_mac_is_identified_by_its_platform_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ioreg").write_text("""#!/bin/sh\nprintf '{\\n    "IOPlatformUUID" = "5AA6B1C3"\\n}\\n'\n""")
    (tmp_path / "ioreg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("sys.platform", "darwin")
    before = machine_id()
    machine_id.cache_clear()
    rename(monkeypatch, "mac.fritz.box")
    assert machine_id() == before
