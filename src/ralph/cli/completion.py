"""How does the shell complete ralph's words? Prints the script that bash, zsh or fish load."""

import click

from ralph.cli.commands import COMPLETING, cli, simple

WHERE = {
    "bash": 'eval "$(ralph completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(ralph completion zsh)"    # in ~/.zshrc',
    "fish": "ralph completion fish > ~/.config/fish/completions/ralph.fish",
}


def command() -> click.Command:
    shells = click.Argument(["shell"], type=click.Choice(tuple(WHERE)))
    examples = "\n\n".join(WHERE.values())
    return simple("completion", script, shells, help=f"Print the completion script for your shell.\n\n{examples}")


def script(shell: str) -> int:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "ralph", COMPLETING).source())
    return 0
