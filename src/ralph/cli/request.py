"""What exactly is asked for? Turns the words of a command line into a goal, a workspace and settings, and says what
would be run; or into the run that is meant: the one that is named, else the last one here."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ralph.cli.table import folder_of
from ralph.errors import UserError
from ralph.run.options import COMMANDS, layer, put_setting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from ralph.forge.issue import Issue
    from ralph.records.register import Listed
    from ralph.run.agents import Choice
    from ralph.run.order import Order
    from ralph.settings import Loaded
    from ralph.steering.which_run import Objection

CEILING = 200  # what "unlimited" means: a stuck agent cannot run for ever


class Request(Struct, frozen=True, kw_only=True):
    """A command line, understood. `overrides` are in the words of settings.json."""

    goal_text: str
    goal_file: str
    workspace: Path
    overrides: dict[str, Any]
    config: Path | None = None
    agent_args: tuple[str, ...] = ()
    one_shot: bool = False
    unlimited: bool = False
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    dry_run: bool = False
    tells_claim: bool = False
    issue: "Issue | None" = None
    pr: str = ""


def understood(command: str, values: dict[str, Any], words: list[str]) -> Request:
    """The request behind a command's options and positional words."""
    words, is_goal = list(words), not {"prompt", "prompt_file", "print"}.intersection(values)
    _no_blank_names(command, values)
    text, file = _goal(values, words, required=command == "job")
    workspace = _workspace(values, words)
    overrides = _overrides(command, values)
    _name_from_here(overrides, workspace)
    cap = values.get("ralph", 0 if values.get("print") else None)  # to print alone is one shot
    pr = {None: "", True: "open", "": "open", "draft": "draft", "wait": "wait"}.get(values.get("pr"))
    if pr is None:
        raise UserError(f"--pr={values['pr']} means nothing", "write --pr, --pr=draft or --pr=wait")
    issue = _issue(values, workspace)
    if issue:
        text = issue.goal()
    elif file == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if sys.stdin else ""
        if not text.strip():
            raise UserError("the goal is empty", "standard input holds no text")
    here, there = Path(file).absolute(), workspace / file  # named from here or, where there is none, from the workspace
    located = str(there if there.exists() and not here.exists() else here)
    return Request(
        goal_text=text,
        goal_file="" if file in ("", "-") else located,
        workspace=workspace,
        overrides=overrides,
        config=Path(values["config"]) if "config" in values else None,
        agent_args=tuple(values.get("agent_arg", ())),
        one_shot=cap == 0,
        unlimited=cap is not None and cap < 0,
        tells_claim=is_goal and bool(text or "spec" in values) and file != "-",
        issue=issue,
        pr=pr,
        **{name: bool(values.get(name)) for name in ("json", "quiet", "verbose", "dry_run")},
    )


def _issue(values: dict[str, Any], workspace: Path) -> "Issue | None":
    if "issue" not in values:
        if values.get("comments"):
            raise UserError("--comments belongs to --issue", "name the issue: --issue N")
        return None
    from ralph.forge.issue import fetch
    from ralph.repository.git import repository

    return fetch(values["issue"], repository(workspace), bool(values.get("comments")))


