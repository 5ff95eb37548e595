"""`ralph prove`: show which parts of a change no check notices."""

import os
import sys
from pathlib import Path

from msgspec.structs import replace

from ralph.cli.request import one_run
from ralph.cli.results import changed_range
from ralph.cli.table import DIRECTORY, Values, command
from ralph.core import events
from ralph.core.proof import Proof
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.history.evidence import evidence_of
from ralph.history.feed import history_of, home_repository
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.show.outlet import choose
from ralph.show.report import REPORT_FILE, html
from ralph.show.screen import make_screen
from ralph.show.summary import proof_lines
from ralph.store.journal import Journal, load_run
from ralph.store.register import Listed, run_at
from ralph.store.writer import Writer
from ralph.verdict.context import Context
from ralph.verdict.undo import is_read, prove_change

COULD_NOT_TRY = ("red", "no time", "nothing to try")


@command(DIRECTORY, words="[RUN]", examples=("ralph prove", "ralph prove k3fa"))
def prove(values: Values, words: list[str]) -> int:
    """Find the parts of a run's change that no check notices.

    ralph undoes one part at a time in a throwaway copy of the run's last state and runs its checks there: a part
    without which every check still passes is untested. The first two of at most 10 runs of the checks are controls:
    with the whole change they must pass, without any of it one should fail. What it finds is added to the run's record,
    for `ralph show` and `ralph report`.

    The exit code is 0 if every part that was tried is tested, 1 if not, and 2 if nothing could be tried: the change has
    no code, or no check reads it. RUN is the last run here unless given."""
    run = one_run(values, words, why_not_prove)
    request = requests.read(run.id)
    if not request.settings.checks:
        raise UserError(f"run {run.id} doesn't have a check that could notice anything", 'start one with --check "CMD"')
    _, before, after = changed_range(run)
    with Keeper.start() as keeper, Interrupt() as interrupt:
        deadline = Deadline(interrupt, grace=0.0)
        home = replace(home_repository(run), deadline=deadline)
        context = Context(
            root=Path(request.workspace),
            workspace=request.workspace,
            settings=replace(request.settings, grace=0.0),  # a proof that is interrupted is worth nothing
            folder=run.folder,
            keeper=keeper,
            tell=make_screen(sys.stderr, live=False),
            deadline=deadline,
        )
        try:
            proof = prove_change(home, before, after, context)
            has_reader = proof.verdict != "nothing tested" or is_read(home, before, after, context)
        except UserError:
            if interrupt.level:
                raise KeyboardInterrupt from None
            raise
    for line in proof_lines(proof, choose(sys.stdout)):
        print(line)
    _record(run, proof)
    if proof.verdict == "red":
        print("hint: --setup CMD or .worktreeinclude prepares a copy: ralph loop -h", file=sys.stderr)
    if not has_reader:
        print("hint: no check reads the changed code: name one that does with --check", file=sys.stderr)
    return 2 if proof.verdict in COULD_NOT_TRY or not has_reader else 1 if proof.untested else 0


def why_not_prove(run: Listed) -> str:
    if run.is_alive:
        return "is running"
    return run.by_kind("", "is a backlog: name a task of it")


def _record(run: Listed, proof: Proof) -> None:
    """Add the proof to the journal of a run that has not continued since, and write its report again."""
    now = run_at(run.place)
    if now is None or now.is_alive:
        print("ralph: not recorded, because the run continues", file=sys.stderr)
        return
    story = load_run(run.folder.journal)
    journal = Journal(run.folder.journal).open()
    try:
        redact = Redactor(secret_values(os.environ))
        Writer(run.id, [journal], seq=story.seq, redact=redact)(events.ProofFinished(len(story.run.iterations), proof))
    finally:
        journal.close()
    history = history_of(run.folder)
    run.folder.write(REPORT_FILE, html(history, evidence_of(run.folder, history, os.environ)).encode())
