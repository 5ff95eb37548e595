"""Which options are there? One table for the parser, the help, shell completion and the reference."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    Kind = Literal["text", "int", "float", "flag", "list", "maybe"]
    from collections.abc import Mapping, Sequence

    Values = dict[str, Any]


# Read before the keeper is forked: `typing` and `msgspec` would be half of what it holds.


_KINDS: dict[str, Kind] = {"": "flag", "N": "int", "USD": "float"}


class Option:
    """One option, spelt as its help shows it: `-m --max-iterations N`. Behind the names stands what its value is: a
    number (`N`, `USD`), one of some words (`reject|warn|accept`) or any text; ` ...`: it may be repeated; `[=WORD]`: it
    may be left out; nothing: a flag. `key` is the setting that it sets (`agent.model`), or empty where the command
    itself reads it by `name`; `sets` is what a flag stands for; `once`: a second one is a mistake."""

    def __init__(
        self,
        spelling: str,
        help: str,  # noqa: A002 (what everybody calls it)
        *,
        key: str = "",
        sets: Any = True,
        once: bool = False,
        group: str = "Options",
    ) -> None:
        words = spelling.removesuffix("[=WORD]").split(" ")
        self.names = tuple(word for word in words if word.startswith("-"))
        self.name = max(self.names, key=len).lstrip("-").replace("-", "_")
        """The longest spelling, as an identifier."""
        value = words[len(self.names)] if len(words) > len(self.names) else ""
        self.choices = tuple(value.split("|")) if value.replace("|", "").islower() else ()
        self.metavar = value
        self.kind: Kind = _KINDS.get(value, "text")
        if spelling.endswith("[=WORD]"):
            self.kind = "maybe"
        elif spelling.endswith(" ..."):
            self.kind = "list"
        self.help, self.group, self.key, self.sets, self.once = help, group, key, sets, once

    def saying(self, text: str) -> Option:
        """The same, explained in other words where there are any."""
        other = Option("--other", text or self.help)
        vars(other).update(vars(self), help=other.help)
        return other


def _group(title: str, *options: Option) -> tuple[Option, ...]:
    """The options that stand together in the help."""
    for option in options:
        option.group = title
    return options


def only(options: tuple[Option, ...], *names: str) -> tuple[Option, ...]:
    return tuple(option for option in options if option.name in names)


def without(options: tuple[Option, ...], *names: str) -> tuple[Option, ...]:
    return tuple(option for option in options if option.name not in names)


GOAL = _group(
    "Goal",
    Option("-p --prompt TEXT", "The goal, as text.", once=True),
    Option(
        "-f --prompt-file FILE", "A file with the goal; read again before every turn. `-`: standard input.", once=True
    ),
    Option("--print", "Take the goal from the command line and print what happens."),
    Option("--spec FILE", "A specification file whose text replaces the goal's.", once=True),
    Option("--issue N|URL", "A GitHub issue as the goal, by number or address (through `gh`).", once=True),
    Option("--comments", "With --issue: what its comments say, too."),
    Option("-C --directory DIR", "The workspace (default: the current folder)."),
)

DONE = _group(
    "When is it done",
    Option(
        "--until KIND:TEXT ...",
        "What counts as a claim of being done, as KIND:TEXT; repeatable. "
        "Kinds: word, response, suffix, promise, tag, file, checks.",
        key="until",
    ),
    Option("--check CMD ...", "A command that must exit 0 before a claim is believed; repeatable.", key="guardrails"),
    Option("--check-timeout TIME", "How long one check may take (loop: 120s).", key="checkTimeout"),
    Option(
        "--parallel-checks N", "Run N checks at a time (default: 1; they must not share files).", key="parallelChecks"
    ),
    Option("--fail-fast", "Begin no further check once one has failed.", key="failFast"),
    Option("--tasks FILE", "A tasks file (Markdown checkboxes, or prd.json) that must be all done.", key="tasks"),
    Option(
        "--protect GLOB ...",
        "Files that the agent must not change; put back before the checks run; repeatable.",
        key="protect",
    ),
    Option("--min-tool-calls N", "How many tool calls a believable claim needs.", key="minToolCalls"),
    Option("--on-promise-no-work reject|warn|accept", "What happens to a claim without work.", key="onPromiseNoWork"),
    Option("-c --completion-response TEXT", "Done when the agent answers <response>TEXT</response>."),
    Option("--completion-promise TEXT", "Done when the agent answers <promise>TEXT</promise>."),
    Option("--completion-tag TEXT", "Done when the agent answers TEXT as a whole word."),
    Option("--done-file FILE", "Done when this file exists in the workspace."),
    Option(
        "--claims N",
        "Done when N turns in a row claim it, the later ones having found nothing to change (default: 1).",
        key="claims",
    ),
    Option("--strict-signal", "A word counts only on a line by itself.", key="strictSignal"),
    Option(
        "--claim-anywhere",
        "Read claims literally, also in a sentence that denies or conditions them.",
        key="claimAnywhere",
    ),
)

AGENT = _group(
    "Agent",
    Option("--agent NAME|COMMAND", "A known agent, a path to one, or any command line.", key="agent.command"),
    Option("--model TEXT", "The model that the agent uses.", key="agent.model"),
    Option("--agent-arg ARG ...", "One more argument for the agent; repeatable."),
    Option("--yolo", "Let the agent do everything without asking.", key="yolo"),
    Option("--session fresh|continue", "A fresh session every turn, or one that is continued.", key="session"),
    Option(
        "--fallback-agent NAME ...",
        "An agent to go on with when this one hits its limit (--on-limit switch); repeatable.",
        key="fallbackAgents",
    ),
    Option(
        "--review-agent NAME",
        "Another agent reviews the work (settings `reviews` say when: every 5 iterations unless they do).",
        key="reviews.agent",
    ),
    Option(
        "--learn",
        "Carry the notes of earlier runs in the prompts, and ask for one more when it is done (`ralph learn`).",
        key="learn",
        sets=".ralph/learned.md",
    ),
    Option("--ultrawork", "Put `ultrawork` in front of every continuation.", key="ultrawork"),
)

LIMITS = _group(
    "Limits",
    Option(
        "-m --max-iterations --maximum-iterations N",
        "End after N iterations (default: 10; loop: 25). With --ralph: the agent's own turns inside one.",
        key="maximumIterations",
    ),
    Option("--ralph N", "Preset `goal` with a cap of N iterations; 0: one shot; negative: up to 200."),
    Option("--max-cost USD", "End when this much is spent.", key="maxCost"),
    Option("--max-tokens N", "End when this many tokens are used.", key="maxTokens"),
    Option("--max-time TIME", "End after this long (90, 90s, 5m, 1h30m), also in the middle of a turn.", key="maxTime"),
    Option("--turn-timeout TIME", "End a turn that takes longer.", key="turnTimeout"),
    Option(
        "--idle-timeout TIME",
        "End a turn that is silent for longer, no tool at work (default: 30m, if the agent tells of tools; 0: never).",
        key="idleTimeout",
    ),
    Option("--stall N", "End after N iterations that repeat the one before: same answer, same files.", key="stall"),
    Option("--no-stall", "Do not look for stalls.", key="stall", sets=0),
    Option("--max-failures N", "End after N failed turns in a row (default: 3).", key="maxFailures"),
    Option("--restart-delay TIME", "Pause between turns.", key="restartDelay"),
    Option(
        "--on-limit wait|stop|switch", "At a usage limit: wait for the reset, stop, or switch agents.", key="onLimit"
    ),
    Option(
        "--on-question continue|wait",
        "When the agent asks something: go on, or wait for `ralph tell`.",
        key="onQuestion",
    ),
    Option(
        "--grace TIME", "How long the current operation may go on after the first Ctrl-C (default: 30s).", key="grace"
    ),
)

PLACE = _group(
    "Workspace",
    Option("--worktree", "Work in a linked git worktree on a branch of its own.", key="worktree"),
    Option("--sandbox", "Run agent and checks in a box (Linux).", key="sandbox.enabled"),
    Option(
        "--sandbox-net on|off|HOST,…",
        "The same, and whom it reaches: on, off (nobody but the model), or hosts with commas between.",
        key="sandbox.net",
    ),
    Option(
        "--commit[=WORD]",
        "Commit what the run changed after green checks; the agent writes the message. `--commit=all`: with what was "
        "changed before.",
    ),
    Option(
        "--pr[=WORD]",
        "Work in a worktree, and open a pull request once it is done (through `gh`). `--pr=draft`: also when it is "
        "not, as a draft; `--pr=wait`: done means that the checks of the host pass, too.",
    ),
    Option("--push[=WORD]", "Push after the commit, to the upstream or to `--push=REMOTE/BRANCH`."),
    Option("--keep-children", "Do not end processes that a turn leaves behind.", key="keepChildren"),
    Option("--max-log SIZE", "Cap each log on disk, head and tail are kept (default: 32MB).", key="maxLog"),
)

OUTPUT = _group(
    "Output",
    Option("--json", "Events as NDJSON on stdout."),
    Option("--quiet", "The final result only."),
    Option("-V --verbose", "Say more about what happens."),
    Option("--stream-agent-output", "Show what the agent does as it does it (the default).", key="streamAgentOutput"),
    Option("--no-stream-agent-output", "Do not show it.", key="streamAgentOutput", sets=False),
    Option("--timestamps", "The time of day in front of every line.", key="timestamps"),
    Option("--no-color", "No colours.", key="color", sets=False),
    Option(
        "--notify CMD|URL ...",
        "Say when it is done, has failed, asks or waits for a limit: a command, a URL, or `desktop`; repeatable.",
        key="notify",
    ),
    Option("--dry-run", "Show what would be run, and the first prompt; run nothing."),
)

PRESET = _group(
    "Goal",
    Option("--preset guardrails|goal|checks|promise|supervise", "The way to loop (default: guardrails).", key="preset"),
)
CONFIG = _group("Goal", Option("-c --config FILE", "A YAML file with a `ralph_loop` section."))
DETACH = _group("Output", Option("--detach", "Go on without the terminal; `ralph logs -f` follows it."))
RUN = (*PRESET, *GOAL, *AGENT, *DONE, *LIMITS, *PLACE, *OUTPUT, *DETACH)
_no_short_c = tuple(Option("--completion-response TEXT", o.help, group=o.group) if "-c" in o.names else o for o in RUN)
LOOP = (*CONFIG, *without(_no_short_c, "preset"))

WHICH_TASK = _group(
    "Task",
    Option("--root DIR", "The folder of all projects."),
    Option("--project NAME", "The project; a folder in the root."),
    Option("--task NAME", "The task; a folder in the project."),
)
_prompts = without(GOAL, "print", "spec", "issue", "comments")
TASK = (
    *WHICH_TASK,
    *_group(
        "Task",
        Option("--depends-on TASK ...", "Wait until this task (`task` or `project/task`) is done; repeatable."),
        Option("--resume", "Take the marks DONE and WAIT_WITHOUT_RESTART off first."),
    ),
    *_prompts,
    *AGENT,
    *DONE,
    *_group(
        "Limits",
        Option("-m --max-restarts N", "Start the agent N times at most.", key="maximumIterations"),
        Option("--wait-timeout TIME", "How long DONE waits for child runs to end.", key="waitTimeout"),
        Option("--poll-interval TIME", "How often to look while waiting.", key="pollInterval"),
    ),
    *without(LIMITS, "maximum_iterations", "ralph"),
    *without(PLACE, "pr"),  # a task ends in its folder, not at a host
    *OUTPUT,
)
JOB = (
    *WHICH_TASK,
    *_group("Task", Option("--parent ID", "The run that this one is a child of (default: $JRUN_ID).")),
    *_prompts,
    *AGENT,
    *only(LIMITS, "max_time", "turn_timeout", "idle_timeout", "grace"),
    *only(OUTPUT, "json", "verbose"),
)

WORK = (
    *_group(
        "Backlog",
        Option("-j --jobs N", "How many items are worked on at once (default: 2)."),
        Option("--target BRANCH", "The branch that grows (default: a new one, ralph/NAME/merged)."),
        Option(
            "--push[=WORD]", "Land on a remote's branch, `--push=REMOTE/BRANCH` (default: the upstream of this one)."
        ),
    ),
    *only(GOAL, "issue"),
    *_group(
        "Backlog",
        Option("--db URL", "Share it with other machines: postgresql://HOST/NAME."),
        Option("--setup CMD", "A command that prepares each new worktree."),
        Option("--returns N", "Park an item that the gate has refused N times (default: 3)."),
        Option("--max-cost USD", "Start nothing that would cost more, all in all."),
        Option("--max-time TIME", "End after this long (90, 90s, 5m, 1h30m)."),
        Option("-C --directory DIR", "The workspace (default: the current folder)."),
    ),
    *AGENT,
    *DONE,
    *without(LIMITS, "ralph", "max_cost", "max_time"),
    *without(PLACE, "worktree", "commit", "push", "pr"),
    *OUTPUT,
)

PLAN = (
    *_group(
        "Plan",
        Option("-o --output FILE", "Where the plan goes (default: PLAN.md)."),
        Option("--yes", "Ask nothing, and accept a plan that can be worked off."),
    ),
    *without(GOAL, "print", "spec"),
    *AGENT,
    *only(DONE, "check", "check_timeout"),
    *only(LIMITS, "max_cost", "max_tokens", "max_time", "turn_timeout", "idle_timeout"),
    *only(LIMITS, "max_failures", "on_limit", "grace"),
    *only(PLACE, "sandbox", "sandbox_net"),
    *only(OUTPUT, "quiet", "verbose", "no_color"),
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
        put_value(values, option, text)
    except ValueError:
        return False
    return True


def put_value(values: Values, option: Option, text: str) -> None:
    """Adds what was said; raises ValueError where that is no number and has to be one."""
    value = {"int": int, "float": float}.get(option.kind, str)(text)
    if option.kind == "list":
        values.setdefault(option.name, []).append(value)
    else:
        values[option.name] = value


CLAIMS = {
    "completion_response": "response",
    "completion_promise": "promise",
    "completion_tag": "tag",
    "done_file": "file",
}


def layer(options: Sequence[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """What was said by options, as a layer of settings."""
    said: dict[str, Any] = {}
    for option in options:
        if option.key and option.name in values:
            put_setting(said, option.key, option.sets if option.kind == "flag" else values[option.name])
    if "guardrails" in said:
        said["guardrails"] = [{"command": command} for command in said["guardrails"]]
    claims = [f"{kind}:{values[name]}" for name, kind in CLAIMS.items() if name in values]
    if claims:
        said["until"] = [*said.get("until", []), *claims]
    return said


def put_setting(said: dict[str, Any], key: str, value: Any) -> None:
    """`agent.model` is the model in the settings of the agent."""
    *path, last = key.split(".")
    for step in path:
        said = said.setdefault(step, {})
    said[last] = value
