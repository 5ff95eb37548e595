"""What can be set? One frozen struct; its fields are the names in settings.json, the schema and the reference."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ralph.core.model import FailAction
from ralph.settings.units import Bytes, ClaimText, Seconds, SomeSeconds

Preset = Literal["guardrails", "goal", "checks", "promise", "supervise"]

NotBlank = Annotated[str, Meta(pattern=r"\S")]
Count = Annotated[int, Meta(ge=0)]


class AgentChoice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which coding agent works, and how it is started."""

    command: Annotated[
        str, Meta(description="A known agent, a path to one, or a whole command line.", examples=["claude"])
    ] = ""
    flags: Annotated[
        tuple[str, ...],
        Meta(description="Extra words for the agent, split as a shell would.", examples=[["--model opus"]]),
    ] = ()
    model: Annotated[str, Meta(description="The model that the agent shall use; its own default when empty.")] = ""
    max_turns: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="The most turns of its own that the agent may take inside one iteration, where it can tell."),
    ] = None


class Guardrail(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A command that verifies the work."""

    command: Annotated[NotBlank, Meta(description="A shell command; exit code 0 passes.", examples=["make test"])]
    fail_action: Annotated[
        FailAction, Meta(description="Where the failure goes in the next prompt: behind it, in front, or instead of it.")
    ] = "APPEND"
    hint: Annotated[str, Meta(description="Guidance for the agent when this guardrail fails. Never cut.")] = ""


class Scm(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is done with the work once the guardrails pass."""

    command: Annotated[NotBlank, Meta(description="The source control program.")] = "git"
    tasks: Annotated[
        tuple[NotBlank, ...], Meta(description="Its subcommands, in order.", examples=[["commit", "push"]])
    ] = ()


class ReviewPrompt(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One look that the agent takes at its own work."""

    name: Annotated[NotBlank, Meta(description="What the review is called on the screen.")]
    prompt: Annotated[NotBlank, Meta(description="What the agent is asked.")]


REVIEWS = (
    ReviewPrompt(
        "detailed",
        "Read every change made so far, line by line. Look for mistakes, unhandled errors, edge cases and missing tests. "
        "Fix what you find.",
    ),
    ReviewPrompt(
        "architecture",
        "Look at the changes as a whole. Is each part in the right place, with one clear purpose and no needless coupling? "
        "Improve the structure where it falls short.",
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
    """Cycles in which the agent reviews its own work. They do not count as iterations."""

    review_after: Annotated[
        Count, Meta(description="Review after every so many iterations whose guardrails pass; 0: never.")
    ] = 5
    guardrail_retry_limit: Annotated[
        Count, Meta(description="How often a review may be repeated while guardrails fail.")
    ] = 3
    prompts: Annotated[
        tuple[ReviewPrompt, ...], Meta(description="The reviews of a cycle; four when left out, none when [].")
    ] = REVIEWS


class CustomAgent(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An agent of your own, to be named in `agent.command`."""

    argv: Annotated[
        tuple[str, ...],
        Meta(description="The command, word by word. {prompt} and {prompt_file} stand for the prompt."),
    ] = ()
    prompt: Annotated[
        Literal["stdin", "argument", "file"], Meta(description="How the prompt reaches the agent.")
    ] = "stdin"
    stream: Annotated[
        str, Meta(description="What it prints: text, or the name of a known agent whose stream it speaks.")
    ] = "text"
    resume: Annotated[
        tuple[str, ...], Meta(description="Words that continue a session; {session} stands for its id.")
    ] = ()
    model: Annotated[tuple[str, ...], Meta(description="Words that choose a model; {model} stands for its name.")] = ()


class Settings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Everything that can be set, as the run will use it."""

    preset: Annotated[Preset, Meta(description="The way to loop: a set of defaults for all that follows.")] = "guardrails"
    agent: Annotated[AgentChoice, Meta(description="Which agent works; the first one installed when left out.")] = (
        AgentChoice()
    )
    maximum_iterations: Annotated[
        Annotated[int, Meta(ge=-1)],
        Meta(
            description="The most iterations of a run (`promise`: continuations; `supervise`: attempts). "
            "`goal` alone takes 0, one turn without a loop, and -1, no cap but the safety ceiling of 200."
        ),
    ] = 10
    until: Annotated[
        tuple[ClaimText, ...],
        Meta(
            description="What the agent says or does to claim that it is done; any one suffices.",
            examples=[["response:DONE"], ["file:DONE", "word:STOP"]],
        ),
    ] = (ClaimText("response:DONE"),)
    completion_response: Annotated[
        NotBlank,
        Meta(
            description="With the `guardrails` preset the same as `until` with `response:` in front; "
            "`until` in the same file wins. The other presets do not look at it."
        ),
    ] = "DONE"
    guardrails: Annotated[
        tuple[Guardrail, ...], Meta(description="Commands that must all pass before the work counts as done.")
    ] = ()
    check_timeout: Annotated[
        Seconds | None, Meta(description="The longest that one guardrail may take; 0 or null: as long as it likes.")
    ] = None
    output_truncate_chars: Annotated[
        Count, Meta(description="How many characters of a failed guardrail's output go into the prompt.")
    ] = 5000
    tasks: Annotated[
        str, Meta(description="A file of tasks, Markdown checkboxes or prd.json, that must all be done.", examples=["TODO.md"])
    ] = ""
    spec: Annotated[str, Meta(description="A file whose text takes the place of the goal.", examples=["spec.md"])] = ""
    protect: Annotated[
        tuple[NotBlank, ...],
        Meta(description="Files that the agent must not change; they are put back.", examples=[["tests/**"]]),
    ] = ()
    min_tool_calls: Annotated[Count, Meta(description="The fewest tool calls that make a claim credible.")] = 0
    on_promise_no_work: Annotated[
        Literal["reject", "warn", "accept"], Meta(description="What happens to a claim without that many tool calls.")
    ] = "reject"
    max_cost: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="The most that a run may cost, in US dollars; null: no limit.")
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The most tokens that a run may use; null: no limit.")
    ] = None
    max_time: Annotated[
        SomeSeconds | None, Meta(description="The longest that a run may take; null: no limit.", examples=["2h"])
    ] = None
    turn_timeout: Annotated[
        Seconds | None, Meta(description="The longest that one turn of the agent may take; 0 or null: no limit.")
    ] = None
    idle_timeout: Annotated[
        Seconds | None, Meta(description="How long the agent may print nothing during a turn; 0 or null: no limit.")
    ] = None
    stall: Annotated[
        Count, Meta(description="How many times in a row an iteration may repeat the one before until the run is stalled; 0: off.")
    ] = 0
    max_failures: Annotated[
        Count, Meta(description="How many turns in a row may fail until the run has failed; 0: any number.")
    ] = 3
    restart_delay: Annotated[Seconds, Meta(description="The pause between two turns.")] = Seconds(0)
    session: Annotated[
        Literal["fresh", "continue"], Meta(description="Whether each turn begins with a clean context or goes on in the same session.")
    ] = "fresh"
    worktree: Annotated[bool, Meta(description="Work in a linked git worktree on a branch of its own.")] = False
    on_limit: Annotated[
        Literal["wait", "stop", "switch"],
        Meta(description="At a usage limit: wait for the reset, end the run, or go on with the next fallback agent."),
    ] = "wait"
    fallback_agents: Annotated[
        tuple[NotBlank, ...], Meta(description="The agents to switch to, in order.", examples=[["codex", "amp"]])
    ] = ()
    grace: Annotated[Seconds, Meta(description="How long the current step may go on after the first Ctrl-C.")] = Seconds(30)
    keep_children: Annotated[
        bool, Meta(description="Leave processes alone that the agent started and left behind after a turn.")
    ] = False
    max_log: Annotated[
        Bytes, Meta(description="The most that is kept of one log, its beginning and its end; 0: all of it.", examples=["32MB"])
    ] = Bytes(32_000_000)
    yolo: Annotated[bool, Meta(description="Let the agent use its tools without asking for approval.")] = False
    strict_signal: Annotated[bool, Meta(description="A `word` claim counts only on a line by itself.")] = False
    claim_anywhere: Annotated[
        bool, Meta(description="Count a claim even in a sentence that denies, promises or conditions it.")
    ] = False
    ultrawork: Annotated[bool, Meta(description="Put `ultrawork` in front of every continuation.")] = False
    on_question: Annotated[
        Literal["continue", "wait"], Meta(description="When the agent asks something: go on, or wait for `ralph tell`.")
    ] = "continue"
    notify: Annotated[
        tuple[NotBlank, ...], Meta(description="Where to tell how a run ended: addresses that apprise knows.")
    ] = ()
    scm: Annotated[Scm | None, Meta(description="What is done once the guardrails pass; null: nothing.")] = None
    reviews: Annotated[Reviews | None, Meta(description="Review cycles; null: none.")] = None
    agents: Annotated[dict[str, CustomAgent], Meta(description="Agents of your own, by name.")] = {}
    stream_agent_output: Annotated[bool, Meta(description="Show what the agent does while it works.")] = True
    include_iteration_count_in_prompt: Annotated[
        bool, Meta(description="Begin each prompt with `Iteration X of Y, Z remaining.`")
    ] = False
    emoji: Annotated[bool, Meta(description="Use emoji on the screen.")] = True
    color: Annotated[bool, Meta(description="Use colour on a terminal.")] = True