def about_loops(values: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The workspace of a backlog, and what its options say about each loop, in the words of settings.json."""
    _no_blank_names("work", values)
    workspace = _workspace(values, [])
    overrides = _overrides("work", {name: value for name, value in values.items() if name != "push"})
    _name_from_here({**overrides, "worktree": True}, workspace)
    return workspace, overrides


NAMES = frozenset(["FILE", "DIR", "NAME", "NAME|COMMAND", "TEXT", "BRANCH", "CMD"])


def _no_blank_names(command: str, values: dict[str, Any]) -> None:
    """A blank is no name: `--tasks "$UNSET"` must not quietly mean "no tasks". A goal has words of its own for that."""
    for option in COMMANDS[command]:
        is_name = option.kind == "text" and option.metavar in NAMES and option.name != "prompt"
        if is_name and not values.get(option.name, "-").strip():
            raise UserError(f"{option.names[-1]} is empty", "give it a value, or leave it out")


def _name_from_here(said: dict[str, Any], workspace: Path) -> None:
    """What is named by a path means the one here, also when the work is done elsewhere."""
    if workspace == Path().resolve() and not said.get("worktree"):
        return
    agent = said.get("agent", {})
    if "command" in agent:
        agent["command"] = _located_program(agent["command"])
    if "fallbackAgents" in said:
        said["fallbackAgents"] = [_located_program(command) for command in said["fallbackAgents"]]
    if "tasks" in said and not (workspace / said["tasks"]).exists() and Path(said["tasks"]).exists():
        said["tasks"] = str(Path(said["tasks"]).absolute())


def _located_program(command: str) -> str:
    """The command line with its program's whole path, if that is a relative one to a file here."""
    program, space, rest = command.partition(" ")
    if "/" not in program or program.startswith("/") or not Path(program).is_file():
        return command
    from shlex import quote

    return quote(str(Path(program).absolute())) + space + rest


def no_goal() -> UserError:
    return UserError("no goal", 'say what to achieve: "GOAL", or -p TEXT, -f FILE, --spec FILE')


def _goal(values: dict[str, Any], words: list[str], required: bool) -> tuple[str, str]:
    """The goal's text, or the file that holds it. Takes a positional goal out of `words`."""
    given: list[str] = [name for name in ("prompt", "prompt_file", "issue") if name in values]
    if len(given) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(f"two goals: {named}", "give exactly one")
    spec = values.get("spec", "")
    if spec and "issue" in values:
        raise UserError("two goals: --issue and --spec", "give exactly one")
    text = values.get("prompt", "")
    if not given and words and not (spec and len(words) == 1 and Path(words[0]).is_dir()):
        given, text = ["word"], words.pop(0)
        if text == "-":
            return "", spec or "-"
        _refuse_missing_path(text)
    if spec:
        return text, spec  # which is sent instead; the text is the run's title
    if not given and not required:
        return "", ""
    if not given:
        raise no_goal()
    if "prompt_file" in values:
        return "", values["prompt_file"]
    if "issue" in values:
        return "", ""
    if not text.strip():
        raise UserError("the goal is empty", "say what to achieve")
    return text, ""


def _refuse_missing_path(word: str) -> None:
    """Who means a folder or a file gets no agent that works on its name."""
    if not word.strip() or any(char.isspace() for char in word.strip()):
        return
    if Path(word).is_file():
        raise UserError(f"{word} is a file, not a goal", f"to send what it says: -f {word}")
    if Path(word).suffix[1:].isalnum():
        raise UserError(f"no such file: {word}", "name a file with -f FILE, or say in a few words what to achieve")
    if word.startswith((".", "~", "/")) or "/" in word:
        raise UserError(f"no such folder: {word}", "name a folder, or say in a few words what to achieve")


def _workspace(values: dict[str, Any], words: list[str]) -> Path:
    named = [*words, *([values["directory"]] if "directory" in values else [])]
    if len(words) > 1 or len(named) > 1:
        extra = words[0] if "directory" in values else words[1]
        raise UserError(f"too many words: {extra!r}", "one goal and one workspace; quote a goal of several words")
    folder = Path(named[0]) if named else Path()
    if not folder.is_dir():
        named_goals = ("prompt", "prompt_file", "spec", "issue")
        goals = [f"--{name.replace('_', '-')}" for name in named_goals if name in values]
        if goals and words:
            raise UserError(
                f"two goals: {goals[0]}, and {words[0]!r}, which is no folder",
                f"give exactly one; beside {goals[0]} a word on its own is the workspace",
            )
        hint = "name a folder" + (", or quote a goal of several words" if words else "")
        raise UserError(f"{'not a' if folder.exists() else 'no such'} folder: {named[0]}", hint)
    return folder.resolve()


PRESET_OF = {"loop": "checks", "task": "supervise", "job": "supervise", "work": "checks"}


def _overrides(command: str, values: dict[str, Any]) -> dict[str, Any]:
    """The options as a layer of settings."""
    said = layer(COMMANDS[command], values)
    if "sandbox_net" in values:
        put_setting(said, "sandbox.enabled", True)
    if "commit" in values or "push" in values:
        tasks, commit = ["commit", *([_push(values["push"])] if "push" in values else [])], values.get("commit", "")
        if commit not in ("", True, "all"):
            hint = "say --commit, or --commit=all for what was changed before, too"
            raise UserError(f"--commit={commit} is not known", hint)
        said["scm"] = {"command": "git", "tasks": tasks, "all": commit == "all"}
    if "pr" in values:
        said["worktree"] = True
    if command in PRESET_OF:
        said.setdefault("preset", PRESET_OF[command])
    cap = values.get("ralph", 0 if values.get("print") else None)
    if cap is not None:  # the goal preset with that cap; `--max-iterations` then bounds the agent's own turns
        said.setdefault("preset", "goal")
        if "maximumIterations" in said:
            put_setting(said, "agent.maxTurns", said.pop("maximumIterations"))
        said["maximumIterations"] = CEILING if cap < 0 else max(cap, 1)
    if command == "task":  # whatever else may count there: DONE does
        said["until"] = ["file:DONE", *said.get("until", [])]
    if command == "loop" and said.get("agent", {}).get("command") == "build":
        del said["agent"]["command"]
    return said


def _push(word: str | bool) -> str:
    """The task of git that `--push` or `--push=REMOTE/BRANCH` stands for."""
    if word in ("", True):
        return "push"
    from shlex import quote

    remote, _, branch = str(word).partition("/")
    if not remote or not branch or remote.startswith("-"):
        raise UserError(f"--push={word} names no remote's branch", "write REMOTE/BRANCH, for example origin/main")
    return f"push {quote(remote)} {quote(f'HEAD:refs/heads/{branch}')}"


def one_run(values: dict[str, Any], words: list[str], objection: "Objection | None" = None) -> "Listed":
    """The run that the words of a command mean."""
    from ralph.steering.which_run import which_run, workspace_around

    if len(words) > 1:
        raise UserError(f"too many words: {words[1]!r}", "name one run")
    folder = folder_of(values)
    here = folder if "directory" in values else workspace_around(folder)
    return which_run(words[0] if words else "", here, objection or (lambda run: ""))


LONGEST_NUMBER = 5  # more digits are a date: the beginning of a run's id


def run_and_number(values: dict[str, Any], words: list[str]) -> "tuple[Listed, int | None]":
    """The run (the last one where none is named) and the number of an iteration, if there is one."""
    from ralph.steering.which_run import has_not_begun

    numbers = [word for word in words if word.isdecimal() and len(word) <= LONGEST_NUMBER]
    named = [word for word in words if word not in numbers]
    if len(named) > 1 or len(numbers) > 1:
        raise UserError(f"too many words: {' '.join(words)}", "give a run, the number of an iteration, or both")
    return one_run(values, named, has_not_begun), int(numbers[0]) if numbers else None


def read_run(values: dict[str, Any], words: list[str]) -> "Listed":
    """The run that is meant, for a command that reads its journal."""
    from ralph import __version__

    run = one_run(values, words)
    if _numbers(run.facts.version) > _numbers(__version__):
        said = f"run {run.id} was recorded by ralph {run.facts.version}, which is newer: some of it may be missing here"
        print(f"ralph: {said}", file=sys.stderr)
    return run


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def explain(order: "Order", loaded: "Loaded", out: "TextIO") -> int:
    """Says what would be run, and runs nothing: the settings that matter, the command line, and the first prompt."""
    import shlex

    from msgspec.structs import replace

    from ralph.core.model import Run
    from ralph.core.secrets import Redactor, secret_values
    from ralph.core.text import clean, plural
    from ralph.run.agents import choices, workers
    from ralph.run.policy import composer, policy, refuse_what_cannot_end
    from ralph.settings import format_duration
    from ralph.show.event_lines import WORDLESS

    settings, goal = loaded.settings, order.goal()
    refuse_what_cannot_end(settings, order.one_shot)
    chosen = choices(settings, order.agent_args, os.environ, str(order.workspace))
    plan = policy(settings, workers(chosen), order.one_shot)
    compose = composer(settings, plan, order.goal, diff=str, tells_claim=order.tells_claim)
    prompt, first = compose(Run(id="dry-run", goal=goal), ()), chosen[0]
    turn = replace(
        first.request(), prompt=prompt, prompt_file="PROMPT_FILE", yolo=settings.yolo, boxed=settings.sandbox.enabled
    )
    limits = [
        plural(plan.cap, "iteration"),
        "" if settings.max_cost is None else f"${settings.max_cost:g}",
        "" if settings.max_tokens is None else f"{settings.max_tokens} tokens",
        "" if settings.max_time is None else format_duration(settings.max_time),
    ]
    rows = [
        ("settings", ", ".join(map(str, loaded.sources)) or "defaults"),
        ("workspace", str(order.workspace)),
        ("preset", settings.preset),
        ("agent", shlex.join(first.module.invocation(turn).argv)),
        ("done when", " or ".join(WORDLESS.get(claim.kind) or claim.marker for claim in plan.claims)),
        ("and", ", ".join(plan.gates) or "nothing else"),
        *(() if settings.verifies else (("verified", "by nothing: no check, no tasks file"),)),
        *(("check", guardrail.command) for guardrail in settings.guardrails),
        ("at most", ", ".join(filter(None, limits))),
        *(_box(order, chosen) if settings.sandbox.enabled else ()),
    ]
    redact = Redactor(secret_values(os.environ)).text
    for name, text in rows:
        print(f"{name:>10}  {redact(clean(text))}", file=out)
    print(f"\nThe first prompt:\n\n{redact(clean(prompt))}", file=out)
    return 0


def _box(order: "Order", chosen: "Sequence[Choice]") -> list[tuple[str, str]]:
    """What would stand before the agent's command line, and every check."""
    import shlex

    from ralph.processes import box
    from ralph.processes.sandbox import look_around
    from ralph.run.belongings import RunPlace, allowed, wanted_by

    place = RunPlace(str(order.workspace), str(order.workspace), "RUN")
    around = look_around(wanted_by(order.settings, chosen, os.environ, place))
    reached = allowed(order.settings, chosen, os.environ)
    seen = box.places(around, os.path.isdir)
    words = box.words(box.find_bubblewrap(os.environ), seen, around.workspace, reached is None)
    rows = [("box", shlex.join(words))]
    if reached is not None:
        names = [f"{one.name}:{one.port}" if one.port else one.name for one in reached]
        rows.append(("network", ", ".join(names) or "none"))
    return rows
