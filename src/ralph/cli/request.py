"""Turn a command line into a request: a goal, a workspace and settings; or into the run that it names."""

import os
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from msgspec import Struct
from msgspec.structs import replace

from ralph.cli.table import folder_of
from ralph.core.model import Run
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, plural
from ralph.errors import UserError
from ralph.files import decode_file
from ralph.forge.host import Issue, fetch_issue
from ralph.git.client import require_git
from ralph.options.command_options import COMMANDS, option_names
from ralph.options.option import GOAL_OPTIONS, as_settings, set_key
from ralph.run.agents import choices, workers
from ralph.run.policy import make_composer, make_policy, refuse_endless
from ralph.run.request import RunRequest
from ralph.settings import PRESET_OF, LoadedSettings, format_duration, load
from ralph.show.words import done_when
from ralph.store.register import Listed, Objection, find_run, find_workspace, why_not_begun

MAX_ITERATIONS = 200  # what "unlimited" means: a stuck agent can't run for ever
YAML_ENDINGS = (".yaml", ".yml")


class Shown(Struct, frozen=True):
    """What to print of a run: its events as JSON, only the result, or more than usual."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "Shown":
        return cls(*(bool(values.get(name)) for name in cls.__struct_fields__))


class Parsed(Struct, frozen=True, kw_only=True):
    """A parsed command line: a request with the settings of all layers. `overrides` are the settings of the options."""

    request: RunRequest
    loaded: LoadedSettings
    overrides: dict[str, Any]
    issue: Issue | None


def parse_request(command: str, values: dict[str, Any], words: list[str]) -> Parsed:
    """Return the request behind a command's options and words."""
    words = [values["print"], *words] if values.get("print") else list(words)
    _refuse_blank(command, values)
    text, file = _parse_goal(values, words, required=command == "job")
    workspace = _find_workspace(values, words)
    overrides = _overrides(command, values)
    _resolve_paths(overrides, workspace)
    issue = None
    if "issue" in values:
        issue = fetch_issue(values["issue"], require_git(workspace), bool(values.get("comments")))
        text = issue.goal()
    elif values.get("comments"):
        raise UserError("--comments needs --issue", "name the issue: --issue N")
    elif file == "-" and not (text := read_goal_from_stdin()):
        raise UserError("the goal is empty", "standard input is empty")
    config = _config_file(values["config"]) if "config" in values else None
    loaded = load(workspace, overrides, env=os.environ, config=config, options=option_names(command))
    cap = iteration_cap(values)
    is_plain = command in ("run", "loop", "tune") and not {"print", "prompt", "prompt_file"}.intersection(values)
    request = RunRequest(
        settings=loaded.settings,
        workspace=str(workspace),
        goal_text=text,
        goal_file="" if file in ("", "-") else _locate(file, workspace),
        one_shot=cap == 0,
        unlimited=cap is not None and cap < 0,
        tells_claim=is_plain and bool(text or "spec" in values) and file != "-",
        config=str(config.absolute()) if config else "",
    )
    return Parsed(request=request, loaded=loaded, overrides=overrides, issue=issue)


def read_goal_from_stdin() -> str:
    """Return the text on standard input; empty if it is blank."""
    text = decode_file(sys.stdin.buffer.read(), "standard input") if sys.stdin else ""
    return text if text.strip() else ""


def read_piped_goal() -> str:
    """Return the goal of `ralph run < FILE` or `cat FILE | ralph run`; empty if nothing is piped in."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return ""
    return read_goal_from_stdin() if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) else ""


def iteration_cap(values: dict[str, Any]) -> int | None:
    """Return the cap of `--ralph N`; `--print` alone runs once. None if neither is given."""
    cap: int | None = values.get("ralph", 0 if "print" in values else None)
    return cap


def _locate(file: str, workspace: Path) -> str:
    """Return a goal file's path: relative to here or, if there is none, to the workspace."""
    here, there = Path(file).absolute(), workspace / file
    return str(there if there.exists() and not here.exists() else here)


def _config_file(name: str) -> Path:
    """Return the file of `ralph loop -c FILE`; refuse a word, which `-c` of `ralph run` takes."""
    if not name.endswith((*YAML_ENDINGS, ".json")) and "/" not in name and not Path(name).exists():
        raise UserError(f"-c {name}: not a YAML file", f"for a completion response: --completion-response {name}")
    return Path(name)


