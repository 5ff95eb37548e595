"""The options of each command, and lines with options that people type into a prompt."""

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ralph.errors import UserError
from ralph.options.option import (
    COMPATIBILITY,
    Option,
    OptionCommand,
    Values,
    group,
    only,
    option_values,
    setting,
    without,
)

DIRECTORY = Option("-C --directory DIR", "The workspace (default: the current folder).")

GOAL = group(
    "Goal",
    Option("-p --prompt TEXT", "The goal, as text."),
    Option("-f --prompt-file FILE", "A file with the goal, read again before every turn; `-`: standard input."),
    "spec",
    Option("--issue N|URL", "A GitHub issue as the goal, by number or address (through `gh`)."),
    Option("--comments", "With --issue: include its comments."),
    copy.copy(DIRECTORY),
)

DONE = group(
    "When is it done",
    *("until", "checks", "checkTimeout", "tests", "exams", "examTries"),
    setting("baseline", sets=True, text="Run the checks before the first turn (the default of `ralph loop`)."),
    setting("baseline", "--no-baseline", "Don't run them then: the agent will create their commands.", sets=False),
    "failFast",
    Option(
        "--prove[=ask]",
        "When done, undo parts of the change to see which of them no check notices, and report them. `ask`: give the "
        "agent one turn about them.",
        key="prove",
        sets="report",
    ),
    *("tasks", "protect.globs", "claims"),
)

AGENT = group(
    "Agent",
    *("agent.command", "agent.model", "yolo", "session", "then", "reviews.agent"),
)

LIMITS = group(
    "Limits",
    *("maximumIterations", "maxCost", "maxTokens", "maxTime", "turnTimeout", "idleTimeout"),
    *("stuck", "stall", "maxFailures", "restartDelay", "onLimit", "onQuestion", "grace"),
)

PLACE = group(
    "Workspace",
    *("worktree", "setup", "sandbox.enabled"),
    setting("sandbox.net", text="Run in a sandbox with this network: on, off (only the model), or hosts with commas."),
    Option(
        "--commit[=all]",
        "Commit the run's changes after green checks; the agent writes the message. `all`: include changes made before "
        "the run.",
    ),
    Option(
        "--pr[=draft|wait]",
        "Work in a worktree and open a pull request when done (through `gh`). `draft`: a draft, also if the run ends "
        "unfinished; `wait`: done only when the host's checks pass.",
        key="pr",
        sets="open",
    ),
    Option("--push[=REMOTE/BRANCH]", "Push after the commit, to the upstream or to this branch."),
)

OUTPUT = group(
    "Output",
    Option("--json", "Print events as NDJSON on stdout."),
    Option("--quiet", "Print the final result only."),
    Option("-v -V --verbose", "Print more about what happens."),
    setting("streamAgentOutput", "--no-stream-agent-output", "Don't show what the agent does.", sets=False),
    "timestamps",
    setting("color", text="Use no colours."),
    "notify",
    Option("--dry-run", "Show what would be run, and the first prompt; run nothing."),
)

OLD_DONE = group(
    COMPATIBILITY,
    Option("-c --completion-response TEXT", "Done when the agent answers <response>TEXT</response>."),
    Option("--completion-promise TEXT", "Done when the agent answers <promise>TEXT</promise>."),
    Option("--completion-tag TEXT", "Done when the agent answers TEXT as a whole word."),
    Option("--done-file FILE", "Done when this file exists in the workspace."),
    *("minToolCalls", "onPromiseNoWork", "strictSignal", "claimAnywhere"),
)
OLD = group(
    COMPATIBILITY,
    setting("stall", "--no-stall", "Don't look for stalls.", sets=0),
    *("ultrawork", "keepChildren", "maxLog"),
    setting("streamAgentOutput", sets=True, text="Show what the agent does (the default)."),
    "agent.args",
    setting("then", "--fallback-agent NAME", "The same as --then."),
)
OLD_GOAL = group(
    COMPATIBILITY,
    Option("--print[=GOAL]", "Take the goal from the command line and run once, unless --ralph says otherwise."),
    Option("--ralph N", "Preset `goal` with at most N iterations; 0: one shot; negative: up to 200."),
)

PRESET = group("Goal", setting("preset"))
CONFIG = group("Goal", Option("-c --config FILE", "A YAML file with a `ralph_loop` section."))
DETACH = group("Output", Option("--detach", "Run in the background; `ralph logs -f` follows the run."))
_LOOPING = (*GOAL, *AGENT, *DONE, *LIMITS, *PLACE, *OUTPUT, *DETACH)
RUN = (*PRESET, *_LOOPING, *OLD_DONE, *OLD, *OLD_GOAL)
_LONG_RESPONSE = group(COMPATIBILITY, Option("--completion-response TEXT", OLD_DONE[0].help or ""))
LOOP = (*CONFIG, *_LOOPING, *_LONG_RESPONSE, *OLD_DONE[1:], *OLD, *OLD_GOAL)

