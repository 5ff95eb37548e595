"""What each known agent can change in a sandbox: it keeps its login and its sessions, but cannot change settings that
make it run programs or give it instructions the next time."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Result

from ralph import agents
from ralph.agents.protocol import Choice, SandboxNeeds
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.sandbox import mounts
from ralph.sandbox.discovery import find_view
from ralph.settings import Settings
from ralph.store.folder import RunFolder
from ralph.verdict.context import Context
from ralph.verdict.sandboxing import sandbox_request

Ralph = Callable[..., Result]


def needs(name: str) -> SandboxNeeds:
    found = agents.module(name).SANDBOX
    assert found
    return found


def belonging(path: Path) -> Path:
    """Create a file or, for a name without an extension, a folder with a file in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix or path.name.startswith("."):
        path.write_text("{}\n")
    else:
        path.mkdir(exist_ok=True)
        (path / "mine").write_text("mine\n")
    return path


@pytest.mark.parametrize("is_named", [False, True], ids=["at home", "where its variable says"])
@pytest.mark.parametrize("name", agents.known_names())
def test_the_state_of_an_agent_is_writable_except_its_settings(
    name: str, is_named: bool, environment: dict[str, str], workspace: Path, tmp_path: Path
) -> None:
    need = needs(name)
    elsewhere = tmp_path / "elsewhere"
    state = elsewhere / need.within if is_named else Path(need.state.replace("~", environment["HOME"], 1))
    state.mkdir(parents=True)
    there, missing = need.fixed[::2], need.fixed[1::2]
    for each in there:
        belonging(state / each)
    env = {**environment, need.variable: str(elsewhere)} if is_named else environment
    choice = Choice(name=name, module=agents.module(name), command=("/bin/true",))
    context = Context(
        root=workspace,
        workspace=str(workspace),
        settings=Settings(),
        folder=RunFolder(workspace / ".ralph", "r"),
        keeper=Keeper(),
        deadline=Deadline(Interrupt()),
        env=env,
    )
    view = find_view(sandbox_request(context, [choice]))
    seen = {mount.path: mount.access for mount in mounts.mount_table(view, lambda _: True)}
    assert seen[str(state)] == "write"
    assert {seen[f"{state}/{each}"] for each in there} <= {"read"}
    (kept,) = [kept for kept in view.guarded if kept.folder == str(state)]
    assert (kept.read_only, kept.absent) == (there, missing)


@pytest.mark.parametrize("name", agents.known_names())
def test_the_model_hosts_of_an_agent_are_valid(name: str) -> None:
    from ralph.sandbox.network import parse_host

    need = needs(name)
    assert [parse_host(each).name for each in need.hosts] == [each.lower() for each in need.hosts]
    reached = agents.hosts(agents.module(name), dict.fromkeys(need.urls, "https://models.example:8443/v1"))
    assert sum("models.example" in each for each in reached) == len(need.urls)


def attempts(need: SandboxNeeds, state: Path, home: Path) -> str:
    """Return a shell script that prints a line for everything that the agent could change but must not."""
    lines = [f"cd '{state}' && echo login > login.json && mkdir -p sessions && echo one > sessions/1"]
    for each in need.fixed[::2]:
        lines.append(f"echo evil 2>/dev/null > '{each}' || echo evil 2>/dev/null > '{each}/evil'")
        lines.append(f"mv '{each}' '{each}.old' 2>/dev/null; rm -rf '{each}' 2>/dev/null")
    for each in need.fixed[1::2]:
        lines.append(f"mkdir -p '{Path(each).parent}' && echo evil > '{each}'")
    for each in need.shown:
        lines.append(
            f"echo evil 2>/dev/null >> '{home}/{each[2:]}' || echo evil 2>/dev/null > '{home}/{each[2:]}/evil'"
        )
    for each in need.copied:
        lines.append(f"echo evil >> '{home}/{each[2:]}'")
    return "\n".join(lines)


