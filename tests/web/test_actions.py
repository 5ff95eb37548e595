"""Actions in the web UI do what the commands do; if something has changed in between, they say so and do nothing."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.web.conftest import Serve, Served, eventually
from tests.web.scenes import Scene

from ralph.core import events as e
from ralph.core.proof import Proof, Untested
from ralph.store.register import run_at, runs


@pytest.fixture
def living(scene: Callable[..., Scene]) -> Iterator[Scene]:
    """A run that counts as running because this process lives."""
    import secrets

    made = scene(secrets.token_hex(4))
    made.begin(1)
    yield made
    shutil.rmtree(made.folder.path, ignore_errors=True)


def test_a_note_waits_for_the_next_prompt(served: Served, living: Scene) -> None:
    reply = served.post(f"runs/{living.id}/tell", text="Use Decimal.\r\nRound once.")
    assert (reply.status, reply.text) == (200, f"{living.id[-8:]} gets it with its next prompt\n")
    (note,) = living.mail.read().notes
    assert note.text == "Use Decimal.\nRound once."


def test_without_javascript_a_form_leads_back_to_the_run(served: Served, living: Scene) -> None:
    reply = served.ask("POST", f"runs/{living.id}/tell", text="hello")
    assert (reply.status, reply.headers["location"]) == (303, f"{served.base}runs/{living.id}")


@pytest.mark.parametrize("text", ["", "   ", "\r\n"])
def test_an_empty_note_is_refused(served: Served, living: Scene, text: str) -> None:
    assert served.post(f"runs/{living.id}/tell", text=text).status == 400
    assert not living.mail.read().notes


def test_an_answer_answers_the_question_that_it_names(served: Served, living: Scene) -> None:
    first, second = living.mail.ask("Which of the two?"), living.mail.ask("And which colour?")
    reply = served.post(f"runs/{living.id}/answer", question=second.id, text="blue")
    assert reply.status == 200
    (note,) = living.mail.read().notes
    assert (note.text, note.answers) == ("blue", second)
    assert living.mail.read().questions == (first,)


def test_a_late_answer_does_not_become_a_note(served: Served, living: Scene) -> None:
    question = living.mail.ask("Which of the two?")
    assert served.post(f"runs/{living.id}/answer", question=question.id, text="this").status == 200
    for late in (question.id, "20260101-none", "../../pause"):
        reply = served.post(f"runs/{living.id}/answer", question=late, text="that")
        assert reply.status == 409
        assert "no longer asks that" in reply.text
    assert [note.text for note in living.mail.read().notes] == ["this"]


def test_a_run_can_continue_without_an_answer(served: Served, living: Scene) -> None:
    question = living.mail.ask("Which?")
    living.tell(e.Paused("waiting for an answer", asks=True))
    reply = served.post(f"runs/{living.id}/answer", question=question.id, skip="1")
    assert (reply.status, reply.text) == (200, f"{living.id[-8:]} continues without an answer\n")
    assert not living.mail.read().questions


def test_a_run_is_paused_and_resumed(served: Served, living: Scene) -> None:
    assert served.post(f"runs/{living.id}/resume").status == 409  # it is running
    assert served.post(f"runs/{living.id}/pause").status == 200
    assert living.mail.read().is_paused
    assert served.post(f"runs/{living.id}/resume").text == f"{living.id[-8:]} resumed\n"
    assert not living.mail.read().is_paused


@pytest.mark.parametrize("action", ["tell", "answer", "pause", "resume", "stop", "rewind"])
def test_an_action_on_a_removed_run_is_refused(served: Served, living: Scene, action: str) -> None:
    shutil.rmtree(living.folder.path)
    reply = served.post(f"runs/{living.id}/{action}", text="x", to="1")
    assert reply.status == 409
    assert "no longer on record" in reply.text
    assert served.get(f"runs/{living.id}").status == 404


@pytest.mark.parametrize("action", ["tell", "pause", "stop", "resume"])
def test_an_action_on_a_run_that_is_done_is_refused(served: Served, scene: Callable[..., Scene], action: str) -> None:
    done = scene(f"d0{action}")
    done.iterate(1, True, True, True)
    done.finish()
    reply = served.post(f"runs/{done.id}/{action}", text="x")
    assert reply.status == 409
    assert "done" in reply.text
    shown = served.ask("POST", f"runs/{done.id}/{action}", text="x")
    assert shown.status == 409
    assert "Not done" in shown.text


def test_the_page_of_a_run_shows_untested_changes(served: Served, scene: Callable[..., Scene]) -> None:
    ended = scene("pr0f")
    ended.iterate(1, True, True, True)
    untested = (Untested("src/shop/cart.py:7 in total", "return 0 <b>"),)
    ended.tell(e.ProofFinished(1, Proof(verdict="untested", untested=untested, tried=2, check_runs=4, seconds=8.0)))
    ended.finish()
    page = served.get(f"runs/{ended.id}").text
    assert "Untested: src/shop/cart.py:7 in total (every check passes without it); 1 of 2 parts, 4 check runs" in page
    assert "return 0 &lt;b&gt;" in page


def test_an_unknown_action_is_not_found(served: Served, living: Scene) -> None:
    for path in (f"runs/{living.id}/delete", f"runs/{living.id}", "pause", "runs", "start", ""):
        assert served.post(path, text="x").status == 404


def test_each_action_is_logged_without_its_text(serve: Serve, living: Scene) -> None:
    served = serve()
    served.post(f"runs/{living.id}/tell", text="a secret between us")
    served.post(f"runs/{living.id}/answer", question="x", text="another one")
    served.process.terminate()
    _, log = served.process.communicate()
    assert f"start 127.0.0.1 tell {living.id}: " in log
    assert f"start 127.0.0.1 answer {living.id}: refused: " in log
    assert "start 127.0.0.1 enter" in log
    assert "secret" not in log
    assert "another one" not in log


@pytest.fixture
def project(home: dict[str, str], tmp_path: Path) -> Path:
    """A repository, and an agent on PATH with the name of a known one."""
    agent = Path(home["HOME"]) / "bin" / "amp"
    agent.write_text(
        "#!/bin/sh\ncat > /dev/null\ndate +%N >> work.txt\n"
        """echo '{"type":"result","subtype":"success","is_error":false,"result":"<response>DONE</response>"}'\n"""
    )
    agent.chmod(0o755)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README").write_text("hello\n")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder, env=home, check=True)
    return folder


def ended(home: dict[str, str], run_id: str) -> bool:
    return any(run.id == run_id and run.facts.outcome for run in runs(home))


@pytest.mark.parametrize("now", [False, True])
def test_stop_ends_a_run_with_all_its_processes(serve: Serve, home: dict[str, str], tmp_path: Path, now: bool) -> None:
    """After this turn: the turn finishes, and no other starts. Now: the agent is killed."""
    agent = tmp_path / "agent"
    agent.write_text(
        "#!/bin/sh\necho $$ > pid; echo x >> turns; until [ -e enough ]; do sleep 0.05; done; echo over > over\n"
    )
    agent.chmod(0o755)
    words = [sys.executable, "-m", "ralph", "run", "-p", "Go on and on", "-m", "9", "--agent", str(agent), "--quiet"]
    process = subprocess.Popen(words, cwd=tmp_path, env=home, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        served = serve()
        run = next(one for one in runs(home) if one.facts.workspace == str(tmp_path))
        answer = served.post(f"runs/{run.id}/stop", **({"now": "1"} if now else {}))
        assert (answer.status, "stops now" in answer.text) == (200, now)
        if not now:
            (tmp_path / "enough").touch()
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "turns").read_text() == "x\n"
    assert (tmp_path / "over").exists() != now
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    assert "interrupted" in served.get(f"runs/{run.id}").text
    assert served.post(f"runs/{run.id}/stop").status == 409


def test_an_ended_run_is_resumed_with_a_higher_limit(serve: Serve, home: dict[str, str], project: Path) -> None:
    words = ["run", "-p", "go", "--check", "false", "-m", "1", "--agent", "amp", "--until", "checks", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    assert run.state == "exhausted"
    served = serve()
    assert "10 more iterations" in served.get(f"runs/{run.id}").text
    refused = served.post(f"runs/{run.id}/resume")
    assert (refused.status, "has used all its iterations" in refused.text) == (409, True)
    assert served.post(f"runs/{run.id}/resume", more="2").status == 200
    eventually(lambda: (now := run_at(run.place)) is not None and now.facts.finished == 3)
    eventually(lambda: ended(home, run.id))
    served.process.terminate()


BAD_LIMITS = {
    ("more", "0"): "--max-iterations 0 is too small",
    ("more", "1 --yolo"): "--max-iterations: expected a whole number",
    ("more", "--yolo"): "--max-iterations: expected a whole number",
    ("max_cost", "free"): "--max-cost: expected dollars",
    ("max_cost", "nan"): "maxCost: expected a number above 0",
    ("max_time", "soon"): "maxTime: expected a duration",
}


def test_a_run_is_not_resumed_with_invalid_limits(serve: Serve, home: dict[str, str], project: Path) -> None:
    words = ["run", "-p", "go", "--check", "false", "-m", "1", "--agent", "amp", "--until", "checks", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()
    for (name, value), why in BAD_LIMITS.items():
        reply = served.post(f"runs/{run.id}/resume", **{name: value})
        assert (reply.status, why in reply.text) == (409, True), reply.text
    served.process.terminate()


@pytest.mark.parametrize("note", ["- please use tabs", "--help", "please use tabs"])
def test_a_parked_task_is_retried_with_any_note(serve: Serve, home: dict[str, str], project: Path, note: str) -> None:
    (project / "tasks.md").write_text("- [ ] T1 Make it work\n")
    words = ["work", "tasks.md", "-m", "1", "--check", "false", "--agent", "amp", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [run for run in runs(home) if run.facts.workspace == str(project) and not run.is_part]
    served = serve()
    reply = served.post(f"runs/{run.id}/retry", task="T1", text=note)
    assert (reply.status, "T1 is retried" in reply.text) == (200, True), reply.text
    journal = Path(run.place, "journal.ndjson")
    eventually(lambda: json.dumps(note) in journal.read_text())
    eventually(lambda: ended(home, run.id))
    served.process.terminate()


def test_a_resumed_run_continues_without_the_web_ui(serve: Serve, home: dict[str, str], project: Path) -> None:
    words = ["run", "-p", "go", "--check", "sleep 1; false", "-m", "1", "--agent", "amp", "--until", "checks"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()
    assert served.post(f"runs/{run.id}/resume", more="2").status == 200
    served.process.kill()
    served.process.wait()
    eventually(lambda: (now := run_at(run.place)) is not None and now.facts.finished == 3)
    eventually(lambda: ended(home, run.id))


def test_a_browser_that_may_steer_cannot_resume_a_run_with_all_rights(
    serve: Serve, home: dict[str, str], project: Path
) -> None:
    words = ["run", "-p", "go", "--check", "false", "-m", "1", "--agent", "amp", "--until", "checks", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()
    served.cookie = served.enter_as("steer")
    assert served.post(f"runs/{run.id}/allow").status == 403
    assert served.post(f"runs/{run.id}/resume", more="1", yolo="1", sandbox="1").status == 200
    eventually(lambda: (now := run_at(run.place)) is not None and now.facts.finished == 2 and now.facts.outcome)
    settings = json.loads(Path(run.place, "run.json").read_bytes())["settings"]
    assert not settings.get("yolo")
    assert not settings.get("sandbox", {}).get("enabled")
    served.process.terminate()


@pytest.mark.parametrize("action", ["accept", "discard"])
def test_the_branch_of_a_run_is_accepted_or_discarded(
    serve: Serve, home: dict[str, str], project: Path, action: str
) -> None:
    words = ["run", "go", "--check", "test -e work.txt", "--worktree", "--agent", "amp", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()
    assert f'action="{served.base}runs/{run.id}/{action}"' in served.get(f"runs/{run.id}").text
    assert served.post(f"runs/{run.id}/{action}").status == 200

    def branches() -> str:
        words = ["git", "branch", "--list", "ralph/*"]
        return subprocess.run(words, cwd=project, env=home, capture_output=True, text=True, check=True).stdout

    eventually(lambda: not branches())
    assert (project / "work.txt").exists() == (action == "accept")
    assert served.post(f"runs/{run.id}/{action}").status == 409, "there is nothing left to do"


def test_runs_that_need_you_are_dismissed_one_by_one_or_all_at_once(
    serve: Serve, home: dict[str, str], project: Path
) -> None:
    for goal in ("one", "two"):
        words = ["run", goal, "--check", "false", "-m", "1", "--agent", "amp", "--quiet"]
        subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    first, second = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()

    def is_open(run_id: str) -> bool:
        return f'action="{served.base}runs/{run_id}/dismiss"' in served.get("").text

    assert (is_open(first.id), is_open(second.id)) == (True, True)
    assert served.post(f"runs/{first.id}/dismiss").status == 200
    assert (is_open(first.id), is_open(second.id)) == (False, True)
    assert served.post("dismissall").status == 200
    assert (is_open(first.id), is_open(second.id)) == (False, False)


def test_rewind_restores_the_files(serve: Serve, home: dict[str, str], project: Path) -> None:
    words = ["run", "-p", "go", "--check", "false", "-m", "3", "--agent", "amp", "--until", "checks", "--quiet"]
    subprocess.run([sys.executable, "-m", "ralph", *words], cwd=project, env=home, capture_output=True, check=False)
    (run,) = [one for one in runs(home) if one.facts.workspace == str(project)]
    served = serve()
    assert len((project / "work.txt").read_text().split()) == 3
    reply = served.post(f"runs/{run.id}/rewind", to="1")
    assert (reply.status, "1 file restored" in reply.text) == (200, True), reply.text
    assert len((project / "work.txt").read_text().split()) == 1
    for wrong in ("", "x", "-1", "99999999"):
        assert served.post(f"runs/{run.id}/rewind", to=wrong).status == 400
    assert served.post(f"runs/{run.id}/rewind", to="77").status == 409
    diff = served.get(f"runs/{run.id}/diff/2").text
    assert "work.txt" in diff
    assert "+1" in diff
    assert served.get(f"runs/{run.id}/iterations/2").status == 200
    assert "go" in served.get(f"runs/{run.id}/iterations/2/prompt").text
    assert "response" in served.get(f"runs/{run.id}/iterations/2/log").text
    assert served.get(f"runs/{run.id}/iterations/4").status == 404
    page = served.get(f"runs/{run.id}/report").text
    written = (Path(run.place) / "report.html").read_text()
    assert "What needs you" in page
    article = re.compile(r"<article .*?</article>", re.DOTALL)
    assert article.findall(page) == article.findall(written), "the page shows what `ralph report` writes"
    assert "work.txt" in page.partition("Each iteration")[2]
    served.process.terminate()