TUNE = (
    *group(
        "Number",
        *("tune.minimize", "tune.maximize", "tune.metric", "tune.minGain", "tune.target"),
        setting("stuck", text="End after N attempts in a row that brought nothing.", shows_default=True),
    ),
    *without(GOAL, "comments"),
    *AGENT,
    *only(DONE, "check", "check_timeout", "fail_fast", "protect", "exam", "exam_tries"),
    *without(LIMITS, "stuck"),
    *only(PLACE, "setup", "sandbox", "sandbox_net"),
    *OUTPUT,
    *DETACH,
    *OLD,
)

_PROMPTS = without(GOAL, "spec", "issue", "comments")
TASK = (
    *group(
        "Task",
        Option("--root DIR", "The folder of all projects."),
        Option("--project NAME", "The project; a folder in the root."),
        Option("--task NAME", "The task; a folder in the project."),
    ),
    *_PROMPTS,
    *AGENT,
    *without(DONE, "prove"),
    *group(
        "Limits",
        setting("maximumIterations", "-m --max-restarts", "Start the agent at most N times.", shows_default=True),
        "waitTimeout",
        "pollInterval",
    ),
    *without(LIMITS, "maximum_iterations"),
    *without(PLACE, "pr"),  # a task ends with a file in its folder, not with a pull request
    *OUTPUT,
    *OLD_DONE,
    *OLD,
)
JOB = (
    *_PROMPTS,
    *AGENT,
    *only(LIMITS, "max_time", "turn_timeout", "idle_timeout", "grace"),
    *only(OUTPUT, "json", "verbose"),
    *only(OLD, "ultrawork", "agent_arg"),
)

WORK = (
    *group(
        "Backlog",
        "work.jobs",
        Option("--target BRANCH", "The branch to merge into (default: a new one, ralph/NAME/merged)."),
        Option("--push[=REMOTE/BRANCH]", "Merge into a remote's branch (default: the upstream of the current branch)."),
    ),
    *only(GOAL, "issue"),
    *group(
        "Backlog",
        Option("--db URL", "Share the backlog with other machines: postgresql://HOST/NAME."),
        "work.returns",
        "work.allowRed",
        Option("--max-cost USD", "Start nothing that would cost more in total."),
        Option("--max-time TIME", "End after this long (90, 90s, 5m, 1h30m)."),
        copy.copy(DIRECTORY),
    ),
    *AGENT,
    *without(DONE, "baseline", "no_baseline", "prove"),  # the gate's first check of the target is the baseline
    *without(LIMITS, "max_cost", "max_time"),
    *without(PLACE, "worktree", "commit", "push", "pr"),
    *OUTPUT,
    *OLD_DONE,
    *OLD,
)

PLAN = (
    *group(
        "Plan",
        Option("-o --output FILE", "Where to write the plan (default: PLAN.md)."),
        Option("--yes", "Ask nothing, and accept a plan without problems."),
    ),
    *without(GOAL, "spec"),
    *AGENT,
    *only(DONE, "check", "check_timeout"),
    *only(LIMITS, "max_cost", "max_tokens", "max_time", "turn_timeout", "idle_timeout"),
    *only(LIMITS, "max_failures", "on_limit", "grace"),
    *only(PLACE, "sandbox", "sandbox_net"),
    *only(OUTPUT, "quiet", "verbose", "no_color"),
    *only(OLD, "ultrawork", "agent_arg"),
)

JUDGE = (
    *group(
        "Change",
        Option("--head REF", "Judge this branch or commit instead of the files here."),
        copy.copy(DIRECTORY),
    ),
    *group(
        "How it is judged",
        *only(DONE, "check", "exam", "protect"),
        *only(AGENT, "review_agent"),
        setting("prove", "--prove", "Undo parts of the change to see which of them no check notices.", sets="report"),
        *only(DONE, "tests", "check_timeout"),
        *only(PLACE, "setup", "sandbox", "sandbox_net"),
    ),
    *group(
        "Output",
        Option("--json", "Print the receipt as one JSON object (`ralph schema judgement`)."),
        Option("--markdown", "Print a comment for a pull request."),
        Option("--html FILE", "Write a page as well."),
    ),
)

COMMANDS: dict[str, tuple[Option, ...]] = {
    "run": RUN,
    "loop": LOOP,
    "judge": JUDGE,
    "tune": TUNE,
    "task": TASK,
    "job": JOB,
    "work": WORK,
    "plan": PLAN,
}


