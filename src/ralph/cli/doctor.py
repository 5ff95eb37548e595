"""`ralph doctor`: check what a run needs, one line per finding, with what to do about it.

Each check returns a finding: the machine, the installed agents, and, if asked to, one short turn of an agent."""

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from ralph import __version__, agents
from ralph.agents import acp
from ralph.agents.protocol import AgentModule, Choice
from ralph.cli.table import DIRECTORY, Values, command, folder_of, no_words
from ralph.core import events
from ralph.core.model import Run, Turn
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, escaped, one_line, plural
from ralph.errors import UserError, to_install
from ralph.files import PROBE, remove_tree
from ralph.git import client as git
from ralph.hooks.hosts import installed_hosts
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.process import ASK_TIMEOUT, ask_program
from ralph.process.program import CannotStart, Command, ProgramMissing, find_program
from ralph.process.signals import Interrupt
from ralph.run.agents import SIDE, CliAgent, choices, duties, workers
from ralph.run.context import Context
from ralph.run.options import Option
from ralph.sandbox.discovery import SandboxRequest
from ralph.sandbox.sandbox import find_bubblewrap, open_sandbox, parse_version
from ralph.settings import AgentChoice, Settings, load
from ralph.settings.trust import refuse_untrusted
from ralph.show.outlet import Style, choose
from ralph.show.words import duration, money, width
from ralph.store.folder import RunFolder, TurnFolder
from ralph.store.register import find_orphans

FindingState = Literal["ok", "note", "warn", "fail"]


class Finding(Struct, frozen=True):
    """The result of one check.

    `note`: fine, but could be better; `warn`: something will not work well; `fail`: runs will fail. `advice` says what
    to do; `facts` are for programs that read the JSON.
    """

    name: str
    state: FindingState
    detail: str
    advice: str = ""
    facts: dict[str, str] = {}


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
    return Finding("git", "ok", f"{version}; repository {found.root}", facts={"version": version, "root": found.root})


def check_leftovers(env: Mapping[str, str]) -> Finding:
    """Look for running processes of dead runs: those that were killed together with their keeper."""
    orphans = find_orphans(env)
    if not orphans:
        return Finding("leftovers", "ok", "no dead run left a process")
    details = [f"run {orphan.run} was killed; still running: {orphan}" for orphan in orphans]
    return Finding("leftovers", "warn", "; ".join(details), "`ralph clean` ends them, and so does the next run")


def check_sandbox(keeper: Keeper, folder: Path, env: Mapping[str, str], is_wanted: bool) -> Finding:
    """Create and test a sandbox in an empty folder."""
    began = time.monotonic()
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
    taken = f"{1000 * (time.monotonic() - began):.0f} ms"
    output, _ = ask_program(keeper, Command(argv=(bubblewrap, "--version"), cwd=str(folder), env=env))
    version = ".".join(map(str, parse_version(output)))
    return Finding(
        "sandbox", "ok", f"bubblewrap {version}; a sandbox was created and tested ({taken})", facts={"version": version}
    )


def check_acp_agents(env: Mapping[str, str]) -> Finding:
    """List the agents on PATH that speak the Agent Client Protocol."""
    found = acp.find_installed(env.get("PATH"))
    if not found:
        return Finding(
            "acp", "note", "no agent that speaks ACP", "see docs/guides/acp.md for Cursor, Goose, Kimi and others"
        )
    return Finding("acp", "ok", f"can be used by protocol: {', '.join(found)}", facts={"agents": " ".join(found)})


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
    facts = {"path": path, "version": version, "login": login_sign(module, env)}
    if trouble:
        again = f"see what `{path} --version` says, or install it again: {module.INSTALL}"
        return Finding(name, "warn", f"{path} fails: {trouble}", again, facts)
    if facts["login"]:
        return Finding(name, "ok", f"{version}; login: {facts['login']}", facts=facts)
    ways = ", or ".join([*([module.LOGIN.how] if module.LOGIN else []), *(f"set {key}" for key in module.KEYS[:1])])
    advice = f"{ways} (unless a keychain or its own settings have one)"
    return Finding(name, "warn", f"{version}; no sign of a login", advice, facts)


