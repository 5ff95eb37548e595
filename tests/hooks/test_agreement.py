"""Do the quick answer and the whole engine agree? The run that the hook wrote down is read back and judged anew."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.core.model import Snapshot, Stop
from ralph.core.secrets import redact_text
from ralph.hooks import loops, starting, stop, telling
from ralph.loop import judge
from ralph.records.journal import read, recall
from ralph.run.policy import composer, policy
from ralph.settings import load

TEXTS = (
    "I am done",
    "",
    "<promise>DONE</promise>",
    "All good: <promise>DONE</promise>",
    "I will not say <promise>DONE</promise> yet",
    "Output <promise>DONE</promise> only when done.",
    "Could not lint, but all is done: <promise>DONE</promise>",
    "<promise>done</promise>",
)
TURNS = st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(0, 2)), min_size=1, max_size=5)


def said_about(work: int, text: str) -> list[dict]:
    use = {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {}}]}}
    words = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}
    return [*[use] * work, words]


@settings(max_examples=60, deadline=None)
@given(
    turns=TURNS,
    cap=st.integers(0, 3),
    needed=st.integers(0, 2),
    no_work=st.sampled_from(("reject", "warn", "accept")),
    anywhere=st.booleans(),
    ultrawork=st.booleans(),
)
def test_the_quick_answer_is_the_judges(turns, cap, needed, no_work, anywhere, ultrawork):
    said = {
        "maximumIterations": cap,
        "minToolCalls": needed,
        "onPromiseNoWork": no_work,
        "claimAnywhere": anywhere,
        "ultrawork": ultrawork,
    }
    with TemporaryDirectory() as folder:
        root, transcript = Path(folder, "w"), Path(folder, "t.jsonl")
        root.mkdir()
        transcript.touch()
        loop = starting.start(root, "s", "the task", said, transcript=str(transcript), env={})
        plan = policy(chosen := load(root, {**said, "preset": "promise"}, env={}).settings)
        for text, work in turns:
            with transcript.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in said_about(work, text))
            event = {
                "session_id": "s",
                "transcript_path": str(transcript),
                "last_assistant_message": text,
                "cwd": str(root),
            }
            answer = json.loads(stop.stop(json.dumps(event).encode()))
            assert all(entry.event() for entry in read(Path(loop.journal)))
            run = recall(Path(loop.journal)).run
            verdict = judge(run.seeing(Snapshot()), plan.rules)
            assert (answer.get("decision") == "block") != isinstance(verdict, Stop)
            if isinstance(verdict, Stop):
                ended = loops.read_file(str(root), loop.ended_path)
                names = {"done": "PROMISE_ACCEPTED", "exhausted": "MAX_ITERATIONS_REACHED"}
                assert ended.facts["status"] == names[verdict.outcome.value]
                break
            compose = composer(chosen, plan, lambda: "the task", lambda: "")
            assert answer["reason"] == compose(run, verdict.notes)


def test_work_that_the_host_writes_down_late_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transcript = tmp_path / "t.jsonl"
    transcript.write_text(json.dumps({"type": "user", "message": {"content": "do it"}}) + "\n")
    said = {"maximumIterations": 3, "minToolCalls": 1}
    starting.start(tmp_path, "s", "the task", said, transcript=str(transcript), env={})
    last = "It is made.\n<promise>DONE</promise>"
    late = [json.dumps(row) + "\n" for row in said_about(1, last)]

    def write_one(_: float) -> None:
        with transcript.open("a") as file:
            file.write(late.pop(0))

    monkeypatch.setattr("ralph.hooks.transcript.time.sleep", write_one)
    event = {"session_id": "s", "transcript_path": str(transcript), "last_assistant_message": last}
    answer = stop.stop(json.dumps({**event, "cwd": str(tmp_path)}).encode())
    assert "PROMISE_ACCEPTED" in answer
    assert late == []


KEYS = (
    *("sk-ant-" + "a1" * 10, "sk-proj-" + "b2" * 12, "sk_live_" + "c3" * 10, "rk_test_" + "d4" * 10),
    *("ghp_" + "e5" * 12, "gho_" + "e5" * 12, "ghu_" + "e5" * 12, "ghs_" + "e5" * 12, "ghr_" + "e5" * 12),
    *("github_pat_" + "f6" * 12, "glpat-" + "g7" * 12, "xoxb-" + "12" * 8, "npm_" + "h8" * 18, "hf_" + "i9" * 18),
    *("AKIA" + "A1" * 8, "ASIA" + "B2" * 8, "AIza" + "c3" * 18, "eyJ" + "d4" * 8 + "." + "e5" * 8 + ".sig"),
    *("Bearer " + "f6" * 12, "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"),
)


@pytest.mark.parametrize("key", KEYS)
def test_whatever_the_engine_would_strike_out_the_hook_looks_at(key):
    assert redact_text(f"x {key} y") != f"x {key} y", "the sample is no key any more"
    assert telling.may_hold_keys(f"x {key} y")
