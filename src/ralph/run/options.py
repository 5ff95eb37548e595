"""Which options are there? One table for the parser, the help, shell completion and the reference."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Kind = Literal["text", "int", "float", "flag", "list", "maybe"]
    from collections.abc import Sequence

    Values = dict[str, Any]


# Read before the keeper is forked: `typing` and `msgspec` would be half of what it holds.


class Option:
    """One option. `key` is the setting that it sets (`agent.model`), or empty where the command itself reads it by
    `name`; `sets` is what a flag stands for; `once`: a second one is a mistake, not a change of mind."""

    def __init__(
        self,
        names: tuple[str, ...],
        help: str,  # noqa: A002 (what everybody calls it)
        group: str,
        *,
        key: str = "",
        kind: Kind = "text",
        metavar: str = "TEXT",
        sets: Any = True,
        choices: tuple[str, ...] = (),
        once: bool = False,
    ) -> None:
        self.names, self.help, self.group, self.key = names, help, group, key
        self.kind, self.metavar, self.sets, self.choices = kind, metavar, sets, choices
        self.once = once

    @property
    def name(self) -> str:
        """The longest spelling, as an identifier."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")

    def saying(self, text: str) -> Option:
        """The same, explained in other words where there are any."""
        other = Option(self.names, text or self.help, self.group)
        vars(other).update(vars(self), help=other.help)
        return other


PRESETS = ("guardrails", "goal", "checks", "promise", "supervise")

GOAL = (
    Option(("-p", "--prompt"), "The goal, as text.", "Goal", once=True),
    Option(
        ("-f", "--prompt-file"),
        "A file with the goal; read again before every turn. `-`: standard input.",
        "Goal",
        metavar="FILE",
        once=True,
    ),
    Option(("--print",), "Take the goal from the command line and print what happens.", "Goal", kind="flag"),
    Option(("--spec",), "A specification file whose text replaces the goal's.", "Goal", metavar="FILE", once=True),
    Option(
        ("--issue",),
        "A GitHub issue as the goal, by number or address (through `gh`).",
        "Goal",
        metavar="N|URL",
        once=True,
    ),
    Option(("--comments",), "With --issue: what its comments say, too.", "Goal", kind="flag"),
    Option(("-C", "--directory"), "The workspace (default: the current folder).", "Goal", metavar="DIR"),
)

DONE = (
    Option(
        ("--until",),
        "What counts as a claim of being done, as KIND:TEXT; repeatable. "
        "Kinds: word, response, suffix, promise, tag, file, checks.",
        "When is it done",
        key="until",
        kind="list",
        metavar="KIND:TEXT",
    ),
    Option(
        ("--check",),
        "A command that must exit 0 before a claim is believed; repeatable.",
        "When is it done",
        key="guardrails",
        kind="list",
        metavar="CMD",
    ),
    Option(
        ("--check-timeout",),
        "How long one check may take (loop: 120s).",
        "When is it done",
        key="checkTimeout",
        metavar="TIME",
    ),
    Option(
        ("--parallel-checks",),
        "Run N checks at a time (default: 1; they must not share files).",
        "When is it done",
        key="parallelChecks",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--fail-fast",), "Begin no further check once one has failed.", "When is it done", key="failFast", kind="flag"
    ),
    Option(
        ("--tasks",),
        "A tasks file (Markdown checkboxes, or prd.json) that must be all done.",
        "When is it done",
        key="tasks",
        metavar="FILE",
    ),
    Option(
        ("--protect",),
        "Files that the agent must not change; put back before the checks run; repeatable.",
        "When is it done",
        key="protect",
        kind="list",
        metavar="GLOB",
    ),
    Option(
        ("--min-tool-calls",),
        "How many tool calls a believable claim needs.",
        "When is it done",
        key="minToolCalls",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--on-promise-no-work",),
        "What happens to a claim without work.",
        "When is it done",
        key="onPromiseNoWork",
        choices=("reject", "warn", "accept"),
    ),
    Option(
        ("-c", "--completion-response"), "Done when the agent answers <response>TEXT</response>.", "When is it done"
    ),
    Option(("--completion-promise",), "Done when the agent answers <promise>TEXT</promise>.", "When is it done"),
    Option(("--completion-tag",), "Done when the agent answers TEXT as a whole word.", "When is it done"),
    Option(("--done-file",), "Done when this file exists in the workspace.", "When is it done", metavar="FILE"),
    Option(
        ("--strict-signal",),
        "A word counts only on a line by itself.",
        "When is it done",
        key="strictSignal",
        kind="flag",
    ),
    Option(
        ("--claim-anywhere",),
        "Read claims literally, also in a sentence that denies or conditions them.",
        "When is it done",
        key="claimAnywhere",
        kind="flag",
    ),
)

