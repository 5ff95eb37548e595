"""`ralph doctor`: check what a run needs, one line per finding, with what to do about it.

Each check returns a finding about the machine or an installed agent."""

import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from ralph import __version__, agents
from ralph.agents import acp
from ralph.agents.protocol import AgentModule
from ralph.cli.table import DIRECTORY, Values, command, folder_of
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, escaped, one_line, plural
from ralph.errors import UserError, to_install
from ralph.git import client as git
from ralph.options.option import Option
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.kept_process import ASK_TIMEOUT, ask_program
from ralph.process.program import CannotStart, Command, ProgramMissing, find_program
from ralph.process.signals import Deadline, Interrupt
from ralph.run.agents import choices, duties, workers
from ralph.sandbox.discovery import SandboxRequest
from ralph.sandbox.sandbox import find_bubblewrap, open_sandbox
from ralph.settings import AgentChoice, Settings, load
from ralph.settings.trust import refuse_untrusted
from ralph.show.outlet import Style, choose
from ralph.show.words import width
from ralph.store.folder import RunFolder
from ralph.store.register import find_orphans
from ralph.verdict.canary import Answer
from ralph.verdict.checks import Checks
from ralph.verdict.context import Context
from ralph.verdict.copies import find_copy_method, open_copy
from ralph.verdict.in_place import Obstacle

FindingState = Literal["ok", "note", "warn", "fail"]


class Finding(Struct, frozen=True):
    """The result of one check.

    `note`: fine, but could be better; `warn`: something will not work well; `fail`: runs will fail. `advice` says what
    to do.
    """

    name: str
    state: FindingState
    detail: str
    advice: str = ""


_TONES = {"ok": "green", "note": "dim", "warn": "yellow", "fail": "red"}


@command(
    Option("--agent NAME|COMMAND", "Check only this agent."),
    DIRECTORY,
    Option("--copies", "Also run the checks in a copy, to see whether they test it: as long as the checks, twice."),
    Option("--json", "For programs: one JSON object."),
)
def doctor(values: Values, words: list[str]) -> int:
    """Check what a run needs: agents and their logins, settings, git, sandbox.

    It costs nothing. Exit code 1 if something would make runs fail."""
    agent, json = values.get("agent", ""), bool(values.get("json"))
    folder = folder_of(values)
    redact = Redactor(secret_values(os.environ)).text
    style = choose(sys.stdout)
    found = []
    env = {**os.environ, MARK: f"doctor-{os.getpid()}"}
    with Keeper.start() as keeper:
        for finding in findings(keeper, folder, env, agent, asks_copies=bool(values.get("copies"))):
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


def findings(
    keeper: Keeper, folder: Path, env: Mapping[str, str], agent: str, *, asks_copies: bool = False
) -> Iterator[Finding]:
    """Run the checks one after another, and yield what each of them found."""
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("ralph", "ok", f"{__version__}; Python {platform.python_version()}, {system}")
    settings, finding = _check_settings(folder, env, agent)
    yield finding
    yield from _check_agents(keeper, folder, env, agent)
    yield _check_chosen_agent(settings, folder, env)
    yield check_git(folder)
    yield check_leftovers(env)
    yield check_copies(settings)
    if asks_copies:
        yield ask_copies(keeper, folder, env, settings)
    yield check_sandbox(keeper, folder, env, is_wanted=settings.sandbox.enabled)


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


def _check_chosen_agent(settings: Settings, folder: Path, env: Mapping[str, str]) -> Finding:
    """Name the agent that a run in the folder would use."""
    try:
        first, *others = choices(settings, env, str(folder))
    except UserError as error:
        return Finding("agent", "fail", error.message, error.hint)
    why = "" if settings.agent.command else ", the first one installed"
    spare = workers(others)
    then = f"; at a limit: {', '.join(spare)}" if spare else ""
    named = "".join(f"; {choice.name} for {duties(choice)}" for choice in others if choice.purposes)
    return Finding("agent", "ok", f"runs here use {first.name}{why}{then}{named}")