def _check_builtin_agent(module: AgentModule, env: Mapping[str, str]) -> Finding:
    """Check the built-in agent: its extra must be installed, and hosted models need a key."""
    if find_spec("pydantic_ai") is None:
        return Finding(module.NAME, "note", "not installed", f"to use it: {to_install('agent')}")
    key = login_sign(module, env)
    facts = {"path": sys.executable, "version": __version__, "login": key}
    if key:
        return Finding(module.NAME, "ok", f"{__version__}; key: {key}", facts=facts)
    advice = f"set {module.KEYS[0]} or another provider's, or {module.LOGIN.how}" if module.LOGIN else ""
    return Finding(module.NAME, "note", f"{__version__}; no key, so only local models work", advice, facts)


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
    for name in (*module.KEYS, *login.others):
        if env.get(name):
            return f"${name}"
    home = env.get("HOME") or os.path.expanduser("~")
    for name in login.files:
        file = f"{env.get(login.variable) or login.home}/{name}"
        path = Path(home + file[1:] if file.startswith("~/") else file)
        if path.exists() and path.stat().st_size > len("{}"):  # which some agents write without a login
            return file
    return ""


PROBE_TIMEOUT = 180.0  # seconds, if the settings give a turn no limit


def probe_agent(choice: Choice, settings: Settings, keeper: Keeper, workspace: Path, env: Mapping[str, str]) -> Finding:
    """Let the agent take one turn in the workspace, in which it repeats a word; return what ralph learned from it."""
    word = os.urandom(6).hex()
    folder = RunFolder(Path(tempfile.mkdtemp(prefix=PROBE)), env.get(MARK, "probe"))
    folder.make()
    seen: list[events.Event] = []

    def record(*happened: events.Event) -> None:
        seen.extend(happened)

    with Interrupt() as interrupt:
        context = Context(
            root=workspace,
            workspace=str(workspace),
            settings=replace(settings, turn_timeout=settings.turn_timeout or PROBE_TIMEOUT, session="fresh", grace=0.0),
            folder=folder,
            keeper=keeper,
            interrupt=interrupt,
            tell=record,
            env=env,
            redact=Redactor(secret_values(env)),
        )
        turn = CliAgent([choice], context).take_turn(f"Reply with exactly: {word}", Run(id="probe"))
        if interrupt.level:
            raise KeyboardInterrupt
    finding = _answer(turn, word, folder.turn(1), _reported(choice, turn, seen))
    if finding.state != "fail":
        remove_tree(folder.path.parent.parent)
    return finding


def _answer(turn: Turn, word: str, logs: TurnFolder, reported: str) -> Finding:
    if turn.failure:
        advice = f"see {logs.stderr} and {logs.stdout}"
        return Finding("answer", "fail", f"the turn failed ({turn.failure.kind}): {turn.failure.reason}", advice)
    if word in turn.text:
        return Finding("answer", "ok", f"as asked for, after {duration(turn.duration)}; {reported}")
    answer = one_line(clean(turn.text), 100)
    missing = f"not as asked for: {answer}" if answer else "none"
    advice = f"check that the prompt reaches the agent: see {logs.prompt} and {logs.stdout}"
    return Finding("answer", "fail", missing, advice)


def _reported(choice: Choice, turn: Turn, seen: list[events.Event]) -> str:
    """Describe what the agent's output says about tools, costs and session."""
    unread = sum(event.skipped_lines for event in seen if isinstance(event, events.AgentFinished))
    strange = sorted({event.kind for event in seen if isinstance(event, events.AgentUnknown)})
    parts = [
        "plain text without tool calls"
        if turn.tool_calls is None
        else f"JSON with {plural(turn.tool_calls, 'tool call')}",
        f"{plural(unread, 'line')} not understood" if unread else "",
        f"unknown kinds: {', '.join(strange)}" if strange else "",
        money(turn.usage.cost_usd) if turn.usage.cost_usd is not None else "cost unknown",
        plural(turn.usage.tokens, "token") if turn.usage.tokens else "",
        f"session {turn.session}" if turn.session and choice.module.RESUMES else "every turn starts fresh",
    ]
    return ", ".join(filter(None, parts))