AGENT = (
    Option(
        ("--agent",),
        "A known agent, a path to one, or any command line.",
        "Agent",
        key="agent.command",
        metavar="NAME|COMMAND",
    ),
    Option(("--model",), "The model that the agent uses.", "Agent", key="agent.model"),
    Option(("--agent-arg",), "One more argument for the agent; repeatable.", "Agent", kind="list", metavar="ARG"),
    Option(("--yolo",), "Let the agent do everything without asking.", "Agent", key="yolo", kind="flag"),
    Option(
        ("--session",),
        "A fresh session every turn, or one that is continued.",
        "Agent",
        key="session",
        choices=("fresh", "continue"),
    ),
    Option(
        ("--fallback-agent",),
        "An agent to go on with when this one hits its limit (--on-limit switch); repeatable.",
        "Agent",
        key="fallbackAgents",
        kind="list",
        metavar="NAME",
    ),
    Option(
        ("--review-agent",),
        "Another agent reviews the work (settings `reviews` say when: every 5 iterations unless they do).",
        "Agent",
        key="reviews.agent",
        metavar="NAME",
    ),
    Option(
        ("--learn",),
        "Carry the notes of earlier runs in the prompts, and ask for one more when it is done (`ralph learn`).",
        "Agent",
        key="learn",
        kind="flag",
        sets=".ralph/learned.md",
    ),
    Option(("--ultrawork",), "Put `ultrawork` in front of every continuation.", "Agent", key="ultrawork", kind="flag"),
)

LIMITS = (
    Option(
        ("-m", "--max-iterations", "--maximum-iterations"),
        "End after N iterations (default: 10; loop: 25). With --ralph: the agent's own turns inside one.",
        "Limits",
        key="maximumIterations",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--ralph",),
        "Preset `goal` with a cap of N iterations; 0: one shot; negative: up to 200.",
        "Limits",
        key="",
        kind="int",
        metavar="N",
    ),
    Option(("--max-cost",), "End when this much is spent.", "Limits", key="maxCost", kind="float", metavar="USD"),
    Option(
        ("--max-tokens",), "End when this many tokens are used.", "Limits", key="maxTokens", kind="int", metavar="N"
    ),
    Option(
        ("--max-time",),
        "End after this long (90, 90s, 5m, 1h30m), also in the middle of a turn.",
        "Limits",
        key="maxTime",
        metavar="TIME",
    ),
    Option(("--turn-timeout",), "End a turn that takes longer.", "Limits", key="turnTimeout", metavar="TIME"),
    Option(
        ("--idle-timeout",),
        "End a turn that is silent for longer, no tool at work (default: 30m, if the agent tells of tools; 0: never).",
        "Limits",
        key="idleTimeout",
        metavar="TIME",
    ),
    Option(
        ("--stall",),
        "End after N iterations that repeat the one before: same answer, same files.",
        "Limits",
        key="stall",
        kind="int",
        metavar="N",
    ),
    Option(("--no-stall",), "Do not look for stalls.", "Limits", key="stall", kind="flag", sets=0),
    Option(
        ("--max-failures",),
        "End after N failed turns in a row (default: 3).",
        "Limits",
        key="maxFailures",
        kind="int",
        metavar="N",
    ),
    Option(("--restart-delay",), "Pause between turns.", "Limits", key="restartDelay", metavar="TIME"),
    Option(
        ("--on-limit",),
        "At a usage limit: wait for the reset, stop, or switch agents.",
        "Limits",
        key="onLimit",
        choices=("wait", "stop", "switch"),
    ),
    Option(
        ("--on-question",),
        "When the agent asks something: go on, or wait for `ralph tell`.",
        "Limits",
        key="onQuestion",
        choices=("continue", "wait"),
    ),
    Option(
        ("--grace",),
        "How long the current operation may go on after the first Ctrl-C (default: 30s).",
        "Limits",
        key="grace",
        metavar="TIME",
    ),
)