def loop_settings(values: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the workspace of a backlog, and its options for each loop in the keys of settings.json."""
    _refuse_blank("work", values)
    workspace = _find_workspace(values, [])
    overrides = _overrides("work", {name: value for name, value in values.items() if name != "push"})
    _resolve_paths(overrides, workspace)
    return workspace, overrides


def option_settings(command: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a command without a goal in the keys of settings.json."""
    _refuse_blank(command, values)
    return _overrides(command, values)


NAMES = frozenset(["FILE", "DIR", "NAME", "NAME|COMMAND", "TEXT", "BRANCH", "CMD"])


def _refuse_blank(command: str, values: dict[str, Any]) -> None:
    """Refuse an empty name: `--tasks "$UNSET"` must not mean "no tasks". A blank goal is reported elsewhere."""
    for option in COMMANDS[command]:
        is_name = option.kind == "text" and option.metavar in NAMES and option.name != "prompt"
        if is_name and not values.get(str(option.name), "-").strip():
            raise UserError(f"{option.names[-1]} is empty", "give it a value, or leave it out")
    response = values.get("completion_response", "")
    if command == "run" and response.endswith(YAML_ENDINGS):
        raise UserError(f"-c {response}: a YAML file is for `ralph loop`", f"ralph loop -c {response}")


def _resolve_paths(document: dict[str, Any], workspace: Path) -> None:
    """Make relative paths absolute: the run may work in another folder than this one, such as a worktree."""
    agent = document.get("agent", {})
    if "command" in agent:
        agent["command"] = _resolve_program(agent["command"])
    if "then" in document:
        document["then"] = [_resolve_program(command) for command in document["then"]]
    tasks = document.get("tasks")
    if tasks is not None and not (workspace / tasks).exists() and Path(tasks).exists():
        document["tasks"] = str(Path(tasks).absolute())


def _resolve_program(command: str) -> str:
    """Return a command line with the absolute path of its program, if that is a relative path to a file here."""
    program, space, rest = command.partition(" ")
    if "/" not in program or program.startswith("/") or not Path(program).is_file():
        return command
    return shlex.quote(str(Path(program).absolute())) + space + rest


def no_goal() -> UserError:
    return UserError("no goal", 'say what to achieve: "GOAL", -p TEXT, -f FILE, --spec FILE, or text on stdin')


def _parse_goal(values: dict[str, Any], words: list[str], required: bool) -> tuple[str, str]:
    """Return the goal's text, or the file that contains it. Removes a positional goal from `words`."""
    named: list[str] = [name for name in ("prompt", "prompt_file", "issue") if name in values]
    if len(named) > 1:
        raise UserError(f"two goals: {' and '.join(map(_long_name, named))}", "give exactly one")
    spec = values.get("spec", "")
    if spec and "issue" in values:
        raise UserError("two goals: --issue and --spec", "give exactly one")
    text = values.get("prompt", "")
    if not named and words and not (spec and len(words) == 1 and Path(words[0]).is_dir()):
        named, text = ["word"], words.pop(0)
        if text == "-":
            return "", spec or "-"
        _refuse_missing_path(text)
    if spec:
        return text, spec  # the file is sent, the text is the run's title
    if not named:
        if required:
            raise no_goal()
        return "", ""
    if "prompt_file" in values or "issue" in values:
        return "", values.get("prompt_file", "")
    if not text.strip():
        raise UserError("the goal is empty", "say what to achieve")
    return text, ""


def _long_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_missing_path(word: str) -> None:
    """Refuse a single word that looks like a path: it was probably meant as a file or a folder."""
    if not word.strip() or any(char.isspace() for char in word.strip()):
        return
    if Path(word).is_file():
        raise UserError(f"{word} is a file, not a goal", f"to send its text: -f {word}")
    if Path(word).suffix[1:].isalnum():
        raise UserError(f"file not found: {word}", "name a file with -f FILE, or say in a few words what to achieve")
    if word.startswith((".", "~", "/")) or "/" in word:
        raise UserError(f"folder not found: {word}", "name a folder, or say in a few words what to achieve")


def _find_workspace(values: dict[str, Any], words: list[str]) -> Path:
    """Return the folder given with -C or as a word, or the current one."""
    named = [*words, *([values["directory"]] if "directory" in values else [])]
    if len(named) > 1:
        extra = words[0] if "directory" in values else words[1]
        raise UserError(f"too many words: {extra!r}", "one goal and one workspace; quote a goal of several words")
    folder = Path(named[0]) if named else Path()
    if folder.is_dir():
        return folder.resolve()
    goals = [_long_name(name) for name in GOAL_OPTIONS if name in values]
    if goals and words:
        raise UserError(
            f"two goals: {goals[0]}, and {words[0]!r}, which isn't a folder",
            f"remove one; next to {goals[0]} a word is the workspace",
        )
    hint = "name a folder" + (", or quote a goal of several words" if words else "")
    raise UserError(f"{'not a folder' if folder.exists() else 'folder not found'}: {named[0]}", hint)


def _overrides(command: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the options as a settings document."""
    document = as_settings(COMMANDS[command], values)
    if "sandbox_net" in values:
        set_key(document, "sandbox.enabled", True)
    if "commit" in values or "push" in values:
        tasks = ["commit", *([_push_command(values["push"])] if "push" in values else [])]
        document["scm"] = {"command": "git", "tasks": tasks, "all": values.get("commit") == "all"}
    if command in PRESET_OF:
        document.setdefault("preset", PRESET_OF[command])
    cap = iteration_cap(values)
    if cap is not None:  # `--max-iterations` then limits the agent's own turns
        document.setdefault("preset", PRESET_OF["print"])
        if "maximumIterations" in document:
            set_key(document, "agent.maxTurns", document.pop("maximumIterations"))
        document["maximumIterations"] = MAX_ITERATIONS if cap < 0 else max(cap, 1)
    if command == "task":  # DONE always counts
        document["until"] = ["file:DONE", *document.get("until", [])]
    if command == "loop" and document.get("agent", {}).get("command") == "build":
        del document["agent"]["command"]
    return document


def _push_command(word: str | bool) -> str:
    """Return the git command of `--push` or `--push=REMOTE/BRANCH`."""
    if word in ("", True):
        return "push"
    remote, _, branch = str(word).partition("/")
    if not remote or not branch or remote.startswith("-"):
        raise UserError(f"--push={word}: expected REMOTE/BRANCH", "for example: --push=origin/main")
    return f"push {shlex.quote(remote)} {shlex.quote(f'HEAD:refs/heads/{branch}')}"


def one_run(values: dict[str, Any], words: list[str], objection: Objection | None = None) -> Listed:
    """Return the run that the words of a command name, or the last one here."""
    if len(words) > 1:
        raise UserError(f"too many words: {words[1]!r}", "name one run")
    folder = folder_of(values)
    here = folder if "directory" in values else find_workspace(folder)
    return find_run(words[0] if words else "", here, objection or (lambda run: ""))


MAX_DIGITS = 5  # more digits are a date: the beginning of a run's id


def run_and_number(values: dict[str, Any], words: list[str]) -> tuple[Listed, int | None]:
    """Return the run, and the number of an iteration if one is given."""
    numbers = [word for word in words if word.isdecimal() and len(word) <= MAX_DIGITS]
    named = [word for word in words if word not in numbers]
    if len(named) > 1 or len(numbers) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "give a run, the number of an iteration, or both")
    return one_run(values, named, why_not_begun), int(numbers[0]) if numbers else None


def explain(request: RunRequest, sources: Sequence[Path], out: TextIO) -> int:
    """Print what would be run, and run nothing: the important settings, the command line, the first prompt."""
    settings, goal = request.settings, request.goal()
    refuse_endless(settings, request.one_shot)
    chosen = choices(settings, os.environ, request.workspace)
    policy = make_policy(settings, workers(chosen), request.one_shot, green_is_enough=request.green_is_enough)
    compose = make_composer(settings, policy, request.goal, diff=str, tells_claim=request.tells_claim)
    prompt, first = compose(Run(id="dry-run", goal=goal), ()), chosen[0]
    changes = {"prompt": prompt, "prompt_file": "PROMPT_FILE", "yolo": settings.yolo}
    turn = replace(first.request(), **changes, sandboxed=settings.sandbox.enabled)
    rows = [
        ("settings", ", ".join(map(str, sources)) or "defaults"),
        ("workspace", request.workspace),
        ("preset", settings.preset),
        ("agent", shlex.join(first.module.invocation(turn).argv)),
        ("done when", done_when([str(claim) for claim in policy.claims], len(settings.checks))),
        ("and", ", ".join(policy.gates) or "nothing else"),
        ("verified", "" if settings.verifies else "by nothing: no check, no tasks file"),
        *(("check", check.command) for check in settings.checks),
        ("at most", plural(policy.cap, "iteration")),
        ("at most", f"${settings.max_cost:g}" if settings.max_cost else ""),
        ("at most", f"{settings.max_tokens} tokens" if settings.max_tokens else ""),
        ("at most", format_duration(settings.max_time) if settings.max_time else ""),
        ("sandbox", f"network {settings.sandbox.net}" if settings.sandbox.enabled else ""),
    ]
    redact = Redactor(secret_values(os.environ)).text
    for name, text in rows:
        if text:
            print(f"{name:>10}  {redact(clean(text))}", file=out)
    print(f"\nThe first prompt:\n\n{redact(clean(prompt))}", file=out)
    return 0
