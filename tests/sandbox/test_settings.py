"""Settings of the sandbox: which hosts it reaches, what it shows and hides; tasks and terminals in a sandbox."""

import json
import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pexpect
import pytest
from tests.conftest import Result

Ralph = Callable[..., Result]
PROXY = "http://127.0.0.1:17178"
DONE = 'echo "<response>DONE</response>"'


def ask(url: str) -> str:
    code = f'import urllib.request; urllib.request.urlopen("{url}")'
    return f"env -u no_proxy -u NO_PROXY http_proxy={PROXY} {sys.executable} -I -c '{code}'"


class _Yes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_allowed_hosts_are_reached_and_others_reported_once(
    ralph: Ralph, agent: Callable[..., str], workspace: Path, bubblewrap: str
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Yes) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        tries = (
            f"{ask(url)} && touch reached; {ask('http://example.org/')} && touch escaped; {ask('http://example.org/')}"
        )
        words = ("--sandbox-net", f"127.0.0.1:{server.server_port}", "--json", "-m", "1")
        result = ralph("run", "x", "--agent", agent(f"({tries}) 2> errors; {DONE}"), *words)
        server.shutdown()
        thread.join()
    assert result.code == 0, result.err
    assert (workspace / "reached").exists(), (workspace / "errors").read_text()
    assert not (workspace / "escaped").exists()
    told = [notice["text"] for notice in result.all("notice") if "does not allow" in notice["text"]]
    assert told == ["the sandbox does not allow example.org:80"]


def test_settings_can_show_hide_or_open_paths_for_writing(
    ralph: Ralph, agent: Callable[..., str], environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    home = Path(environment["HOME"])
    for name in ("readable", "writable"):
        (home / name).mkdir()
        (home / name / "file").write_text("x\n")
    (workspace / ".env").write_text("SECRET=1\n")
    (workspace / "deep").mkdir()
    (workspace / "deep" / "secret").write_text("x\n")
    (workspace / ".ralph").mkdir()
    said = {"read": ["~/readable"], "write": ["~/writable"], "hide": [".env", "deep/secret", "~/.nothing"]}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({"sandbox": said}))
    script = (
        "cat ~/readable/file > read; touch ~/readable/new; touch ~/writable/new;"
        f" cat .env deep/secret > hidden 2>&1; mv deep deep2; {DONE}"
    )
    assert ralph("run", "x", "--agent", agent(script), "--sandbox", "-m", "1").code == 0
    assert (workspace / "read").exists()
    assert not (home / "readable" / "new").exists()
    assert (home / "writable" / "new").exists()
    assert "SECRET" not in (workspace / "hidden").read_text()
    assert (workspace / "deep" / "secret").read_text() == "x\n"
    assert (workspace / ".env").read_text() == "SECRET=1\n"


@pytest.mark.parametrize(("checks", "seen"), [("true", "1"), ("false", "")])
def test_checks_run_inside_unless_configured_otherwise(
    ralph: Ralph, agent: Callable[..., str], workspace: Path, bubblewrap: str, checks: str, seen: str
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(f'{{"sandbox": {{"enabled": true, "checks": {checks}}}}}')
    assert (
        ralph("run", "x", "--agent", agent(DONE), "--check", "printenv RALPH_SANDBOX > seen; true", "-m", "1").code == 0
    )
    assert (workspace / "seen").read_text().strip() == seen


def test_a_supervised_task_runs_in_the_sandbox(
    ralph: Ralph, agent: Callable[..., str], tmp_path: Path, bubblewrap: str
) -> None:
    script = 'printenv RALPH_SANDBOX > "$RUN_FOLDER/output.md"; touch "$TASK_FOLDER/DONE"'
    words = ("task", "--root", str(tmp_path / "root"), "--project", "p", "--task", "t", "-p", "write DONE")
    result = ralph(*words, "--agent", agent(script), "--sandbox", "--restart-delay", "0")
    assert result.code == 0, result.err
    (output,) = (tmp_path / "root" / "p" / "t" / "runs").glob("*/output.md")
    assert output.read_text() == "1\n"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_merge_gate_runs_checks_and_setup_in_the_sandbox(
    ralph: Ralph,
    agent: Callable[..., str],
    repository: Path,
    git: Callable[..., str],
    environment: dict[str, str],
    bubblewrap: str,
    enabled: bool,
) -> None:
    """Setup commands execute what agents wrote, so they run inside as well."""
    outside = Path(environment["HOME"]) / "outside"
    outside.mkdir()
    (repository / "tasks.md").write_text("- [ ] A1 Make it\n")
    (repository / "check.sh").write_text(f"touch '{outside}'/check-$$ 2> /dev/null; true\n")
    git("add", "-A")
    git("commit", "-qm", "more")
    words = ["work", "tasks.md", "--agent", agent("touch made; echo COMPLETE"), "--check", "sh check.sh"]
    words += ["--setup", f"touch '{outside}'/setup 2> /dev/null; true", *(["--sandbox"] if enabled else [])]
    ran = ralph(*words, timeout=120)
    assert (ran.code, "1 of 1 merged" in ran.err) == (0, True), ran.err
    assert bool(list(outside.iterdir())) is not enabled


def test_a_sandboxed_program_cannot_type_into_the_terminal(
    agent: Callable[..., str], environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    code = (
        "import fcntl, os\n"
        "for path in ('/dev/tty', '/dev/console', *('/proc/self/fd/%d' % fd for fd in range(3))):\n"
        "    try:\n"
        "        fcntl.ioctl(os.open(path, os.O_RDWR), 0x5412, b'x')\n"
        "        open('typed', 'w').close()\n"
        "    except OSError:\n"
        "        pass\n"
    )
    (workspace / "type.py").write_text(code)
    program = agent(f"{sys.executable} -I -S type.py; {DONE}")
    argv = ["-m", "ralph", "run", "x", "--agent", program, "--sandbox", "-m", "1"]
    child = pexpect.spawn(sys.executable, argv, cwd=str(workspace), env=environment, timeout=40, encoding="utf-8")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0, child.before
    assert not (workspace / "typed").exists()


def test_a_repository_made_by_the_agent_is_not_used(
    ralph: Ralph, agent: Callable[..., str], environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    home = environment["HOME"]
    script = f"git init -q . && git config core.fsmonitor 'touch {home}/pwned; false'; echo x > x; {DONE}"
    result = ralph("run", "x", "--agent", agent(script), "--sandbox", "--check", "true", "-m", "2")
    assert result.code == 0, result.err
    assert (workspace / ".git").is_dir()
    assert not os.path.exists(f"{home}/pwned")


def test_programs_that_the_agent_puts_on_path_are_not_started_outside(
    ralph: Ralph, agent: Callable[..., str], environment: dict[str, str], repository: Path, bubblewrap: str
) -> None:
    home, tools = environment["HOME"], repository / "tools"
    tools.mkdir()
    plant = f"printf '#!/bin/sh\\ntouch {home}/pwned\\nexec /usr/bin/git \"$@\"' > tools/git; chmod +x tools/git"
    words = ("--sandbox", "--check", "git --version && tools/git --version", "-m", "2")
    result = ralph("run", "x", "--agent", agent(f"{plant}; {DONE}"), *words, PATH=f"{tools}:{environment['PATH']}")
    assert result.code == 0, result.err
    assert not os.path.exists(f"{home}/pwned")