PLACE = (
    Option(
        ("--worktree",),
        "Work in a linked git worktree on a branch of its own.",
        "Workspace",
        key="worktree",
        kind="flag",
    ),
    Option(("--sandbox",), "Run agent and checks in a box (Linux).", "Workspace", key="sandbox.enabled", kind="flag"),
    Option(
        ("--sandbox-net",),
        "The same, and whom it reaches: on, off (nobody but the model), or hosts with commas between.",
        "Workspace",
        key="sandbox.net",
        metavar="on|off|HOST,…",
    ),
    Option(
        ("--commit",),
        "Commit what the run changed after green checks; the agent writes the message. `--commit=all`: with what was "
        "changed before.",
        "Workspace",
        kind="maybe",
    ),
    Option(
        ("--pr",),
        "Work in a worktree, and open a pull request once it is done (through `gh`). `--pr=draft`: also when it is "
        "not, as a draft; `--pr=wait`: done means that the checks of the host pass, too.",
        "Workspace",
        kind="maybe",
    ),
    Option(("--push",), "Push after the commit.", "Workspace", kind="flag"),
    Option(
        ("--keep-children",),
        "Do not end processes that a turn leaves behind.",
        "Workspace",
        key="keepChildren",
        kind="flag",
    ),
    Option(
        ("--max-log",),
        "Cap each log on disk, head and tail are kept (default: 32MB).",
        "Workspace",
        key="maxLog",
        metavar="SIZE",
    ),
)

OUTPUT = (
    Option(("--json",), "Events as NDJSON on stdout.", "Output", kind="flag"),
    Option(("--quiet",), "The final result only.", "Output", kind="flag"),
    Option(("-V", "--verbose"), "Say more about what happens.", "Output", kind="flag"),
    Option(
        ("--stream-agent-output",),
        "Show what the agent does as it does it (the default).",
        "Output",
        key="streamAgentOutput",
        kind="flag",
    ),
    Option(
        ("--no-stream-agent-output",), "Do not show it.", "Output", key="streamAgentOutput", kind="flag", sets=False
    ),
    Option(("--timestamps",), "The time of day in front of every line.", "Output", key="timestamps", kind="flag"),
    Option(("--no-color",), "No colours.", "Output", key="color", kind="flag", sets=False),
    Option(
        ("--notify",),
        "Say when it is done, has failed, asks or waits for a limit: a command, a URL, or `desktop`; repeatable.",
        "Output",
        key="notify",
        kind="list",
        metavar="CMD|URL",
    ),
    Option(("--dry-run",), "Show what would be run, and the first prompt; run nothing.", "Output", kind="flag"),
)

PRESET = (Option(("--preset",), "The way to loop (default: guardrails).", "Goal", key="preset", choices=PRESETS),)
CONFIG = (Option(("-c", "--config"), "A YAML file with a `ralph_loop` section.", "Goal", metavar="FILE"),)

DETACH = (Option(("--detach",), "Go on without the terminal; `ralph logs -f` follows it.", "Output", kind="flag"),)
RUN = (*PRESET, *GOAL, *AGENT, *DONE, *LIMITS, *PLACE, *OUTPUT, *DETACH)
_without_short_c = tuple(
    Option(("--completion-response",), o.help, o.group) if "-c" in o.names else o for o in RUN if o not in PRESET
)
LOOP = (*CONFIG, *_without_short_c)

WHICH_TASK = (
    Option(("--root",), "The folder of all projects.", "Task", metavar="DIR"),
    Option(("--project",), "The project; a folder in the root.", "Task", metavar="NAME"),
    Option(("--task",), "The task; a folder in the project.", "Task", metavar="NAME"),
)
_prompts = tuple(option for option in GOAL if option.name not in ("print", "spec", "issue", "comments"))
_own_limits = tuple(option for option in LIMITS if option.name not in ("maximum_iterations", "ralph"))
TASK = (
    *WHICH_TASK,
    Option(
        ("--depends-on",),
        "Wait until this task (`task` or `project/task`) is done; repeatable.",
        "Task",
        key="",
        kind="list",
        metavar="TASK",
    ),
    Option(("--resume",), "Take the marks DONE and WAIT_WITHOUT_RESTART off first.", "Task", kind="flag"),
    *_prompts,
    *AGENT,
    *DONE,
    Option(
        ("-m", "--max-restarts"),
        "Start the agent N times at most.",
        "Limits",
        key="maximumIterations",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--wait-timeout",), "How long DONE waits for child runs to end.", "Limits", key="waitTimeout", metavar="TIME"
    ),
    Option(("--poll-interval",), "How often to look while waiting.", "Limits", key="pollInterval", metavar="TIME"),
    *_own_limits,
    *PLACE,
    *OUTPUT,
)
JOB = (
    *WHICH_TASK,
    Option(("--parent",), "The run that this one is a child of (default: $JRUN_ID).", "Task", metavar="ID"),
    *_prompts,
    *AGENT,
    *(option for option in LIMITS if option.name in ("max_time", "turn_timeout", "idle_timeout", "grace")),
    *(option for option in OUTPUT if option.name in ("json", "verbose")),
)

