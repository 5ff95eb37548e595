"""What `ralph doctor` checks: the machine, the installed agents, and, if asked to, one short turn of an agent.

Each check returns a finding, with advice if something is wrong."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__, agents
from ralph.agents import acp, known_names
from ralph.agents.command import dialect_of
from ralph.agents.protocol import AgentModule
from ralph.agents.reader import price_hint
from ralph.agents.wire import read
from ralph.core import events
from ralph.core.model import Run, Turn
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, one_line, plural
from ralph.errors import UserError, to_install
from ralph.files import PROBE, remove_tree
from ralph.git import client as git
from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.process import ASK_TIMEOUT, Limits, Process, ask_program
from ralph.process.program import CannotStart, Command, ProgramMissing, find_program
from ralph.process.signals import Interrupt
from ralph.run.agents import Choice, CliAgent
from ralph.run.context import Context
from ralph.sandbox.bubblewrap import find_bubblewrap, parse_version
from ralph.sandbox.discovery import SandboxRequest
from ralph.sandbox.sandbox import open_sandbox
from ralph.settings import Settings
from ralph.show.words import duration, money
from ralph.store.folder import RunFolder, TurnFolder
from ralph.store.orphans import find_orphans

FindingState = Literal["ok", "note", "warn", "fail"]

LITTLE_SPACE, NO_SPACE = 1 << 30, 64 << 20  # bytes

# A program that leaves its session and process group, and whose parent then exits.
_RUNAWAY = """
import os, signal
reader, writer = os.pipe()
if os.fork():
    os.read(reader, 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.alarm(30)
os.write(writer, b"away")
signal.pause()
"""


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


def check_workspace(folder: Path) -> Finding:
    """Check that a run can write into the folder."""
    own = folder / ".ralph"
    place = own if own.exists() else folder
    try:
        with tempfile.TemporaryFile(dir=place):
            return Finding("workspace", "ok", f"{folder} is writable")
    except OSError as error:
        advice = "make it writable, free some space, or name another workspace with -C DIR"
        return Finding("workspace", "fail", f"cannot write in {place}: {error.strerror}", advice)


def check_disk(folder: Path) -> Finding:
    """Check that there is enough space for logs and checkpoints."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    state: FindingState = "fail" if free < NO_SPACE else "warn" if free < LITTLE_SPACE else "ok"
    advice = "" if state == "ok" else "free some space: journals, logs and checkpoints need it"
    return Finding("disk", state, f"{free / (1 << 30):.1f} GiB free", advice)


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


def check_processes(keeper: Keeper, folder: Path, env: Mapping[str, str]) -> Finding:
    """Start a process that leaves its parent, and check that ralph finds and kills it."""
    began = time.monotonic()
    words = (sys.executable, "-I", "-S", "-c", _RUNAWAY)
    command = Command(argv=words, cwd=str(folder), env={**env, MARK: f"doctor-{os.getpid()}"})
    ended = Process(command, keeper=keeper, limits=Limits(turn=20.0, leftovers=0.5)).stream(lambda lines: None)
    taken = f"{1000 * (time.monotonic() - began):.0f} ms"
    if ended.leftovers and not keeper.survivors:
        return Finding("processes", "ok", f"a process that left its parent was found and killed ({taken})")
    advice = "agents may leave processes behind here: look with `ps` after a run"
    return Finding("processes", "warn", "a process that left its parent was not found", advice)


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
    said, _ = ask_program(keeper, Command(argv=(bubblewrap, "--version"), cwd=str(folder), env=env))
    version = ".".join(map(str, parse_version(said)))
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
        said, ended = ask_program(keeper, Command(argv=(path, "--version"), cwd=str(folder), env=env))
    except CannotStart as error:
        return "", error.message
    said = clean(said.strip() or ended.stderr.strip())
    if ended.ended_by or ended.code:
        reason = f"no response within {ASK_TIMEOUT:.0f} s" if ended.ended_by else f"exit code {ended.code}"
        return "", one_line(": ".join(filter(None, (reason, said.rpartition("\n")[2]))))
    found = re.search(r"(?<!\d)\d++\.\d[\w.+-]*+", said)
    return found[0].rstrip(".") if found else one_line(said, 60) or "unknown version", ""


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
_SAMPLE = 1 << 20


def probe_agent(
    choice: Choice, settings: Settings, keeper: Keeper, workspace: Path, env: Mapping[str, str]
) -> Iterator[Finding]:
    """Let the agent take one turn in the workspace, in which it repeats a word; yield what ralph learned from it."""
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
    answer = _answer(turn, word, folder.turn(1))
    yield answer
    if turn.failure is None:
        yield _stream(choice, turn, seen, folder.turn(1))
        yield _tools(turn)
        yield _cost(turn)
        yield _session(choice, turn)
    if answer.state != "fail":
        remove_tree(folder.path.parent.parent)


def _answer(turn: Turn, word: str, logs: TurnFolder) -> Finding:
    if turn.failure:
        advice = f"see {logs.stderr} and {logs.stdout}"
        return Finding("answer", "fail", f"the turn failed ({turn.failure.kind}): {turn.failure.reason}", advice)
    said = one_line(clean(turn.text), 100)
    if turn.text.strip() == word:
        return Finding("answer", "ok", f"as asked for, after {duration(turn.duration)}")
    if word in turn.text:
        return Finding("answer", "ok", f"as asked for, with other text, after {duration(turn.duration)}: {said}")
    missing = f"not as asked for: {said}" if said else "none"
    advice = f"check that the prompt reaches the agent: see {logs.prompt} and {logs.stdout}"
    return Finding("answer", "fail", missing, advice)


def _stream(choice: Choice, turn: Turn, seen: list[events.Event], logs: TurnFolder) -> Finding:
    if turn.tool_calls is None:
        advice = "if the agent can print a stream of JSON, turn that on: ralph then sees its tools, costs and session"
        return Finding("stream", "note", "plain text", advice)
    unread = sum(event.skipped_lines for event in seen if isinstance(event, events.AgentFinished))
    strange = sorted({event.kind for event in seen if isinstance(event, events.AgentUnknown)})
    dialect = choice.module.NAME if choice.module.NAME in known_names() else _dialect(logs)
    detail = f"JSON, line by line, as {dialect} prints it"
    if unread or strange:
        kinds = f"; unknown kinds: {', '.join(strange)}" if strange else ""
        detail = f"{detail}; {plural(unread, 'line')} not understood{kinds}"
        return Finding("stream", "note", detail, f"see {logs.stdout}")
    return Finding("stream", "ok", detail)


def _dialect(logs: TurnFolder) -> str:
    """Return the name of the known agent whose stream is like the one in the log."""
    with open(logs.stdout, "rb") as stream:
        tables = (read(line) for line in stream.read(_SAMPLE).split(b"\n"))
        return next(filter(None, (dialect_of(table) for table in tables if table)), "an unknown agent")


def _tools(turn: Turn) -> Finding:
    if turn.tool_calls is None:
        return Finding("tools", "note", "tool calls are not reported", "a changed workspace counts as work")
    return Finding("tools", "ok", f"tool calls are reported: {turn.tool_calls} this time")


def _cost(turn: Turn) -> Finding:
    usage = turn.usage
    if usage.cost_usd is not None:
        source = "estimated from its tokens" if usage.estimated else "as the agent reports it"
        return Finding("cost", "ok", f"{money(usage.cost_usd)}, {source}; {plural(usage.tokens, 'token')}")
    if usage.tokens:
        advice = f"for an estimate, {price_hint()}; --max-tokens works without"
        return Finding("cost", "note", f"{usage.tokens} tokens, no price", advice)
    return Finding("cost", "note", "unknown", "--max-cost and --max-tokens have no effect; use --max-time")


def _session(choice: Choice, turn: Turn) -> Finding:
    if turn.session and choice.module.RESUMES:
        return Finding("session", "ok", f"{turn.session} can be continued (--session continue)")
    why = "it can't be continued" if turn.session else "the agent names none"
    advice = "put everything that the agent must know into the goal"
    return Finding("session", "note", f"{why}: every turn starts fresh", advice)
