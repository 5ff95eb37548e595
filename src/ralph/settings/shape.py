"""What can be set? One frozen struct; its fields are the names in settings.json, the schema and the reference."""

from re import fullmatch
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ralph.core.model import FailAction
from ralph.errors import UserError

NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
DURATION = "".join(f"(?:{NUMBER}{unit})?" for unit in DURATION_UNITS)
SIZE_UNITS = {"": 1, "b": 1}
SIZE_UNITS |= {prefix + b: 1000**power for power, prefix in enumerate("kmgt", 1) for b in ("", "b")}
SIZE_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

LONGEST = 36500 * 86400.0  # a hundred years; much more overflows the system's timers
LARGEST = 1 << 60
LONGEST_QUOTE = 10_000_000  # characters


def parse_duration(text: str) -> float:
    """The seconds in `90`, `90s`, `5m`, `1h30m` or `2d`."""
    plain = text.strip().lower()
    if fullmatch(NUMBER, plain):
        seconds = float(plain)
    elif plain and (match := fullmatch(DURATION, plain)):
        parts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number)
    else:
        raise UserError(f'"{text}" is not a duration', "write 90, 90s, 5m, 1h30m or 2d")
    if seconds > LONGEST:
        raise UserError(f'"{text}" is too long a time')
    return seconds


def parse_size(text: str) -> int:
    """The bytes in `500000`, `512kB`, `32MB` or `1GiB`: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024."""
    match = fullmatch(NUMBER + r"\s?([a-z]*)", text.strip().lower())
    if match is None or match[2] not in SIZE_UNITS:
        raise UserError(f'"{text}" is not a size', "write 500000, 512kB, 32MB or 1GiB")
    scale = SIZE_UNITS[match[2]]
    size = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    if size > LARGEST:
        raise UserError(f'"{text}" is too large a size')
    return size


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back, to the millisecond."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in DURATION_UNITS.items():
        count, left = divmod(left, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def says(description: str, *examples: Any, **schema: Any) -> Meta:
    """What the schema and the reference say about a field."""
    return Meta(description=description, examples=list(examples) or None, extra_json_schema=schema or None)


# A file may write a duration or a size as text, which the schema must know; `described` is for messages.
_AS_TEXT = {"pattern": r"^\s*[0-9]"}
_DURATION = {"described": 'a duration such as 90, "90s", "5m" or "1h30m"'}
_TIME = {"described": 'a duration above 0 such as 90, "90s", "5m" or "1h30m"'}
_SIZE = {"described": 'a size such as 500000, "512kB", "32MB" or "1GiB"'}
_CLAIM = {"described": '"KIND:TEXT" with KIND one of word, response, suffix, promise, tag, file, or "checks" alone'}
_CLAIM_PATTERN = r"^(?:(?:word|response|suffix|promise|tag|file):\s*\S[\s\S]*|checks)$"

NotBlank = Annotated[str, Meta(pattern=r"\S", extra={"described": "text that is not blank"})]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(gt=0, le=1e9)]
Duration = Annotated[float, Meta(ge=0, le=LONGEST, extra=_DURATION, extra_json_schema=_AS_TEXT)]
Time = Annotated[float, Meta(gt=0, le=LONGEST, extra=_TIME, extra_json_schema=_AS_TEXT)]
Size = Annotated[int, Meta(ge=0, le=LARGEST, extra=_SIZE, extra_json_schema=_AS_TEXT)]
ClaimText = Annotated[str, Meta(pattern=_CLAIM_PATTERN, extra=_CLAIM)]
Texts = tuple[NotBlank, ...]


class AgentChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which coding agent works, and how it is started."""

    command: Annotated[str, says("A known agent, a path to one, or a whole command line.", "claude")] = ""
    flags: Annotated[tuple[str, ...], says("More words for the agent, split as a shell would.", ["--model opus"])] = ()
    model: Annotated[str, says("The model that the agent shall use; its own default when empty.")] = ""
    max_turns: Annotated[Positive | None, says("The most turns of its own inside one iteration, if it can tell.")] = (
        None
    )


class Guardrail(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A command that verifies the work."""

    command: Annotated[NotBlank, says("A shell command; exit code 0 passes.", "make test")]
    fail_action: Annotated[FailAction, says("Whether its failure goes behind, before or instead of the prompt.")] = (
        "APPEND"
    )
    hint: Annotated[str, says("Guidance for the agent when this guardrail fails. Never cut.")] = ""


class Scm(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is done with the work once the guardrails pass."""

    command: Annotated[NotBlank, says("The source control program.")] = "git"
    tasks: Annotated[Texts, says("Its subcommands, in order.", ["commit", "push"])] = ()
    all: Annotated[bool, says("Commit what was changed before the run, too.")] = False
    agent: Annotated[str, says("The agent that writes the commit messages; the one that works when empty.")] = ""


class ReviewPrompt(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One look that the agent, or another one, takes at the work."""

    name: Annotated[NotBlank, says("What the review is called on the screen.")]
    prompt: Annotated[NotBlank, says("What the agent is asked.")]
    agent: Annotated[str, says("The agent that takes this look; the one of all reviews when empty.", "codex")] = ""
    model: Annotated[str, says("The model that it uses; its own default when empty.")] = ""


REVIEWS = (
    ReviewPrompt(
        "detailed",
        "Read every change made so far, line by line. Look for mistakes, unhandled errors, edge cases and missing "
        "tests. Fix what you find.",
    ),
    ReviewPrompt(
        "architecture",
        "Look at the changes as a whole. Is each part in the right place, with one clear purpose and no needless "
        "coupling? Improve the structure where it falls short.",
    ),
    ReviewPrompt(
        "security",
        "Look at the changes as an attacker would: untrusted input, injection, secrets, permissions, unsafe defaults. "
        "Close every hole that you find.",
    ),
    ReviewPrompt(
        "codeHealth",
        "Look at the changes as the next maintainer would: names, duplication, dead code, comments, documentation. "
        "Leave the code simpler than it is now.",
    ),
)


class Reviews(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Cycles in which the work is reviewed. They do not count as iterations."""

    review_after: Annotated[Count, says("Review after every so many iterations; 0: never.")] = 5
    guardrail_retry_limit: Annotated[Count, says("How often a review is repeated while guardrails fail.")] = 3
    prompts: Annotated[tuple[ReviewPrompt, ...], says("The reviews of a cycle: four if left out, none if [].")] = (
        REVIEWS
    )
    agent: Annotated[str, says("The agent that reviews; the one that works when empty.", "codex")] = ""


_MODEL = {"described": "PROVIDER:NAME, or a list of words"}


class CustomAgent(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An agent of your own, to be named in `agent.command`: a program (`argv`), or the built-in agent with a model of
    your choice (all from `model` on). What is said here of `builtin` holds for the built-in agent itself."""

    argv: Annotated[
        tuple[str, ...], says("Its command, word by word; {prompt} and {prompt_file} stand for the prompt.")
    ] = ()
    prompt: Annotated[Literal["stdin", "argument", "file"], says("How the prompt reaches it.")] = "stdin"
    stream: Annotated[
        str, says("What it prints: text, auto (find out), or the name of a known agent that prints the same.")
    ] = "text"
    resume: Annotated[tuple[str, ...], says("Words that continue a session; {session} stands for its id.")] = ()
    model: Annotated[
        tuple[str, ...] | str,
        Meta(extra=_MODEL),
        says("The model of the built-in agent; of a program the words that choose one, {model} standing for its name."),
    ] = ()
    url: Annotated[str, says("The model's server, where it is not its provider's own.", "http://127.0.0.1:8080/v1")] = (
        ""
    )
    wire: Annotated[
        Literal["", "chat", "responses", "messages", "google"], says("The protocol that the server speaks.")
    ] = ""
    key_env: Annotated[str, says("The variable that holds the server's key.", "WORK_API_KEY")] = ""
    context: Annotated[Positive | None, says("How many tokens the model reads.", 32768)] = None
    max_output: Annotated[Positive | None, says("How many tokens one of its replies may have.")] = None
    tools: Annotated[
        Literal["native", "text"], says("`text`: for models without tool calling, a fenced command in each reply.")
    ] = "native"


class Side(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Who does the small work beside the agent: commit messages and reviews."""

    model: Annotated[
        str,
        says(
            "A cheap model for it, as PROVIDER:NAME, or one of `agents`; the agent itself when empty.",
            "openai:gpt-5-mini",
        ),
    ] = ""


class SandboxChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """A box around the agent and the checks (Linux, bubblewrap). Relative paths are in the workspace."""

    enabled: Annotated[bool, says("Run agent and checks in a box, or do not run at all.")] = False
    net: Annotated[
        NotBlank,
        says(
            'The network inside: "on" (this machine\'s), "off" (nobody but the model), or hosts, with commas between.',
            "github.com,*.githubusercontent.com,pypi.org,files.pythonhosted.org",
        ),
    ] = "on"
    read: Annotated[Texts, says("What else may be read, of your home for example.", ["~/.m2/settings.xml"])] = ()
    write: Annotated[Texts, says("What else may be written.", ["~/.cache/bazel"])] = ()
    hide: Annotated[Texts, says("What is not to be seen, in the workspace too.", [".env"])] = ()
    checks: Annotated[bool, says("Whether the checks are run in it: they execute what the agent wrote.")] = True


class Settings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set, as the run will use it."""

    preset: Annotated[
        Literal["guardrails", "goal", "checks", "promise", "supervise"],
        says("The way to loop: a set of defaults for all that follows."),
    ] = "guardrails"
    agent: Annotated[AgentChoice, says("Which agent works; the first one installed if left out.")] = AgentChoice()
    maximum_iterations: Annotated[
        int, says("The most iterations of a run (`promise`: continuations; `supervise`: attempts).", minimum=0)
    ] = 10
    until: Annotated[
        tuple[ClaimText, ...],
        says("What the agent says or does to claim that it is done; any one suffices.", ["word:STOP", "file:DONE"]),
    ] = ("response:DONE",)
    completion_response: Annotated[
        NotBlank,
        says(
            "For the `guardrails` preset, short for `until` with `response:` in front. `until` in the same file wins; "
            "the other presets do not look at it."
        ),
    ] = "DONE"
    blocked_response: Annotated[
        str,
        says(
            "What `<response>BLOCKED: why</response>` begins with, by which the agent ends a run that it cannot go on "
            "with; empty: by nothing."
        ),
    ] = "BLOCKED"
    guardrails: Annotated[
        tuple[Guardrail, ...], says("Commands that must all pass before the work counts as done.")
    ] = ()
    check_timeout: Annotated[Duration | None, says("The longest that one guardrail may take; 0: no limit.", "5m")] = (
        None
    )
    parallel_checks: Annotated[
        Positive,
        says("How many guardrails run at once; results keep their order. Only for those that share nothing.", 4),
    ] = 1
    fail_fast: Annotated[bool, says("Begin no further guardrail once one has failed.")] = False
    output_truncate_chars: Annotated[
        Count, says("How many characters of a failed guardrail's output the prompt quotes; 0: all of them.")
    ] = 5000
    tasks: Annotated[
        str, says("A file of tasks that must all be done: Markdown checkboxes or a prd.json.", "TODO.md")
    ] = ""
    spec: Annotated[str, says("A file whose text takes the place of the goal.", "spec.md")] = ""
    rules: Annotated[
        Texts,
        says(
            "Rules of your own, asked beside ralph's: functions of a package that is installed beside ralph.",
            ["my_rules.limits:rambling"],
        ),
    ] = ()
    protect: Annotated[Texts, says("Files that the agent must not change; they are put back.", ["tests/**"])] = ()
    min_tool_calls: Annotated[Count, says("The fewest tool calls that make a claim credible.")] = 0
    on_promise_no_work: Annotated[
        Literal["reject", "warn", "accept"], says("What becomes of a claim with fewer tool calls than that.")
    ] = "reject"
    max_cost: Annotated[Dollars | None, says("The most that a run may cost, in US dollars; null: no limit.", 5)] = None
    max_tokens: Annotated[Positive | None, says("The most tokens that a run may use; null: no limit.")] = None
    max_time: Annotated[Time | None, says("The longest that a run may take; null: no limit.", "2h")] = None
    turn_timeout: Annotated[Duration | None, says("The longest that one turn may take; 0: no limit.", "30m")] = None
    idle_timeout: Annotated[
        Duration | None,
        says(
            "How long a turn may go without output while no tool of the agent is at work; 0: no limit; left out: 30m "
            "for agents whose stream tells of their tools, no limit for others.",
            "10m",
        ),
    ] = None
    stall: Annotated[Count, says("A run is stalled after so many iterations that repeat the one before; 0: never.")] = 0
    max_failures: Annotated[Count, says("A run has failed after so many failed turns in a row; 0: never.")] = 3
    every_turn_counts: Annotated[
        bool, says("Count every turn as an iteration, also one that a usage limit or a passing fault ended.")
    ] = False
    wait_signals: Annotated[
        bool, says("Let the agent ask for no restart: by exit code 42, or a file WAIT_WITHOUT_RESTART.")
    ] = False
    restart_delay: Annotated[Duration, says("The pause between two turns.", "1s")] = 0.0
    poll_interval: Annotated[
        Time | None, says("How often a waiting run looks around; null: only when the wait is over.", "1s")
    ] = None
    wait_timeout: Annotated[
        Duration, says("How long a task that is done waits for the child runs that its agent started.", "5m")
    ] = 300.0
    session: Annotated[
        Literal["fresh", "continue"], says("Whether a turn begins with a clean context or goes on in the session.")
    ] = "fresh"
    worktree: Annotated[bool, says("Work in a linked git worktree, on a branch of its own.")] = False
    on_limit: Annotated[
        Literal["wait", "stop", "switch"],
        says("At a usage limit: wait for the reset, end the run, or go on with the next fallback agent."),
    ] = "wait"
    fallback_agents: Annotated[Texts, says("The agents to switch to, in order.", ["codex", "amp"])] = ()
    grace: Annotated[Duration, says("How long the current step may go on after the first Ctrl-C.")] = 30.0
    keep_children: Annotated[bool, says("Spare the processes that the agent leaves behind after a turn.")] = False
    max_log: Annotated[Size, says("The most that is kept of one log, from both its ends; 0: all of it.")] = 32_000_000
    sandbox: Annotated[SandboxChoice, says("A box around everything that a run starts.")] = SandboxChoice()
    yolo: Annotated[
        bool, says("Let the agent use its tools without asking for approval. In a box this is the default.")
    ] = False
    claims: Annotated[
        Positive, says("How many turns in a row have to claim, the later ones having found nothing to change.", 3)
    ] = 1
    strict_signal: Annotated[bool, says("A `word` claim counts only on a line by itself.")] = False
    claim_anywhere: Annotated[bool, says("A claim counts even where its sentence denies or conditions it.")] = False
    ultrawork: Annotated[bool, says("Put `ultrawork` in front of every continuation.")] = False
    on_question: Annotated[
        Literal["continue", "wait"], says("When the agent asks something: go on, or wait for `ralph tell`.")
    ] = "continue"
    notify: Annotated[
        Texts,
        says(
            "Who is told when a run is done, has failed, asks or waits for a limit: a command, an Apprise URL, "
            "or `desktop`.",
            ["desktop", "notify-team.sh"],
        ),
    ] = ()
    learn: Annotated[
        str, says("A file of notes that runs leave when they are done, and later prompts carry.", ".ralph/learned.md")
    ] = ""
    scm: Annotated[Scm | None, says("What is done once the guardrails pass; null: nothing.")] = None
    reviews: Annotated[Reviews | None, says("Review cycles; null: none.")] = None
    agents: Annotated[dict[str, CustomAgent], says("Agents of your own, by name.")] = {}
    side: Annotated[Side, says("Who writes commit messages and reviews; the agent itself if left out.")] = Side()
    stream_agent_output: Annotated[bool, says("Show what the agent does while it works.")] = True
    include_iteration_count_in_prompt: Annotated[
        bool, says("Begin each prompt with `Iteration X of Y, Z remaining.`")
    ] = False
    max_output_lines: Annotated[
        Count | None, says("How many lines of a tool's output are shown; null: 3, with `--verbose` 20.", 10)
    ] = None
    max_output_chars: Annotated[
        Count | None, says("How many characters of a tool's output are shown; null: 300, with `--verbose` 2000.", 1000)
    ] = None
    timestamps: Annotated[bool, says("Put the time of day in front of every line.")] = False
    emoji: Annotated[bool, says("Use signs such as ✓ on the screen; false: words such as [OK].")] = True
    color: Annotated[bool, says("Use colour on a terminal.")] = True

    @property
    def quoted(self) -> int:
        """How much of a check's output is quoted. What knows no bound still has to fit into memory."""
        return self.output_truncate_chars or LONGEST_QUOTE

    @property
    def verifies(self) -> bool:
        """Whether something tells by itself that the work is done: evidence of work and untouched files do not."""
        return bool(self.guardrails or self.tasks)


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    for definition in definitions.values():
        optional = set(definition["properties"]) - set(definition["required"])
        definition["properties"] |= {name: _or_null(definition["properties"][name]) for name in optional}
    top = definitions.pop("Settings")
    top["properties"] = {"$schema": {"type": "string", "description": "Where this schema is."}, **top["properties"]}
    return {"$schema": DIALECT, **top, "title": "Settings of ralph", "$defs": definitions}


def events_schema() -> dict[str, Any]:
    """The JSON Schema of one line of `--json` and of the journal."""
    from ralph.core import events, work_events

    names = {**events.NAMES, **work_events.NAMES}
    references, definitions = msgspec.json.schema_components(tuple(names))
    envelope = {
        "timestamp": {"type": "string", "format": "date-time"},
        "run": {"type": "string", "description": "The id of the run."},
        "seq": {"type": "integer", "minimum": 0, "description": "The number of the event in its run."},
    }
    return {
        "$schema": DIALECT,
        "title": "An event of ralph",
        "type": "object",
        "properties": {"type": {"enum": list(names.values())}, **envelope, "data": {"type": "object"}},
        "required": ["type", *envelope, "data"],
        "oneOf": [
            {"properties": {"type": {"const": name}, "data": reference}}
            for name, reference in zip(names.values(), references, strict=True)
        ],
        "$defs": definitions,
    }


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The same field, or null to take back what a lower layer says."""
    about: dict[str, Any] = {key: field.pop(key) for key in ("description", "examples", "default") if key in field}
    if about.get("default", 0) in (None, "", (), [], {}):
        del about["default"]
    options = [*map(_or_text, field.pop("anyOf", None) or [field])]
    if {"type": "null"} not in options:
        options.append({"type": "null"})
    return {**about, "anyOf": options}


def _or_text(option: dict[str, Any]) -> dict[str, Any]:
    """A number that has a pattern may be written as text."""
    is_number = "pattern" in option and option["type"] != "string"
    return {**option, "type": [option["type"], "string"]} if is_number else option
