"""Every setting: one frozen struct whose fields are the keys of settings.json.

A field's annotation also says what `--help`, the reference and the JSON Schema say about it, and which option sets it.
"""

from re import fullmatch
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ralph.core.findings import TestsRule
from ralph.core.model import FailAction
from ralph.core.referees import QUESTION
from ralph.errors import UserError
from ralph.settings.presets import DEFAULT_PRESET, PRESETS, Preset, PresetName

NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
DURATION = "".join(f"(?:{NUMBER}{unit})?" for unit in DURATION_UNITS)
SIZE_UNITS = {"": 1, "b": 1}
SIZE_UNITS |= {prefix + b: 1000**power for power, prefix in enumerate("kmgt", 1) for b in ("", "b")}
SIZE_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

MAX_DURATION = 36500 * 86400.0  # a hundred years; much more overflows the system's timers
MAX_SIZE = 1 << 60


def parse_duration(text: str) -> float:
    """Return the seconds in `90`, `90s`, `5m`, `1h30m` or `2d`."""
    plain = text.strip().lower()
    if fullmatch(NUMBER, plain):
        seconds = float(plain)
    elif plain and (match := fullmatch(DURATION, plain)):
        parts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number)
    else:
        raise UserError(f'"{text}" is not a duration', "write 90, 90s, 5m, 1h30m or 2d")
    if seconds > MAX_DURATION:
        raise UserError(f'"{text}" is too long', "the limit is 36500d")
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes in `500000`, `512kB`, `32MB` (powers of 1000) or `1GiB` (powers of 1024)."""
    match = fullmatch(NUMBER + r"\s?([a-z]*)", text.strip().lower())
    if match is None or match[2] not in SIZE_UNITS:
        raise UserError(f'"{text}" is not a size', "write 500000, 512kB, 32MB or 1GiB")
    scale = SIZE_UNITS[match[2]]
    size = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    if size > MAX_SIZE:
        raise UserError(f'"{text}" is too large', "the limit is 1152921TB")
    return size


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads back, to the millisecond."""
    rest = round(seconds * 1000)
    parts = []
    for unit, size in DURATION_UNITS.items():
        count, rest = divmod(rest, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads back."""
    unit = next((unit for unit in ("GB", "MB", "kB") if size and size % SIZE_UNITS[unit.lower()] == 0), "")
    return f"{size // SIZE_UNITS[unit.lower()]}{unit}"


def about(description: str, *examples: Any, option: str = "", **schema: Any) -> Meta:
    """Describe a field; `option` is how `--help` spells its option if that isn't made of the key: `--check CMD`."""
    extra = {"option": option} if option else None
    return Meta(description=description, examples=list(examples) or None, extra=extra, extra_json_schema=schema or None)


# A file may give a duration or a size as text. `expects` is for messages, `metavar` for the help of options.
_AS_TEXT = {"pattern": r"^\s*[0-9]"}
_DURATION = {"expects": 'a duration such as 90, "90s", "5m" or "1h30m"', "metavar": "TIME", "parse": parse_duration}
_TIME = {**_DURATION, "expects": 'a duration above 0 such as 90, "90s", "5m" or "1h30m"'}
_SIZE = {"expects": 'a size such as 500000, "512kB", "32MB" or "1GiB"', "metavar": "SIZE", "parse": parse_size}
_CLAIM = {"expects": '"KIND:TEXT" with KIND one of word, response, suffix, promise, tag, file, or "checks" alone'}
_CLAIM_PATTERN = r"^(?:(?:word|response|suffix|promise|tag|file):\s*\S[\s\S]*|checks)$"

FileName = Annotated[str, Meta(extra={"metavar": "FILE"})]
ShellCommand = Annotated[str, Meta(extra={"metavar": "CMD"})]
Number = Annotated[float, Meta(extra={"metavar": "NUMBER"})]
NotBlank = Annotated[str, Meta(pattern=r"\S", extra={"expects": "text that is not blank"})]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(gt=0, le=1e9, extra={"metavar": "USD"})]
Duration = Annotated[float, Meta(ge=0, le=MAX_DURATION, extra=_DURATION, extra_json_schema=_AS_TEXT)]
Time = Annotated[float, Meta(gt=0, le=MAX_DURATION, extra=_TIME, extra_json_schema=_AS_TEXT)]
Size = Annotated[int, Meta(ge=0, le=MAX_SIZE, extra=_SIZE, extra_json_schema=_AS_TEXT)]
ClaimText = Annotated[str, Meta(pattern=_CLAIM_PATTERN, extra=_CLAIM)]
Texts = tuple[NotBlank, ...]


class AgentChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The coding agent, and how it is started. `"agent": "claude"` is short for `{"command": "claude"}`."""

    command: Annotated[
        str, about("A known agent, a path to one, or a whole command line.", "claude", option="--agent NAME|COMMAND")
    ] = ""
    flags: Annotated[tuple[str, ...], about("More words for the agent, split as a shell would.", ["--model opus"])] = ()
    args: Annotated[
        tuple[str, ...], about("More arguments for the agent, each passed as one word.", option="--agent-arg ARG")
    ] = ()
    model: Annotated[str, about("The model to use; empty: the agent's default.", option="--model TEXT")] = ""
    max_turns: Annotated[
        Positive | None,
        about("The most turns that the agent may take inside one iteration, if its program has such an option."),
    ] = None


class CheckCommand(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A command that verifies the work. A plain text is short for an object with just the `command`."""

    command: Annotated[NotBlank, about("A shell command; exit code 0 passes.", "make test")]
    fail_action: Annotated[
        FailAction, about("Where a failure goes: behind the prompt, in front of it, or in its place.")
    ] = "APPEND"
    hint: Annotated[str, about("Guidance for the agent when this check fails. Never truncated.")] = ""


class ExamCommand(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A check that the agent doesn't see: a program outside the repository. A plain text is short for an object with
    just the `command`."""

    command: Annotated[
        NotBlank, about("A program with its arguments; exit code 0 passes. No shell.", "python ~/exams/parser.py")
    ]
    show: Annotated[
        Literal["result", "output"],
        about("What the agent learns: whether it passes, or its output as well (a slow check that runs last)."),
    ] = "result"
    hint: Annotated[str, about("Guidance for the agent when this exam fails.")] = ""
    timeout: Annotated[Duration | None, about("How long it may take; 0: no limit; null: as long as a check.", "5m")] = (
        None
    )


class Scm(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The git commands that ralph runs after green checks."""

    command: Annotated[NotBlank, about("The source control program.")] = "git"
    tasks: Annotated[Texts, about("Its subcommands, in order.", ["commit", "push"])] = ()
    all: Annotated[bool, about("Also commit changes made before the run.")] = False
    agent: Annotated[str, about("The agent that writes the commit messages; empty: the run's agent.")] = ""


class ReviewPrompt(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One review of a claim, by the run's agent or another one."""

    name: Annotated[NotBlank, about("Its name on the screen.")]
    prompt: Annotated[NotBlank, about("The question for the reviewer; ralph adds goal, checks and diff.")]
    agent: Annotated[str, about("The agent for this review; empty: the agent of all reviews.", "codex")] = ""
    model: Annotated[str, about("The model for this review; empty: the agent's default.")] = ""


class Reviews(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Reviews of each claim whose checks are green: a reviewer approves, or refuses and says what has to change."""

    agent: Annotated[
        str, about("The agent that reviews each claim; empty: the run's agent.", "codex", option="--review-agent NAME")
    ] = ""
    prompts: Annotated[
        tuple[ReviewPrompt, ...], about("What is asked, one review each; left out: one review of the whole change.")
    ] = ()

    @property
    def asked(self) -> tuple[ReviewPrompt, ...]:
        return self.prompts or (ReviewPrompt("change", QUESTION),)


class Protection(Struct, frozen=True, forbid_unknown_fields=True):
    """Files that the agent must not change or delete."""

    globs: Annotated[
        Texts,
        about(
            "Files that the agent must not change; ralph restores them before the checks run.",
            ["tests/**"],
            option="--protect GLOB",
        ),
    ] = ()
    new: Annotated[
        Literal["allow", "refuse"],
        about("New files that match. Even with `allow` none may change how other tests run, such as `conftest.py`."),
    ] = "allow"

    @property
    def rule(self) -> str:
        """The paragraph about protected files in prompts."""
        new = "You may add new files there, but none that change how other tests run, such as conftest.py."
        if self.new == "refuse":
            new = "New files are not allowed there either."
        return f"Protected files, which must stay as they are: {', '.join(self.globs)}. {new}"


class CustomAgent(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Your own agent, for `agent.command`: a program (`argv`), or the built-in agent with a model you choose (the keys
    from `model` on). The entry `builtin` configures the built-in agent itself."""

    argv: Annotated[
        tuple[str, ...], about("Its command, word by word; {prompt} and {prompt_file} stand for the prompt.")
    ] = ()
    prompt: Annotated[Literal["stdin", "argument", "file"], about("How the prompt reaches it.")] = "stdin"
    stream: Annotated[
        str, about("What it prints: text, auto (detect), or the name of a known agent that prints the same.")
    ] = "text"
    resume: Annotated[tuple[str, ...], about("Words that continue a session; {session} stands for its id.")] = ()
    model: Annotated[
        tuple[str, ...] | str,
        Meta(extra={"expects": "PROVIDER:NAME, or a list of words"}),
        about("The built-in agent's model; for a program, the words that choose one: {model} stands for its name."),
    ] = ()
    url: Annotated[str, about("The model's server, if not its provider's.", "http://127.0.0.1:8080/v1")] = ""
    wire: Annotated[
        Literal["", "chat", "responses", "messages", "google"], about("The protocol that the server speaks.")
    ] = ""
    key_env: Annotated[str, about("The environment variable with the server's key.", "WORK_API_KEY")] = ""
    context: Annotated[Positive | None, about("How many tokens the model reads.", 32768)] = None
    max_output: Annotated[Positive | None, about("The most tokens in one reply.")] = None
    tools: Annotated[
        Literal["native", "text"], about("`text`: for models without tool calls, a fenced command in each reply.")
    ] = "native"


class WorkChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How `ralph work` works off a backlog."""

    jobs: Annotated[Positive, about("How many tasks run at once.", 4, option="-j --jobs")] = 2
    returns: Annotated[Positive, about("Park a task that the merge gate has refused N times.")] = 3
    allow_red: Annotated[bool, about("Merge tasks even if a check fails on the target, unless they make it worse.")] = (
        False
    )


class TuneChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The number that `ralph tune` optimises."""

    minimize: Annotated[
        ShellCommand,
        about(
            "The command whose last line is the number to make smaller; `cpu:CMD` or `wall:CMD`: the seconds that CMD "
            "takes.",
            "python bench.py",
        ),
    ] = ""
    maximize: Annotated[ShellCommand, about("The command whose last line is the number to make larger.")] = ""
    metric: Annotated[
        str,
        about("The name of the number, if the command prints `NAME=value` or `NAME: value`.", option="--metric NAME"),
    ] = ""
    min_gain: Annotated[
        float,
        Meta(gt=0, lt=100, extra={"metavar": "PERCENT", "expects": "percent above 0, such as 1"}),
        about("Keep nothing that gains less, in percent, unless the number has no noise."),
    ] = 1.0
    target: Annotated[Number | None, about("End once the number is this good.")] = None

    @property
    def command(self) -> str:
        return self.minimize or self.maximize


class SandboxChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A sandbox for the agent and the checks (Linux, bubblewrap). Relative paths start at the workspace."""

    enabled: Annotated[bool, about("Run the agent and the checks in a sandbox (Linux).", option="--sandbox")] = False
    net: Annotated[
        NotBlank,
        about(
            "The sandbox's network: on (the machine's), off (only the model), or host names separated by commas.",
            "github.com,*.githubusercontent.com,pypi.org,files.pythonhosted.org",
            option="--sandbox-net on|off|HOST,…",
        ),
    ] = "on"
    read: Annotated[Texts, about("Other paths that may be read.", ["~/.m2/settings.xml"])] = ()
    write: Annotated[Texts, about("Other paths that may be written.", ["~/.cache/bazel"])] = ()
    hide: Annotated[Texts, about("Paths to hide, including in the workspace.", [".env"])] = ()
    checks: Annotated[bool, about("Run the checks in the sandbox as well: they execute what the agent wrote.")] = True


class Settings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Every setting of a run."""

    preset: Annotated[
        PresetName,
        about("How to loop: a set of defaults for the other settings."),
    ] = DEFAULT_PRESET
    agent: Annotated[AgentChoice, about("The coding agent; the first one installed if left out.")] = AgentChoice()
    maximum_iterations: Annotated[
        int,
        about(
            "The most iterations of a run (`promise`: continuations; `supervise`: attempts).",
            option="-m --max-iterations --maximum-iterations",
            minimum=0,
        ),
    ] = 10
    until: Annotated[
        tuple[ClaimText, ...],
        about(
            "What counts as the agent's claim to be done; any one suffices. Kinds: word, response, suffix, promise, "
            "tag, file, checks.",
            ["word:STOP", "file:DONE"],
            option="--until KIND:TEXT",
        ),
    ] = ("response:DONE",)
    completion_response: Annotated[
        NotBlank,
        about(
            "For the `guardrails` preset, short for `until` with `response:` in front. `until` in the same file wins; "
            "other presets ignore it."
        ),
    ] = "DONE"
    blocked_response: Annotated[
        str,
        about(
            "How `<response>BLOCKED: why</response>` begins, with which the agent ends a run that it cannot continue; "
            "empty: never."
        ),
    ] = "BLOCKED"
    checks: Annotated[
        tuple[CheckCommand, ...],
        about("Commands that must exit 0 before the work counts as done.", ["make test"], option="--check CMD"),
    ] = ()
    exams: Annotated[
        tuple[ExamCommand, ...],
        about(
            "Checks that the agent doesn't see, run on a copy of the work when it claims to be done.",
            ["python ~/exams/parser.py"],
            option="--exam CMD",
        ),
    ] = ()
    exam_tries: Annotated[Positive, about("End the run as blocked when its exams have refused N claims.")] = 3
    check_timeout: Annotated[Duration | None, about("How long one check may take; 0: no limit.", "5m")] = None
    baseline: Annotated[
        bool | None, about("Run the checks before the first turn; null: only with the `checks` preset.")
    ] = None
    tests: Annotated[
        TestsRule | None,
        about(
            "as-they-were: at a claim after test files were changed, run the checks with the tests as they were as "
            "well, and refuse it if a test that was red at the start still fails. may-change: only report that. null: "
            "as-they-were with the `checks` preset, else off.",
            option="--tests as-they-were|may-change",
        ),
    ] = None
    fail_fast: Annotated[bool, about("Start no further check once one has failed.")] = False
    output_truncate_chars: Annotated[
        Count, about("How many characters of a failed check's output the prompt quotes; 0: all.")
    ] = 5000
    prove: Annotated[
        Literal["off", "report", "ask"],
        about(
            "After a run that is done, undo parts of its change to see which of them no check notices, and report them "
            "(`ralph prove`). ask: give the agent one turn about them."
        ),
    ] = "off"
    tasks: Annotated[FileName, about("Tasks that must all be done: Markdown checkboxes or a prd.json.", "TODO.md")] = ""
    spec: Annotated[FileName, about("A specification file whose text replaces the goal's.", "spec.md")] = ""
    rules: Annotated[
        Texts, about("Your own rules: functions of a package installed next to ralph.", ["my_rules.limits:rambling"])
    ] = ()
    protect: Annotated[
        Protection,
        Meta(extra={"expects": "a list of patterns, or an object"}),
        about("Files that the agent must not change. A list stands for `globs`.", ["tests/**"]),
    ] = Protection()
    min_tool_calls: Annotated[Count, about("How many tool calls a credible claim needs.")] = 0
    on_promise_no_work: Annotated[
        Literal["reject", "warn", "accept"], about("What happens to a claim with fewer tool calls than that.")
    ] = "reject"
    max_cost: Annotated[Dollars | None, about("End the run when it has cost this much.", 5)] = None
    max_tokens: Annotated[Positive | None, about("End the run when it has used this many tokens.")] = None
    max_time: Annotated[
        Time | None, about("End the run after this long (90, 90s, 5m, 1h30m), even during a turn.", "2h")
    ] = None
    turn_timeout: Annotated[Duration | None, about("End a turn that takes longer; 0: no limit.", "30m")] = None
    idle_timeout: Annotated[
        Duration | None,
        about(
            "End a turn that prints nothing for this long while no tool is running; 0: no limit; left out: 30m for "
            "agents that report their tools, no limit for others.",
            "10m",
        ),
    ] = None
    stall: Annotated[
        Count, about("End after N iterations with the same answer and files as the one before; 0: never.")
    ] = 0
    stuck: Annotated[
        Count,
        about(
            "After N iterations without progress hand the work over to the next agent of `then`, or end as stalled; "
            "0: never. Progress is more passing checks, fewer failures, more ticked tasks or new output of a check."
        ),
    ] = 0
    max_failures: Annotated[Count, about("End after N failed turns in a row; 0: never.")] = 3
    every_turn_counts: Annotated[
        bool, about("Count every turn as an iteration, including those that a usage limit or a passing fault ended.")
    ] = False
    wait_signals: Annotated[
        bool, about("Let the agent ask not to be restarted: with exit code 42, or a file WAIT_WITHOUT_RESTART.")
    ] = False
    restart_delay: Annotated[Duration, about("The pause between two turns.", "1s")] = 0.0
    poll_interval: Annotated[
        Time | None, about("How often a waiting run looks for changes; null: only at the end.", "1s")
    ] = None
    wait_timeout: Annotated[
        Duration, about("How long a finished task waits for the child runs of its agent.", "5m")
    ] = 300.0
    session: Annotated[
        Literal["fresh", "continue"], about("Whether each turn starts a fresh session or continues the last one.")
    ] = "fresh"
    worktree: Annotated[bool, about("Work in a linked git worktree, on its own branch.")] = False
    setup: Annotated[ShellCommand, about("A command that prepares each new worktree.", "npm ci")] = ""
    copies: Annotated[
        Literal["auto", "in-place", "plain"],
        about(
            "Where the commands of a copy (worktree, task, `accept`, exam, proof) see it. in-place: at the path of "
            "your tree, with private copies of its dependency folders, so that editable installs lead to the copy "
            "(Linux); plain: at its own path; auto: in place if that can be had."
        ),
    ] = "auto"
    canary: Annotated[
        bool,
        about(
            "Once for each project and check, see whether the checks of a copy notice that all its sources are broken: "
            "else they test your tree. false: for checks that read no source."
        ),
    ] = True
    pr: Annotated[
        Literal["off", "open", "draft", "wait"],
        about(
            "Work in a worktree and open a pull request when done (through `gh`). draft: a draft, also if the run ends "
            "unfinished; wait: done only when the host's checks pass."
        ),
    ] = "off"
    work: Annotated[WorkChoice, about("How `ralph work` works off a backlog.")] = WorkChoice()
    tune: Annotated[TuneChoice, about("The number that `ralph tune` optimises.")] = TuneChoice()
    on_limit: Annotated[
        Literal["wait", "stop", "switch"],
        about("At a usage limit: wait for the reset, stop, or switch to an agent of `then`."),
    ] = "wait"
    then: Annotated[
        Texts,
        about(
            "Who takes over, in order: when the run is stuck, the agent keeps failing, or with `switch` at a limit.",
            ["codex", "claude:opus"],
            option="--then AGENT[:MODEL]",
        ),
    ] = ()
    grace: Annotated[Duration, about("How long the current step may continue after the first Ctrl-C.")] = 30.0
    keep_children: Annotated[bool, about("Don't kill processes that the agent leaves running after a turn.")] = False
    max_log: Annotated[Size, about("The most that is kept of each log, from both ends; 0: everything.")] = 32_000_000
    sandbox: Annotated[SandboxChoice, about("A sandbox for everything that a run starts.")] = SandboxChoice()
    yolo: Annotated[
        bool, about("Let the agent use its tools without asking for approval. The default in a sandbox.")
    ] = False
    claims: Annotated[
        Positive, about("How many turns in a row must claim, the later ones without changing anything.", 3)
    ] = 1
    strict_signal: Annotated[bool, about("A `word` claim counts only on a line by itself.")] = False
    claim_anywhere: Annotated[bool, about("A claim counts wherever the marker is in the answer.")] = False
    ultrawork: Annotated[bool, about("Start every continuation with `ultrawork`.")] = False
    on_question: Annotated[
        Literal["continue", "wait"], about("When the agent asks something: continue, or wait for `ralph tell`.")
    ] = "continue"
    notify: Annotated[
        Texts,
        about(
            "Whom to notify when a run is done, has failed, asks something or waits for a limit: a command, an Apprise "
            "URL, or `desktop`.",
            ["desktop", "notify-team.sh"],
            option="--notify CMD|URL",
        ),
    ] = ()
    scm: Annotated[Scm | None, about("What to do once the checks pass; null: nothing.")] = None
    reviews: Annotated[Reviews | None, about("Reviews of each claim; null: none.")] = None
    agents: Annotated[dict[str, CustomAgent], about("Your own agents, by name.")] = {}
    stream_agent_output: Annotated[bool, about("Show what the agent does while it works.")] = True
    include_iteration_count_in_prompt: Annotated[
        bool, about("Begin each prompt with `Iteration X of Y, Z remaining.`")
    ] = False
    max_output_lines: Annotated[
        Count | None, about("How many lines of a tool's output are shown; null: 3, with `--verbose` 20.", 10)
    ] = None
    max_output_chars: Annotated[
        Count | None, about("How many characters of a tool's output are shown; null: 300, with `--verbose` 2000.", 1000)
    ] = None
    timestamps: Annotated[bool, about("Print the time of day in front of every line.")] = False
    emoji: Annotated[bool, about("Use signs such as ✓ on the screen; false: words such as [OK].")] = True
    color: Annotated[bool, about("Use colour on a terminal.", option="--no-color")] = True

    @property
    def quoted(self) -> int:
        """How many characters of a check's output a prompt quotes: all if the setting is 0, up to ten million."""
        return self.output_truncate_chars or 10_000_000

    @property
    def tests_rule(self) -> TestsRule | None:
        """What changed tests mean for a claim; None if nobody asks."""
        default: TestsRule | None = "as-they-were" if self.traits.compares_tests else None
        return (self.tests or default) if self.checks else None

    @property
    def verifies(self) -> bool:
        """Whether the run has checks, tasks, exams or a number to optimise that show whether the work is done."""
        return bool(self.checks or self.tasks or self.exams or self.traits.measures)

    @property
    def traits(self) -> Preset:
        """What the preset is, beyond the defaults that it sets."""
        return PRESETS[self.preset]