WORK = (
    Option(
        ("-j", "--jobs"),
        "How many items are worked on at once (default: 2).",
        "Backlog",
        key="",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--target",), "The branch that grows (default: a new one, ralph/NAME/merged).", "Backlog", metavar="BRANCH"
    ),
    Option(
        ("--push",),
        "Land on a remote's branch, `--push=REMOTE/BRANCH` (default: the upstream of this one).",
        "Backlog",
        kind="maybe",
    ),
    *(option for option in GOAL if option.name == "issue"),
    Option(("--db",), "Share it with other machines: postgresql://HOST/NAME.", "Backlog", metavar="URL"),
    Option(("--setup",), "A command that prepares each new worktree.", "Backlog", metavar="CMD"),
    Option(
        ("--returns",),
        "Park an item that the gate has refused N times (default: 3).",
        "Backlog",
        key="",
        kind="int",
        metavar="N",
    ),
    Option(
        ("--max-cost",),
        "Start nothing that would cost more, all in all.",
        "Backlog",
        key="",
        kind="float",
        metavar="USD",
    ),
    Option(("--max-time",), "End after this long (90, 90s, 5m, 1h30m).", "Backlog", metavar="TIME"),
    Option(("-C", "--directory"), "The workspace (default: the current folder).", "Backlog", metavar="DIR"),
    *AGENT,
    *DONE,
    *(option for option in LIMITS if option.name not in ("ralph", "max_cost", "max_time")),
    *(option for option in PLACE if option.name not in ("worktree", "commit", "push", "pr")),
    *OUTPUT,
)

_plan_limits = (
    "max_cost",
    "max_tokens",
    "max_time",
    "turn_timeout",
    "idle_timeout",
    "max_failures",
    "on_limit",
    "grace",
)
PLAN = (
    Option(("-o", "--output"), "Where the plan goes (default: PLAN.md).", "Plan", metavar="FILE"),
    Option(("--yes",), "Ask nothing, and accept a plan that can be worked off.", "Plan", key="", kind="flag"),
    *(option for option in GOAL if option.name not in ("print", "spec")),
    *AGENT,
    *(option for option in DONE if option.name in ("check", "check_timeout")),
    *(option for option in LIMITS if option.name in _plan_limits),
    *(option for option in PLACE if option.name in ("sandbox", "sandbox_net")),
    *(option for option in OUTPUT if option.name in ("quiet", "verbose", "no_color")),
)

COMMANDS: dict[str, tuple[Option, ...]] = {
    "run": RUN,
    "loop": LOOP,
    "task": TASK,
    "job": JOB,
    "work": WORK,
    "plan": PLAN,
}


def spelling(command: str) -> dict[str, str]:
    """How each setting is called on the command line of a command."""
    names: dict[str, str] = {}
    for option in COMMANDS[command]:
        if option.key:
            names.setdefault(option.key, next(name for name in option.names if name.startswith("--")))
    return names


def parse(options: Sequence[Option], argv: Sequence[str]) -> tuple[Values, list[str]] | None:
    """The options' values by name, and the positional words; None if click has to look at it."""
    by_name = {name: option for option in options for name in option.names}
    values: Values = {}
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            words += rest
        elif not word.startswith("-") or word == "-":
            words.append(word)
        else:
            name, equals, value = _split(word)
            option = by_name.get(name)
            if option is None or (option.kind == "flag" and equals and name != "--print"):
                return None
            if option.kind == "maybe":
                values[option.name] = value
                continue
            if option.kind == "flag":
                words += [value] if equals else []  # `--print=GOAL` is `--print GOAL`
                values[option.name] = True
                continue
            text = value if equals else next(rest, None)
            if text is None or not _store(values, option, text):
                return None
    return values, words


def _split(word: str) -> tuple[str, bool, str]:
    """`--name=value`, `-mVALUE` or a bare name."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, bool(equals), value
    return word[:2], len(word) > 2, word[2:]


def _store(values: Values, option: Option, text: str) -> bool:
    if (option.choices and text not in option.choices) or (option.once and option.name in values):
        return False
    try:
        value = {"int": int, "float": float}.get(option.kind, str)(text)
    except ValueError:
        return False
    if option.kind == "list":
        values.setdefault(option.name, []).append(value)
    else:
        values[option.name] = value
    return True
