"""`ralph completion`: what does a shell offer when Tab is pressed behind `ralph`?"""

from typing import TYPE_CHECKING

from ralph.cli.table import CliCommand, Values
from ralph.errors import UserError

if TYPE_CHECKING:
    from click import Context, Parameter

COMPLETING = "_RALPH_COMPLETE"  # set by the shell that asks
BREAKS = ("=", ":")  # where bash, and bash alone, takes a word apart


def agents(ctx: "Context", param: "Parameter", begun: str) -> list[str]:
    from ralph.agents import known

    return [name for name in known() if name.startswith(begun)]


def claims(ctx: "Context", param: "Parameter", begun: str) -> list[str]:
    kinds = ("checks", "word:STOP", "response:DONE", "suffix:DONE", "promise:DONE", "tag:COMPLETE", "file:DONE")
    return [kind for kind in kinds if kind.startswith(begun)]


def runs(ctx: "Context", param: "Parameter", begun: str) -> list[str]:
    """Newest first, by the short name and by the whole."""
    from ralph.records.register import runs as recorded

    names = [name for run in reversed(recorded()) for name in (run.id.rpartition("-")[2], run.id)]
    return [name for name in names if name.startswith(begun)]


OF_OPTIONS = {"agent": agents, "fallback_agent": agents, "until": claims}


def understand_attached_values() -> None:
    """click offers the value alone for `--until=pr`, and a shell puts it where its word was: zsh and fish would lose
    the option, and bash, whose word is what follows the last break, what stands before that."""
    from click.shell_completion import (
        BashComplete,
        CompletionItem,
        FishComplete,
        ShellComplete,
        ZshComplete,
        add_completion_class,
    )

    class WholeWords(ShellComplete):
        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            option, attached, _ = incomplete.partition("=")
            found = super().get_completions(args, incomplete)
            for item in found if attached and option.startswith("--") else ():
                item.value = f"{option}={item.value}"
            return found

    class OfZsh(WholeWords, ZshComplete):
        pass

    class OfFish(WholeWords, FishComplete):
        pass

    class OfBash(BashComplete):
        def get_completion_args(self) -> tuple[list[str], str]:
            args, incomplete = super().get_completion_args()
            *whole, self.word = _mended([*args, incomplete])
            self.part = "" if incomplete in BREAKS else incomplete
            return whole, self.word

        def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
            value = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
            found = super().get_completions(args, incomplete)
            for item in found if self.word != self.part else ():
                item.value = item.value[len(value) - len(self.part) :]
            return found

    for kind in (OfBash, OfZsh, OfFish):
        add_completion_class(kind)


def _mended(words: list[str]) -> list[str]:
    """The words as they were before bash took them apart."""
    whole: list[str] = []
    is_open = False
    for word in words:
        if whole and (is_open or word in BREAKS):
            whole[-1] += word
        else:
            whole.append(word)
        is_open = word in BREAKS
    return whole


WHERE = {
    "bash": 'eval "$(ralph completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(ralph completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "ralph completion fish > ~/.config/fish/completions/ralph.fish",
}


def completion(values: Values, words: list[str]) -> int:
    if len(words) != 1 or words[0] not in WHERE:
        raise UserError("the completion script for which shell?", f"say {', '.join(WHERE)}")
    from click import Command
    from click.shell_completion import get_completion_class

    kind = get_completion_class(words[0])
    assert kind is not None
    print(kind(Command("ralph"), {}, "ralph", COMPLETING).source())
    return 0


COMPLETION = CliCommand(
    "completion",
    "Print the completion script for your shell.\n\n" + "\n\n".join(WHERE.values()),
    completion,
    words="bash|zsh|fish",
)