@pytest.mark.parametrize("name", agents.programs())
def test_planted_settings_of_an_agent_are_gone_in_the_next_turn(
    name: str, ralph: Ralph, environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    need, home = needs(name), Path(environment["HOME"])
    state = home / need.state[2:]
    state.mkdir(parents=True)
    for each in need.fixed[::2]:
        belonging(state / each)
    for each in (*need.shown, *need.copied):
        belonging(home / each[2:])
    before = contents(home)
    program = home / "bin" / name
    program.write_text(f"#!/bin/sh\n{attempts(need, state, home)}\necho tried > '{workspace}/tried'\n")
    program.chmod(0o755)
    ran = ralph("run", "x", "--agent", name, "--sandbox", "-m", "1", "--json", timeout=120)
    assert (workspace / "tried").exists(), ran.err
    after = contents(home)
    new = {
        path: text for path, text in after.items() if before.get(path) != text and not path.startswith(".local/state")
    }
    kept = state.relative_to(home)
    assert new.pop(f"bin/{name}").startswith("#!/bin/sh")
    assert new == {f"{kept}/login.json": "login\n", f"{kept}/sessions/1": "one\n"}
    assert not before.keys() - after.keys()
    told = [event["data"]["text"] for event in map(json.loads, ran.out.splitlines()) if event["type"] == "notice"]
    for each in need.fixed[1::2]:
        assert any(f"{state}/{each} was taken away" in text for text in told), told


PRIVATE = [name for name in agents.programs() if needs(name).private]


@pytest.mark.parametrize("name", PRIVATE)
def test_what_sessions_outside_run_or_follow_is_out_of_reach(
    name: str, ralph: Ralph, environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    """The agent writes to these folders itself, so they are writable inside, and last for its next run."""
    need, home = needs(name), Path(environment["HOME"])
    state = home / need.state[2:]
    for each in need.private[::2]:
        (state / each / "other").mkdir(parents=True)
        (state / each / "other" / "mine").write_text("mine\n")
    before = contents(state)
    lines = [f"cd '{state}'"]
    for each in need.private:
        lines += [f"cat {each}/other/mine {each}/new >> '{workspace}/seen'", f"mkdir -p {each}/other"]
        lines += [f"echo evil >> {each}/other/mine", f"echo own > {each}/new"]
        lines += [f"mv {each} moved && mkdir {each} && echo evil > {each}/new", f"rm -rf {each}/other"]
    program = home / "bin" / name
    program.write_text("#!/bin/sh\n" + "\n".join(lines) + f"\necho tried >> '{workspace}/tried'\n")
    program.chmod(0o755)
    for _ in range(2):
        ralph("run", "x", "--agent", name, "--sandbox", "-m", "1", timeout=120)
    assert (workspace / "tried").read_text() == "tried\ntried\n"
    assert contents(state) == before
    assert (workspace / "seen").read_text() == "own\n" * len(need.private)


def test_the_sessions_and_the_memory_of_this_project_are_the_real_ones(
    ralph: Ralph, environment: dict[str, str], workspace: Path, bubblewrap: str
) -> None:
    """Claude Code names the folder after the workspace."""
    projects = Path(environment["HOME"]) / ".claude" / "projects"
    own = "".join(letter if letter.isalnum() else "-" for letter in str(workspace))
    for project in (own, f"{own}2"):
        (projects / project / "memory").mkdir(parents=True)
        (projects / project / "memory" / "MEMORY.md").write_text("mine\n")
    program = Path(environment["HOME"]) / "bin" / "claude"
    lines = [
        "#!/bin/sh",
        "for each in ~/.claude/projects/*; do",
        "echo s > $each/s.jsonl; echo m >> $each/memory/MEMORY.md",
    ]
    program.write_text("\n".join([*lines, "done", f"ls ~/.claude/projects > '{workspace}/seen'\n"]))
    program.chmod(0o755)
    ralph("run", "x", "--agent", "claude", "--sandbox", "-m", "1", timeout=120)
    assert (workspace / "seen").read_text() == f"{own}\n"
    assert contents(projects) == {
        f"{own}/s.jsonl": "s\n",
        f"{own}/memory/MEMORY.md": "mine\nm\n",
        f"{own}2/memory/MEMORY.md": "mine\n",
    }


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
