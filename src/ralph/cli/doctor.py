"""`ralph doctor`: is everything here that a run needs? One line for each thing, with what to do about it."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.errors import UserError
from ralph.world.keeper import Keeper

if TYPE_CHECKING:
    import click

    from ralph.hosts.registry import Host, Scope
    from ralph.settings import Settings
    from ralph.show.style import Style
    from ralph.world.health import Finding
    from ralph.world.turns import Choice

Env = Mapping[str, str]
_TONES = {"ok": "green", "note": "dim", "warn": "yellow", "fail": "red"}


def command() -> "click.Command":
    import click

    from ralph.cli.commands import simple

    return simple(
        "doctor",
        doctor,
        click.Option(["--agent"], default="", metavar="NAME|COMMAND", help="Look at this agent only."),
        click.Option(["--probe"], is_flag=True, help="Ask the agent for one word, and say what was understood of it."),
        click.Option(["-C", "--directory"], default=".", metavar="DIR", help="The workspace."),
        click.Option(["--json"], is_flag=True, help="For programs: one JSON object."),
        help="Say whether everything is here that a run needs: agents and their logins, settings, git, terminal, hooks."
        "\n\nNothing is spent, unless --probe is given. Exit code 1 if something would make runs fail.",
    )


def doctor(agent: str, probe: bool, directory: str, json: bool) -> int:
    with Keeper.start() as keeper:
        from ralph.core.secrets import Redactor, secret_values

        folder = Path(directory)
        if not folder.is_dir():
            raise UserError(f"no such folder: {directory}", "name a folder")
        redact = Redactor(secret_values(os.environ))
        found = []
        for finding in findings(keeper, folder.resolve(), os.environ, agent, probe):
            found.append(replace(finding, detail=redact.text(finding.detail), advice=redact.text(finding.advice)))
            if not json:
                print(_line(found[-1], _style()), flush=True)
    failed = sum(finding.state == "fail" for finding in found)
    if json:
        from msgspec.json import encode

        print(encode({"ok": not failed, "findings": found}).decode())
    else:
        warned = sum(finding.state == "warn" for finding in found)
        print(f"{failed} failed, {warned} to look at" if failed or warned else "all is well", file=sys.stderr)
    return 1 if failed else 0


def findings(keeper: Keeper, folder: Path, env: Env, agent: str, probe: bool) -> "Iterator[Finding]":
    """What every look finds, as it is found."""
    from ralph.world import health

    yield _ralph()
    settings, said = _settings(folder, env, agent)
    yield said
    yield from _agents(keeper, folder, env, agent)
    choice, chosen = _chosen(settings, folder, env)
    yield chosen
    yield health.repository(folder)
    yield health.workspace(folder)
    yield health.disk(folder)
    yield _terminal(env)
    yield from _hooks(folder, env)
    yield _prices()
    yield health.processes(keeper, folder, env)
    yield health.control_groups()
    if probe and choice:
        from ralph.probe import probe as asked

        yield from asked(choice, settings, keeper, folder, env)


def _ralph() -> "Finding":
    import platform

    from ralph import __version__
    from ralph.world.health import Finding

    return Finding(
        "ralph", "ok", f"{__version__}; Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    )


def _settings(folder: Path, env: Env, agent: str) -> "tuple[Settings, Finding]":
    from ralph.settings import AgentChoice, Settings, load
    from ralph.world.health import Finding

    overrides = {"agent": {"command": agent}} if agent else {}
    try:
        loaded = load(folder, overrides, env=env)
    except UserError as error:
        problem = "; ".join(line.strip() for line in error.message.split("\n"))
        return Settings(agent=AgentChoice(agent)), Finding("settings", "fail", problem, error.hint)
    sources = ", ".join(map(str, loaded.sources))
    return loaded.settings, Finding("settings", "ok", sources or "none: defaults (`ralph init` writes some)")


def _agents(keeper: Keeper, folder: Path, env: Env, agent: str) -> "Iterator[Finding]":
    """How it stands with all known agents, or with the one that was asked for if it is one of them."""
    from ralph import agents
    from ralph.world.presence import presence

    if not agent:
        for name in agents.known():
            yield presence(name, keeper, folder, env)
    elif agents.find(agent).NAME in agents.known():
        yield presence(agents.find(agent).NAME, keeper, folder, env, agents.words(agent)[0][0])


def _chosen(settings: "Settings", folder: Path, env: Env) -> "tuple[Choice | None, Finding]":
    """The agent that a run here would have."""
    from ralph import wiring
    from ralph.world.health import Finding

    try:
        first, *others = wiring.choices(settings, (), env, str(folder))
    except UserError as error:
        return None, Finding("agent", "fail", error.message, error.hint)
    why = "" if settings.agent.command else ", the first one installed"
    then = f"; at a limit: {', '.join(choice.name for choice in others)}" if others else ""
    return first, Finding("agent", "ok", f"runs here use {first.name}{why}{then}")


def _terminal(env: Env) -> "Finding":
    """Where the screen of a run would be."""
    from ralph.show.style import choose
    from ralph.world.health import Finding

    stream, is_terminal = sys.stderr, sys.stderr.isatty()
    style = choose(stream, env, is_terminal, None, None)
    if not (stream.encoding or "").lower().startswith("utf"):
        return Finding("terminal", "warn", f"{stream.encoding}: signs and letters are replaced", "set LANG=C.UTF-8")
    if not is_terminal:
        return Finding("terminal", "ok", "none: plain lines, UTF-8")
    columns, rows = os.get_terminal_size(stream.fileno())
    return Finding("terminal", "ok", f"{columns}×{rows}, {'colour' if style.color else 'no colour'}, UTF-8")


def _hooks(folder: Path, env: Env) -> "Iterator[Finding]":
    from ralph.hosts.registry import HOSTS
    from ralph.world.health import Finding

    scopes: tuple[Scope, ...] = ("project", "user")
    found = [finding for host in HOSTS.values() for scope in scopes for finding in _hook(host, scope, folder, env)]
    advice = "for loops inside an agent's own session: `ralph hook install AGENT`"
    yield from found or [Finding("hooks", "note", "not installed", advice)]


def _hook(host: "Host", scope: "Scope", folder: Path, env: Env) -> "Iterator[Finding]":
    from msgspec import DecodeError
    from msgspec.json import decode, encode

    from ralph.hosts.install import changes, guarded
    from ralph.world.health import Finding

    settings = next(changes(host, scope, folder, env))
    again = f"ralph hook install {host.name}{' --user' if scope == 'user' else ''}"
    try:
        data = settings.path.read_bytes()
        if settings.is_ours(data):
            current = encode(guarded(host, "stop")) in encode(decode(data))
            where = f"{host.name}: {settings.path}"
            yield (
                Finding("hooks", "ok", where)
                if current
                else Finding("hooks", "warn", f"{where} has hooks of another ralph", f"renew them: `{again}`")
            )
    except FileNotFoundError:
        pass
    except (OSError, DecodeError) as error:
        yield Finding("hooks", "warn", f"{settings.path} cannot be read: {error}", "mend the file")


def _prices() -> "Finding":
    from importlib.util import find_spec

    from ralph.world.health import Finding

    if find_spec("genai_prices"):
        return Finding("prices", "ok", "known, for agents that report tokens only")
    return Finding("prices", "note", "unknown, for agents that report tokens only", "pip install 'ralph[prices]'")


def _style() -> "Style":
    from ralph.show.style import choose

    return choose(sys.stdout, os.environ, sys.stdout.isatty(), None, None)


def _line(finding: "Finding", style: "Style") -> str:
    from ralph.core.text import clean
    from ralph.show.cells import width

    marks = style.marks
    mark = {"ok": marks.passed, "note": marks.info, "warn": marks.warning, "fail": marks.failed}[finding.state]
    todo = f" {marks.to} {finding.advice}" if finding.advice else ""
    padding = " " * (max(map(width, (marks.passed, marks.info, marks.warning, marks.failed))) - width(mark))
    return f"{style.paint(_TONES[finding.state], mark)}{padding} {finding.name:<10} {clean(finding.detail + todo)}"
