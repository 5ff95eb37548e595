"""What does a host show when it is asked for its slash commands, and what does the agent read when one is typed?

The files hold words only: nothing in them is run, and nothing that a person types is put into a shell. The loop itself
is started and cancelled by the hook that hears every prompt before the agent does.
"""

from ralph.hosts.registry import Host

OPTIONS = (
    "[--max-iterations N] [--completion-promise TEXT] [--min-tool-calls N] [--on-promise-no-work reject|warn|accept]"
)

# name: (what it does, what may follow it, what the agent reads)
LOOP = (
    "This is a loop of `ralph hook`. The task is the quoted text after the command below; "
    "the options after it are meant for the loop, not for you.\n"
    "Only when the task is fully done, output exactly <promise>TEXT</promise> on a line of its own, where TEXT is the "
    "completion promise: the value of --completion-promise, or DONE if there is none. If it is not fully done, do not."
)
TEXTS: dict[str, tuple[str, str, str]] = {
    "ralph-loop": ("Work on a task until its promise is kept", f'"TASK" {OPTIONS}', LOOP),
    "ulw-loop": ("The same in ultrawork mode", f'"TASK" {OPTIONS}', LOOP),
    "cancel-ralph": ("End the loop of this session", "", "The loop of this session was cancelled by `ralph hook`."),
}


def command_file(name: str, host: Host) -> str:
    """The file that makes `/name` known to a host."""
    summary, hint, text = TEXTS[name]
    if host.commands == "toml":
        return f'description = "{summary}"\nprompt = """\n{text}\n"""\n'
    argument = f"argument-hint: '{hint}'\n" if hint else ""
    return f"---\ndescription: {summary}\n{argument}---\n{text}\n"
