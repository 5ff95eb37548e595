"""Between a kill and a resume somebody edits what ralph wrote about the run: resume says so instead of going on."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]


@pytest.fixture
def killed(agent: Agent, live: Any, workspace: Path, nap: str, ralph: Ralph) -> Path:
    """The folder of a run that was killed in its second turn."""
    (workspace / "test.sh").write_text("grep -q good work\n")
    (workspace / "TASKS.md").write_text("- [ ] work\n")
    work = f'[ "$RALPH_ITERATION" = 1 ] && echo more || sleep {nap}'
    options = ("--check", "sh test.sh", "--protect", "test.sh", "--tasks", "TASKS.md")
    run = live("run", "g", "-m", "5", *options, "--agent", agent(work))
    run.until("iteration_finished")
    run.until("agent_started")
    run.end(signal.SIGKILL)
    agent("echo good > work; echo '- [x] work' > TASKS.md; echo '<response>DONE</response>'")
    (folder,) = workspace.glob(".ralph/runs/*")
    return folder


def test_a_run_that_nobody_has_touched_goes_on(killed: Path, ralph: Ralph) -> None:
    assert ralph("resume").code == 0


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def cut(journal: Path, more: int) -> None:
    """The journal up to the iteration that was recorded last, as if a kill had torn its line."""
    data = journal.read_bytes()
    journal.write_bytes(data[: data.rindex(b'{"type":"iteration_finished"') + more])


def forged_iteration(folder: Path) -> None:
    """One more iteration, green and with a claim, as the journal would hold it."""
    journal = folder / "journal.ndjson"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    one = next(line for line in lines if line["type"] == "iteration_finished")
    one["seq"] = lines[-1]["seq"] + 1
    one["data"]["iteration"] = one["data"]["record"]["number"] = 2
    one["data"]["record"]["turn"]["text"] = "<response>DONE</response>"
    with journal.open("a") as file:
        file.write(json.dumps(one, separators=(",", ":")) + "\n")


def forged_end(folder: Path) -> None:
    """The journal, and what `ralph ps` reads, tell that all was done and verified."""
    lines = [json.loads(line) for line in (folder / "journal.ndjson").read_text().splitlines()]
    end = {"outcome": "done", "reason": "the agent said so", "iterations": 1, "exit_code": 0, "duration_s": 1.0}
    forged = {**lines[-1], "type": "run_finished", "seq": lines[-1]["seq"] + 1, "data": end}
    with (folder / "journal.ndjson").open("a") as file:
        file.write(json.dumps(forged, separators=(",", ":")) + "\n")
    facts = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**facts, "outcome": "done"}))


def moved_behind_a_link(folder: Path) -> None:
    """Elsewhere it would be the copy of a run, of which nothing is known."""
    replaced(folder / "run.json", "sh test.sh", "true")
    workspace = folder.parents[2]
    workspace.rename(workspace.with_name("elsewhere"))
    workspace.symlink_to("elsewhere")


FORGERIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "the checks": (lambda folder: replaced(folder / "run.json", "sh test.sh", "true"), "run.json changed"),
    "the protected set": (
        lambda folder: (folder / "protected" / "protected.json").write_text("[]"),
        "protected/protected.json changed",
    ),
    "the tasks": (lambda folder: (folder / "tasks.json").write_text("[]"), "tasks.json changed"),
    "a line of the journal": (
        lambda folder: replaced(folder / "journal.ndjson", '"passed":false', '"passed":true'),
        "its journal changed",
    ),
    "the end of the journal": (
        lambda folder: (folder / "journal.ndjson").write_text(
            "".join((folder / "journal.ndjson").read_text().splitlines(keepends=True)[:3])
        ),
        "its journal changed",
    ),
    "the last iteration": (lambda folder: cut(folder / "journal.ndjson", 0), "its journal changed"),
    "a half of the last iteration": (lambda folder: cut(folder / "journal.ndjson", 300), "its journal changed"),
    "one more iteration": (forged_iteration, "an iteration was added"),
    "an end": (forged_end, "an end was added"),
    "the workspace": (moved_behind_a_link, "run.json changed"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_what_was_changed_between_kill_and_resume_is_said(killed: Path, ralph: Ralph, what: str) -> None:
    forge, said = FORGERIES[what]
    forge(killed)
    before = (killed / "journal.ndjson").read_bytes()
    refused = ralph("resume")
    assert refused.code == 2
    assert f"run {killed.name} is not as ralph left it" in refused.err
    assert said in refused.err
    assert (killed / "journal.ndjson").read_bytes() == before


@pytest.mark.parametrize("words", [(), ("-m", "3")])
def test_the_journal_of_a_run_that_is_done_does_not_make_this_one_done(
    killed: Path, ralph: Ralph, agent: Agent, workspace: Path, words: tuple[str, ...]
) -> None:
    """What ralph noted elsewhere decides whether a run is done, and it is looked at before anything else."""
    assert ralph("run", "another", "--agent", agent("echo '<response>DONE</response>'")).code == 0
    (other,) = {*workspace.glob(".ralph/runs/*")} - {killed}
    for name in ("journal.ndjson", "state.json"):
        (killed / name).write_text((other / name).read_text().replace(other.name, killed.name))
    for named in ((), (killed.name,)):
        refused = ralph("resume", *named, *words)
        assert refused.code == 2
        assert f"run {killed.name} is not as ralph left it: its journal changed" in refused.err


def test_a_run_goes_on_of_which_only_the_list_of_runs_is_told_that_it_is_done(killed: Path, ralph: Ralph) -> None:
    facts = json.loads((killed / "state.json").read_text())
    (killed / "state.json").write_text(json.dumps({**facts, "outcome": "done"}))
    assert ralph("resume").code == 0


def test_a_note_that_cannot_be_read_is_said(killed: Path, ralph: Ralph, environment: dict[str, str]) -> None:
    note = Path(environment["HOME"], ".local/state/ralph/seals", killed.name)
    note.write_bytes(note.read_bytes()[:100])
    refused = ralph("resume")
    assert refused.code == 2
    assert "cannot be read" in refused.err
    assert ralph("trust", killed.name).code == 0
    assert ralph("resume").code == 0


def test_a_person_can_accept_a_run_as_it_is(killed: Path, ralph: Ralph) -> None:
    replaced(killed / "run.json", "sh test.sh", "sh ./test.sh")
    assert ralph("resume").code == 2
    assert ralph("trust", killed.name).out == f"run {killed.name} is accepted as it is\n"
    assert ralph("resume").code == 0


def test_a_bit_flipped_journal_is_said_in_one_line(killed: Path, ralph: Ralph) -> None:
    journal = killed / "journal.ndjson"
    data = bytearray(journal.read_bytes())
    for at in range(0, len(data), 97):
        data[at] ^= 0x80
    journal.write_bytes(data)
    refused = ralph("resume")
    assert refused.code == 2
    assert "internal error" not in refused.err
    for words in (("show",), ("logs",), ("ps", "-a"), ("report",)):
        assert "internal error" not in ralph(*words).err


def test_a_run_that_an_agent_has_made_up_does_not_go_on(agent: Agent, ralph: Ralph, workspace: Path) -> None:
    """What it is told to do stands in files that anybody can write who works here."""
    forge = (
        "cd .ralph/runs; cp -r * 20991231-235959-zzzz; cd 20991231-235959-zzzz; "
        """sed -i 's/"true"/"touch obeyed"/' run.json; sed -i 's/"pid":[0-9]*/"pid":0/' state.json"""
    )
    assert ralph("run", "g", "-m", "1", "--check", "true", "--agent", agent(forge)).code == 1
    refused = ralph("resume")
    assert refused.code == 2
    assert "run 20991231-235959-zzzz was not begun by you on this machine" in refused.err
    assert not (workspace / "obeyed").exists()
    assert ralph("trust", "zzzz").out == "run 20991231-235959-zzzz is accepted as it is\n"
    assert ralph("resume", "-m", "1").code == 1
    assert (workspace / "obeyed").exists()


def test_an_agent_does_not_get_another_run_trusted(killed: Path, ralph: Ralph, agent: Agent, workspace: Path) -> None:
    forge = f"sed -i 's/sh test.sh/touch obeyed/' {killed}/run.json"
    trust = f"{sys.executable} -m ralph trust {killed.name} > trusted 2>&1"
    assert ralph("run", "another", "-m", "1", "--agent", agent(f"{forge}; {trust}")).code == 1
    assert "a run is at work here, and may have written this run" in (workspace / "trusted").read_text()
    refused = ralph("resume", killed.name)
    assert (refused.code, "run.json changed" in refused.err) == (2, True), refused.err
