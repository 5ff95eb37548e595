"""How does the shell complete ralph's words? Prints the script that bash, zsh or fish load."""

from ralph.cli.table import CliCommand, Values
from ralph.errors import UserError

WHERE = {
    "bash": 'eval "$(ralph completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(ralph completion zsh)"    # in ~/.zshrc',
    "fish": "ralph completion fish > ~/.config/fish/completions/ralph.fish",
}


def completion(values: Values, words: list[str]) -> int:
    from click.shell_completion import get_completion_class

    from ralph.cli.help import COMPLETING, cli

    if len(words) != 1 or words[0] not in WHERE:
        raise UserError("the completion script for which shell?", f"say {', '.join(WHERE)}")
    kind = get_completion_class(words[0])
    assert kind is not None
    print(kind(cli, {}, "ralph", COMPLETING).source())
    return 0


COMMAND = CliCommand(
    "completion",
    "Print the completion script for your shell.\n\n" + "\n\n".join(WHERE.values()),
    completion,
    words="bash|zsh|fish",
)
