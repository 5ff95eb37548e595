"""`ralph clean`: what is left of runs that are over, and who takes it away?"""

from ralph.cli.table import CliCommand, Values, no_words
from ralph.core.text import clean as cleaned


def clean(values: Values, words: list[str]) -> int:
    from ralph.records.leftovers import end_left_behind, remark

    no_words(words, "`ralph clean` looks after all runs of this user")
    ended = end_left_behind()
    for left in ended:
        print(cleaned(remark(left, "was ended")))
    if not ended:
        print("no dead run has left a process")
    return 0


COMMAND = CliCommand(
    "clean",
    "End the processes of runs that were killed together with their keeper. Every start of a run does so, too.",
    clean,
    examples=("ralph clean",),
)