def _line(finding: Finding, style: Style) -> str:
    marks = style.marks
    signs = {"ok": marks.passed, "note": marks.info, "warn": marks.warning, "fail": marks.failed}
    sign = signs[finding.state]
    padding = " " * (max(map(width, signs.values())) - width(sign))
    todo = f" {marks.to} {finding.advice}" if finding.advice else ""
    return f"{style.paint(_TONES[finding.state], sign)}{padding} {finding.name:<10} {clean(finding.detail + todo)}"


def check_git(folder: Path) -> Finding:
    """Check git, which diffs, worktrees, rewinding and commits need."""
    if not git.is_installed():
        return Finding("git", "warn", "not installed", "install git: worktrees, diffs, rewinding and commits need it")
    try:
        version = git.version_line(str(folder))
        found = git.find_git(folder)
        has_commits = found is not None and bool(found.resolve("HEAD"))
    except UserError as error:
        return Finding("git", "warn", error.message, error.hint or "see what `git status` says")
    if found is None:
        advice = "`git init` and a first commit give you diffs, rewinding and worktrees"
        return Finding("git", "note", f"{version}; {folder} is not in a repository", advice)
    if not has_commits:
        return Finding("git", "note", f"{version}; {found.root} has no commit yet", "worktrees need a first commit")
    return Finding("git", "ok", f"{version}; repository {found.root}")


def check_leftovers(env: Mapping[str, str]) -> Finding:
    """Look for running processes of dead runs: those that were killed together with their keeper."""
    orphans = find_orphans(env)
    if not orphans:
        return Finding("leftovers", "ok", "no dead run left a process")
    details = [f"run {orphan.run} was killed; still running: {orphan}" for orphan in orphans]
    return Finding("leftovers", "warn", "; ".join(details), "`ralph clean` ends them, and so does the next run")


def check_sandbox(keeper: Keeper, folder: Path, env: Mapping[str, str], is_wanted: bool) -> Finding:
    """Create and test a sandbox in an empty folder."""
    try:
        bubblewrap = find_bubblewrap(env, str(folder))
        with tempfile.TemporaryDirectory() as place:
            wanted = SandboxRequest(
                workspace=f"{place}/workspace",
                env=env,
                records=f"{place}/records",
                private_home=f"{place}/records/home",
                private_tmp=f"{place}/tmp",
            )
            os.mkdir(wanted.workspace)
            os.mkdir(wanted.records)
            open_sandbox(wanted, wanted.records, "doctor", None, keeper).close()
    except UserError as error:
        return Finding("sandbox", "fail" if is_wanted else "note", error.message, error.hint)
    output, _ = ask_program(keeper, Command(argv=(bubblewrap, "--version"), cwd=str(folder), env=env))
    return Finding("sandbox", "ok", f"{output.strip() or 'bubblewrap'}; a sandbox was created and tested")


def check_copies(settings: Settings) -> Finding:
    """Check whether copies can be in place of the user's tree."""
    ways = {"mount": "a mount namespace", "user": "a user namespace", "bubblewrap": "bubblewrap"}
    try:
        method = find_copy_method(settings)
    except UserError as error:
        return Finding("copies", "fail", error.message, error.hint)
    if isinstance(method, Obstacle):
        state: FindingState = "ok" if settings.copies == "plain" else "note"
        return Finding("copies", state, f"at their own path: {method.reason}", method.hint)
    return Finding("copies", "ok", f"in place ({ways[method]})")


def ask_copies(keeper: Keeper, folder: Path, env: Mapping[str, str], settings: Settings) -> Finding:
    """Run the checks in a copy of the last commit, and then in a broken one."""
    if not settings.checks:
        return Finding("canary", "note", "no checks in the settings", "ralph init finds them")
    answers: dict[Answer | None, Finding] = {
        "tested": Finding("canary", "ok", "the checks test the copy in which they run"),
        "untested": Finding("canary", "warn", "the checks pass with every source file of a copy broken"),
        None: Finding("canary", "note", "unknown: the repository has no sources"),
    }
    with tempfile.TemporaryDirectory() as place, Interrupt() as interrupt:
        context = Context(
            root=folder,
            workspace=str(folder),
            settings=replace(settings, keep_children=False),
            folder=RunFolder(Path(place), f"doctor-{os.getpid()}"),
            keeper=keeper,
            deadline=Deadline(interrupt),
            env=env,
        )
        try:
            repository = git.require_git(folder)
            with open_copy(context, repository, repository.resolve("HEAD")) as copy:
                red = [check.name for check in Checks(copy.context, settings.checks).run(0) or () if not check.passed]
                answer = copy.context.canary.answer if copy.context.canary else None
        except UserError as error:
            return Finding("canary", "fail", error.message, error.hint)
    if red:
        return Finding("canary", "warn", f"{red[0]} fails in a copy of the last commit", 'see `--setup "CMD"`')
    return answers[answer]


