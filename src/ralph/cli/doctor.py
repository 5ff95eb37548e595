"""`ralph doctor`: check what a run needs, one line per finding, with what to do about it."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec.json import encode
from msgspec.structs import replace

from ralph import __version__, agents
from ralph.cli.table import DIRECTORY, Values, command, folder_of, no_words
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, escaped, plural
from ralph.doctor.machine import (
    Finding,
    check_acp_agents,
    check_agent,
    check_git,
    check_leftovers,
    check_sandbox,
    probe_agent,
)
from ralph.errors import UserError, to_install
from ralph.hooks.hosts import installed_hosts
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.run.agents import SIDE, Choice, choices, duties, workers
from ralph.run.options import Option
from ralph.settings import AgentChoice, Settings, load
from ralph.settings.trust import refuse_untrusted
from ralph.show.outlet import Style, choose
from ralph.show.words import width

_TONES = {"ok": "green", "note": "dim", "warn": "yellow", "fail": "red"}


@command(
    Option("--agent NAME|COMMAND", "Check only this agent."),
    Option("--probe", "Ask the agent for one word, and show what ralph read."),
    DIRECTORY,
    Option("--json", "For programs: one JSON object."),
)
def doctor(values: Values, words: list[str]) -> int:
    """Check what a run needs: agents and their logins, settings, git, hooks, sandbox.

    It costs nothing unless --probe is given. Exit code 1 if something would make runs fail."""
    no_words(words, "name an agent with --agent, a workspace with -C")
    agent, probe, json = values.get("agent", ""), bool(values.get("probe")), bool(values.get("json"))
    folder = folder_of(values)
    redact = Redactor(secret_values(os.environ)).text
    style = choose(sys.stdout)
    found = []
    env = {**os.environ, MARK: f"doctor-{os.getpid()}"}
    with Keeper.start() as keeper:
        for finding in findings(keeper, folder, env, agent, probe):
            found.append(replace(finding, detail=redact(finding.detail), advice=redact(finding.advice)))
            if not json:
                print(_line(found[-1], style), flush=True)
    failed, warned = (sum(finding.state == state for finding in found) for state in ("fail", "warn"))
    if json:
        print(escaped(encode({"ok": not failed, "findings": found})).decode())
    else:
        print(
            f"{plural(failed, 'problem')}, {plural(warned, 'warning')}" if failed or warned else "all is well",
            file=sys.stderr,
        )
    return 1 if failed else 0


def findings(keeper: Keeper, folder: Path, env: Mapping[str, str], agent: str, probe: bool) -> Iterator[Finding]:
    """Run the checks one after another, and yield what each of them found."""
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("ralph", "ok", f"{__version__}; Python {platform.python_version()}, {system}")
    settings, finding = _check_settings(folder, env, agent)
    yield finding
    yield from _check_agents(keeper, folder, env, agent)
    choice, chosen = _check_chosen_agent(settings, folder, env)
    yield chosen
    yield check_git(folder)
    yield _check_hooks(folder, env)
    yield _check_prices()
    yield check_leftovers(env)
    yield check_sandbox(keeper, folder, env, is_wanted=settings.sandbox.enabled)
    if probe and choice:
        yield probe_agent(choice, settings, keeper, folder, env)


def _check_settings(folder: Path, env: Mapping[str, str], agent: str) -> tuple[Settings, Finding]:
    try:
        refuse_untrusted(folder, env)
        loaded = load(folder, {"agent": {"command": agent}} if agent else {}, env=env)
    except UserError as error:
        problem = "; ".join(line.strip() for line in error.message.split("\n"))
        return Settings(agent=AgentChoice(agent)), Finding("settings", "fail", problem, error.hint)
    sources = ", ".join(map(str, loaded.sources))
    return loaded.settings, Finding("settings", "ok", sources or "none: defaults (`ralph init` writes some)")


def _check_agents(keeper: Keeper, folder: Path, env: Mapping[str, str], agent: str) -> Iterator[Finding]:
    """Yield a finding for each known agent, or only for the one that `agent` names."""
    if not agent:
        for name in agents.known_names():
            yield check_agent(name, keeper, folder, env)
        yield check_acp_agents(env)
    elif agents.find(agent).NAME in agents.known_names():
        yield check_agent(agents.find(agent).NAME, keeper, folder, env, agents.words(agent)[0][0])


def _check_chosen_agent(settings: Settings, folder: Path, env: Mapping[str, str]) -> tuple[Choice | None, Finding]:
    """Return the agent that a run in the folder would use, and a finding about it."""
    try:
        first, *others = choices(settings, env, str(folder))
    except UserError as error:
        return None, Finding("agent", "fail", error.message, error.hint)
    why = "" if settings.agent.command else ", the first one installed"
    spare = workers(others)
    then = f"; at a limit: {', '.join(spare)}" if spare else ""
    side = f"; {settings.side.model} for messages and reviews" if settings.side.model else ""
    named = "".join(f"; {one.name} for {duties(one)}" for one in others if one.purposes and one.name != SIDE)
    return first, Finding("agent", "ok", f"runs here use {first.name}{why}{then}{named}{side}")


def _check_hooks(folder: Path, env: Mapping[str, str]) -> Finding:
    names = [host.name for host in installed_hosts(folder, env)]
    if names:
        return Finding("hooks", "ok", f"installed for {', '.join(names)}")
    return Finding("hooks", "note", "none, for loops inside an agent's own session", "`ralph hook install AGENT`")


def _check_prices() -> Finding:
    if find_spec("genai_prices"):
        return Finding("prices", "ok", "known, for agents that report tokens only")
    return Finding("prices", "note", "unknown, for agents that report tokens only", to_install("prices"))


def _line(finding: Finding, style: Style) -> str:
    marks = style.marks
    signs = {"ok": marks.passed, "note": marks.info, "warn": marks.warning, "fail": marks.failed}
    sign = signs[finding.state]
    padding = " " * (max(map(width, signs.values())) - width(sign))
    todo = f" {marks.to} {finding.advice}" if finding.advice else ""
    return f"{style.paint(_TONES[finding.state], sign)}{padding} {finding.name:<10} {clean(finding.detail + todo)}"
