"""Which agents are here, in which version, and is there a sign that somebody has logged in? Nothing is spent."""

import os
from collections.abc import Mapping
from pathlib import Path

from ralph import agents
from ralph.agents.protocol import AgentModule
from ralph.core.text import clean, one_line
from ralph.world.health import Finding
from ralph.world.processes.asking import PATIENCE, heard
from ralph.world.processes.keeper import Keeper
from ralph.world.processes.program import CannotStart, ProgramMissing, find_program

_EMPTY = 2  # bytes: `{}` is what some agents leave where nobody has logged in


def presence(name: str, keeper: Keeper, folder: Path, env: Mapping[str, str], program: str = "") -> Finding:
    """How it stands with a known agent, be it that `program` which a person calls so."""
    module = agents.module(name)
    try:
        path = find_program(program or name, env, str(folder))
    except ProgramMissing:
        return Finding(name, "note", "not installed", f"to use it: {module.INSTALL}")
    except CannotStart as error:
        return Finding(name, "warn", error.message, error.hint)
    version, trouble = _version(path, keeper, folder, env)
    facts = {"path": path, "version": version, "login": login_sign(module, env)}
    if trouble:
        again = f"see what `{path} --version` says, or install it again: {module.INSTALL}"
        return Finding(name, "warn", f"{path} does not work: {trouble}", again, facts)
    if facts["login"]:
        return Finding(name, "ok", f"{version}; login: {facts['login']}", facts=facts)
    return Finding(name, "warn", f"{version}; no sign of a login", _way_in(module), facts)


def _version(path: str, keeper: Keeper, folder: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """The version, or what went wrong."""
    import re

    try:
        said, ended = heard(keeper, (path, "--version"), str(folder), env)
    except CannotStart as error:
        return "", error.message
    said = clean(said.strip() or ended.stderr.strip())
    if ended.ended_by or ended.code:
        reason = f"no answer within {PATIENCE:.0f} s" if ended.ended_by else f"exit code {ended.code}"
        return "", one_line(": ".join(filter(None, (reason, said.rpartition("\n")[2]))))
    found = re.search(r"\d+\.\d+[\w.+-]*", said)
    return found[0].rstrip(".") if found else one_line(said, 60) or "unknown version", ""


def login_sign(module: AgentModule, env: Mapping[str, str]) -> str:
    """What shows that somebody has logged in: the name of a variable or a file. Neither is looked into."""
    login = module.LOGIN
    if login is None:
        return ""
    variables = [f"${name}" for name in (*module.KEYS, *login.others) if env.get(name)]
    folder = env.get(login.variable) or login.home
    files = [f"{folder}/{name}" for name in login.files]
    return next(iter(variables), "") or next((file for file in files if _holds_something(file, env)), "")


def _holds_something(file: str, env: Mapping[str, str]) -> bool:
    home = env.get("HOME") or os.path.expanduser("~")
    try:
        return os.stat(home + file[1:] if file.startswith("~/") else file).st_size > _EMPTY
    except OSError:
        return False


def _way_in(module: AgentModule) -> str:
    how = [module.LOGIN.how] if module.LOGIN else []
    ways = ", or ".join([*how, *(f"set {name}" for name in module.KEYS[:1])])
    return f"{ways} (unless a keychain or its own settings hold one)"
