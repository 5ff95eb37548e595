"""The guide's examples work: systemd accepts the unit, and unit and Deployment start a worker without a secret in its
command line."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.fleet.machines import Fleet
from tests.fleet.postgres import needed

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
RALPH = Path(sys.executable).parent / "ralph"


@pytest.fixture
def unit() -> str:
    return (EXAMPLES / "ralph-worker.service").read_text()


def assert_worker_starts(fleet: Fleet, command: list[str], env: dict[str, str]) -> None:
    """Run the command of an example, with the URL of the database in a file."""
    secret = fleet.folder / "db"
    secret.write_text(fleet.url + "\n")
    machine = fleet.machine("a")
    known = {**machine.env, **env, "RALPH_DB": f"@{secret}"}
    assert command[0].endswith("ralph")
    with open(machine.log, "wb") as log:
        machine.process = subprocess.Popen([str(RALPH), *command[1:]], cwd=machine.folder, env=known, stderr=log)
    fleet.wait(lambda: "looks for work" in machine.said, "the first message")
    line = Path("/proc", str(machine.process.pid), "cmdline").read_bytes()
    assert b"postgres" not in line
    machine.process.terminate()
    assert machine.process.wait(30) == 130


def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    place = tmp_path / "ralph-worker.service"
    place.write_text(unit.replace("/usr/local/bin/ralph", str(RALPH)))
    done = subprocess.run(
        [needed("systemd-analyze", "systemd"), "verify", str(place)], capture_output=True, text=True, check=False
    )
    about = [line for line in done.stderr.splitlines() if "ralph-worker" in line]
    assert not about, about


def test_the_unit_starts_a_worker(unit: str, fleet: Fleet) -> None:
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert settings["Environment"] == "RALPH_DB=@%d/db"
    assert settings["LoadCredential"].startswith("db:")
    assert settings["SuccessExitStatus"] == "130"
    assert_worker_starts(fleet, settings["ExecStart"].replace("%H", "here").split(), {})


def test_the_deployment_starts_a_worker(fleet: Fleet) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "ralph-worker.yaml").read_text())
    assert (made["kind"], made["apiVersion"]) == ("Deployment", "apps/v1")
    pod = made["spec"]["template"]
    assert made["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (worker,) = pod["spec"]["containers"]
    mounts = {mount["name"] for part in (worker, *pod["spec"]["initContainers"]) for mount in part["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}
    plain = {one["name"]: one["value"] for one in worker["env"] if "value" in one}
    assert plain["RALPH_DB"] == "@/secret/db"
    assert_worker_starts(fleet, [word.replace("$(POD)", "pod-1") for word in worker["command"]], {})
