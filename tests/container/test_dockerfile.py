"""Do the steps of the guide's Dockerfile lead to a ralph that works? They are played, word by word, in a fresh root
that is made of the distribution's packages. It takes minutes and the package registries: `make test-container`."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# How this machine reaches the registries is not for the container to know; here it has to.
WAYS = ("/etc/pip.conf", "/etc/npmrc", "/etc/resolv.conf", "/etc/hosts")
MOST_SECONDS = 1500

pytestmark = pytest.mark.timeout(2 * MOST_SECONDS)


class Container:
    """A root, and what the steps so far have said about how programs are started in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.entry = root, [""]
        self._env, self._cwd = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, "/"

    def play(self, step: str) -> None:
        word, _, rest = step.partition(" ")
        match word:
            case "FROM":
                assert rest == "debian:12"
            case "RUN":
                done = self.run("sh", "-c", rest)
                assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}"
            case "COPY":
                source, target = shlex.split(rest)
                shutil.copytree(
                    ROOT / source, self.root / target[1:], ignore=shutil.ignore_patterns(".*", "node_modules")
                )
                shutil.copy(ROOT / ".gitignore", self.root / target[1:])
            case "ENV":
                name, _, value = shlex.split(rest)[0].partition("=")
                self._env[name] = re.sub(r"\$(\w+)", lambda found: self._env[found[1]], value)
            case "WORKDIR":
                self._cwd = rest
                (self.root / rest[1:]).mkdir(exist_ok=True)
            case "ENTRYPOINT":
                self.entry = json.loads(rest)
            case _:
                raise AssertionError(f"nobody has said how to play {step}")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        known = [path for path in WAYS if os.path.exists(path)]
        binds = [word for path in known for word in ("--ro-bind", os.path.realpath(path), path)]
        trust = dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"), "/certificates")
        env = {**self._env, **trust, "npm_config_cafile": "/certificates", "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(
            [
                *("bwrap", "--unshare-pid", "--die-with-parent", "--cap-add", "ALL", "--bind", self.root, "/"),
                *("--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", "/tmp", *binds),
                *("--ro-bind", CERTIFICATES, "/certificates", "--chdir", self._cwd, "--", *words),
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MOST_SECONDS,
        )

    def ralph(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(*self.entry, *words)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    if shutil.which("mmdebstrap") is None or shutil.which("bwrap") is None or os.geteuid() != 0:
        pytest.skip("needs root and a maker of roots: apt-get install mmdebstrap bubblewrap")
    root = tmp_path_factory.mktemp("container") / "root"
    sources = sorted(
        map(str, (*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")))
    )
    words = ["mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Acquire::Check-Valid-Until "false"', "bookworm"]
    subprocess.run([*words, str(root), *sources], check=True, timeout=MOST_SECONDS)
    made = Container(root)
    guide = (ROOT / "docs" / "guides" / "sandbox.md").read_text()
    for step in re.findall(r"```dockerfile\n(.*?)```", guide, re.DOTALL)[0].splitlines():
        made.play(step)
    yield made
    shutil.rmtree(root, ignore_errors=True)


def test_the_image_contains_ralph_and_an_agent(container: Container) -> None:
    assert container.ralph("--version").stdout.startswith("ralph ")
    assert "Claude Code" in container.run("claude", "--version").stdout


def test_a_run_in_the_container_is_verified(container: Container) -> None:
    (container.root / "work" / "Makefile").write_text("test:\n\ttest -f made\n")
    agent = "sh -c 'touch made; echo \"<response>DONE</response>\"'"
    ran = container.ralph("run", "Make it", "--check", "make test", "--yolo", "--agent", agent)
    assert ran.returncode == 0, ran.stdout
    assert (container.root / "work" / "made").exists()


def test_asking_for_a_sandbox_in_the_container_explains_that_it_is_one(container: Container) -> None:
    ran = container.ralph("run", "x", "--agent", "true", "--sandbox")
    assert ran.returncode == 2
    assert "not installed" in ran.stdout