def option_names(command: str) -> dict[str, str]:
    """Return the option that sets each setting on the command line of a command."""
    names: dict[str, str] = {}
    for option in COMMANDS[command]:
        if option.key:
            names.setdefault(option.key, next(name for name in option.names if name.startswith("--")))
    return names


def usage_error(error: click.UsageError) -> UserError:
    """Return an error that says in one line what is wrong with the options, with a hint."""
    path = error.ctx.command_path if error.ctx else "ralph"
    hint = f"`{path} -h` lists the options"
    if isinstance(error, click.NoSuchOption):
        others = [
            f"`ralph {name}`" for name, rows in COMMANDS.items() if any(error.option_name in row.names for row in rows)
        ]
        if others:
            hint = f"it belongs to {', '.join(others)}; {hint}"
        elif error.possibilities:
            hint = f"did you mean {error.possibilities[0]}? {hint}"
        return UserError(f"no such option: {error.option_name}", hint)
    if isinstance(error, click.BadParameter) and error.param and error.param.opts:
        name = next((name for name in error.param.opts if name.startswith("--")), error.param.opts[0])
        return UserError(f"{name}: {error.message.rstrip('.')}", hint)
    if isinstance(error, click.BadOptionUsage):
        trouble = "takes no value" if "does not take" in error.message else "requires an argument"
        return UserError(f"{error.option_name} {trouble}", hint)
    text = " ".join(error.format_message().split())
    if text == "Missing command.":
        return UserError(f"{path} needs a command", f"`{path} -h` lists the commands")
    return UserError(text[:1].lower() + text[1:].rstrip("."), hint)


def words_of(values: Mapping[str, Any], options: Sequence[Option] = RUN) -> list[str]:
    """Return options as words of a command line, each with its value in one word, which may then begin with a dash."""
    words: list[str] = []
    for option in options:
        value, name = values.get(str(option.name)), max(option.names, key=len)
        if value is None:
            continue
        if option.kind == "flag":
            words += [name] if value else []
        else:
            words += [f"{name}={item}" for item in (value if isinstance(value, list) else [value])]
    return words


QUOTES = {'"': '"', "'": "'", "“": "”"}
MAX_CANDIDATES = 100  # places where the options might begin


def parse_prompt_line(text: str, options: Sequence[Option]) -> tuple[str, Values]:
    """Return the task, and the options after it, of a line in an agent's prompt or in the TUI, such as `/ralph-loop
    TASK --max-iterations 5`. Raise a UserError for a wrong option.

    No shell has parsed it, so a task may contain quotes, newlines and dashes. It is the text before the options,
    verbatim, without the one pair of quotes that may be around it.
    """
    text = text.strip()
    first = re.split(r"[\s=]", text, maxsplit=1)[0]
    if any(first in option.names for option in options):
        raise UserError(f"{first} is in front of the task", f"write the task first: TASK {first}")
    task, tail = _split_quoted_task(text) or _split_plain_task(text, options)
    try:
        return task, parse(options, _split(tail))[0]
    except click.UsageError as error:
        raise usage_error(error) from None


def parse(options: Sequence[Option], argv: Sequence[str]) -> tuple[Values, list[str]]:
    """Parse words that aren't a command line, with click; raise click.UsageError if they make no sense."""
    with OptionCommand("run", options).make_context("ralph run", list(argv)) as ctx:
        return option_values(ctx)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe, as in --completion-promise it's
        return text.split()


def _split_quoted_task(text: str) -> tuple[str, str] | None:
    """Return the task inside one pair of quotes, and the options after it; None if the quotes are part of the task."""
    close = QUOTES.get(text[:1])
    match = re.compile(rf"(?<!\\){re.escape(close)}").search(text, 1) if close else None
    if close is None or match is None:
        return None
    task, tail = text[1 : match.start()], text[match.end() :].strip()
    return (task.replace(f"\\{close}", close), tail) if not tail or tail.startswith("--") else None


def _split_plain_task(text: str, options: Sequence[Option]) -> tuple[str, str]:
    """Return the task and the options after it. The task ends where the rest of the line is nothing but options."""
    command = OptionCommand("ralph", options)
    for start in [match.start() for match in re.finditer(r"(?:^|(?<=\s))--", text)][-MAX_CANDIDATES:]:
        try:
            _, words, _ = command.make_parser(click.Context(command)).parse_args(_split(text[start:]))
        except click.UsageError:  # not one of these options: part of the task
            continue
        if not words:
            return text[:start].strip(), text[start:]
    return text, ""