def check_acp_agents(env: Mapping[str, str]) -> Finding:
    """List the agents on PATH that speak the Agent Client Protocol."""
    found = acp.find_installed(env.get("PATH"))
    if not found:
        return Finding(
            "acp", "note", "no agent that speaks ACP", "see docs/guides/acp.md for Cursor, Goose, Kimi and others"
        )
    return Finding("acp", "ok", f"can be used by protocol: {', '.join(found)}")


def check_agent(name: str, keeper: Keeper, folder: Path, env: Mapping[str, str], program: str = "") -> Finding:
    """Check whether a known agent is installed and logged in. `program`: its name or path if it isn't called `name`."""
    module = agents.module(name)
    if name not in agents.programs():
        return _check_builtin_agent(module, env)
    try:
        path = find_program(program or name, env, str(folder))
    except ProgramMissing:
        return Finding(name, "note", "not installed", f"to use it: {module.INSTALL}")
    except CannotStart as error:
        return Finding(name, "warn", error.message, error.hint)
    version, trouble = _version(path, keeper, folder, env)
    if trouble:
        again = f"see what `{path} --version` says, or install it again: {module.INSTALL}"
        return Finding(name, "warn", f"{path} fails: {trouble}", again)
    if login := login_sign(module, env):
        return Finding(name, "ok", f"{version}; login: {login}")
    keys = agents.keys(name)
    ways = ", or ".join([*([module.LOGIN.how] if module.LOGIN else []), *(f"set {key}" for key in keys[:1])])
    advice = f"{ways} (unless a keychain or its own settings have one)"
    return Finding(name, "warn", f"{version}; no sign of a login", advice)


def _check_builtin_agent(module: AgentModule, env: Mapping[str, str]) -> Finding:
    """Check the built-in agent: its extra must be installed, and hosted models need a key."""
    if find_spec("pydantic_ai") is None:
        return Finding(module.NAME, "note", "not installed", f"to use it: {to_install('agent')}")
    if key := login_sign(module, env):
        return Finding(module.NAME, "ok", f"{__version__}; key: {key}")
    advice = f"set {agents.keys(module.NAME)[0]} or another provider's, or {module.LOGIN.how}" if module.LOGIN else ""
    return Finding(module.NAME, "note", f"{__version__}; no key, so only local models work", advice)


def _version(path: str, keeper: Keeper, folder: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the version of a program, and what went wrong: one of them is empty."""
    try:
        output, ended = ask_program(keeper, Command(argv=(path, "--version"), cwd=str(folder), env=env))
    except CannotStart as error:
        return "", error.message
    output = clean(output.strip() or ended.stderr.strip())
    if ended.ended_by or ended.code:
        reason = f"no response within {ASK_TIMEOUT:.0f} s" if ended.ended_by else f"exit code {ended.code}"
        return "", one_line(": ".join(filter(None, (reason, output.rpartition("\n")[2]))))
    found = re.search(r"(?<!\d)\d++\.\d[\w.+-]*+", output)
    return found[0].rstrip(".") if found else one_line(output, 60) or "unknown version", ""


def login_sign(module: AgentModule, env: Mapping[str, str]) -> str:
    """Return the variable or file that indicates a login; "" if there is none. The file is not read."""
    login = module.LOGIN
    if login is None:
        return ""
    for name in (*agents.keys(module.NAME), *login.others):
        if env.get(name):
            return f"${name}"
    home = env.get("HOME") or os.path.expanduser("~")
    for name in login.files:
        file = f"{env.get(login.variable) or login.home}/{name}"
        path = Path(home + file[1:] if file.startswith("~/") else file)
        if path.exists() and path.stat().st_size > len("{}"):  # which some agents write without a login
            return file
    return ""
