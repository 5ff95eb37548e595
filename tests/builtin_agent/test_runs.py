"""What users can rely on when ralph runs its built-in agent: the real command, a real child, a scripted model."""

import json
import re
import sys
from pathlib import Path

import pytest
from script import Call, Fail, Forever, Hang, Say, Tokens, Torn, shell, write

pytestmark = pytest.mark.slow

DONE = "It is made.\n<response>DONE</response>"
CHECK = "grep -q fixed made.txt"
KEY = "sk-made-up-for-the-tests"


@pytest.fixture
def settings(workspace):
    """Writes the project's settings."""

    def write(**said):
        (workspace / ".ralph").mkdir(exist_ok=True)
        (workspace / ".ralph/settings.json").write_text(json.dumps(said))

    return write


@pytest.fixture
def on(settings, address, wire):
    """Settings with which the built-in agent uses a scripted model."""

    def put(stage, model="lab", **more):
        own = {"model": model, "url": address(stage), "wire": wire, "key_env": "LAB_KEY"}
        settings(agents={"builtin": own}, **more)

    return put


@pytest.fixture
def go(ralph):
    """A run with the built-in agent."""

    def run(*words, **env):
        return ralph("run", "--json", "--agent", "builtin", *words, "Make it.", timeout=60, **{"LAB_KEY": KEY, **env})

    return run


def outcome(result):
    return result.code, result.one("run_finished")["outcome"]


@pytest.mark.parametrize("wire", ["responses", "messages", "google"])
def test_a_run_ends_as_done_with_every_protocol(server, on, go, wire):
    with server.stage(write("made.txt", "fixed\n"), Say(DONE)) as stage:
        on(stage)
        result = go("--check", CHECK)
        assert outcome(result) == (0, "done"), result.err
        assert (stage.steps, stage.surplus) == ([], 0)
        assert {asked.model for asked in stage.asked} == {"lab"}


@pytest.mark.parametrize("wire", ["chat"])
class TestOnOneWire:
    """These tests don't depend on the protocol."""

    def test_a_failing_check_sends_the_agent_back_and_the_second_iteration_is_done(self, server, on, go):
        with server.stage(Say(DONE), Torn(DONE, 300), write("made.txt", "fixed\n"), Say(DONE)) as stage:
            on(stage)
            result = go("--check", CHECK)
            assert outcome(result) == (0, "done"), result.err
            assert [check["passed"] for check in result.all("check_finished")] == [False, True]
            assert f'Guardrail "{CHECK}" failed' in stage.asked[1].prompt
            assert (stage.steps, stage.surplus) == ([], 0)
            assert {asked.model for asked in stage.asked} == {"lab"}

    def test_a_session_is_continued(self, server, on, go):
        with server.stage(Say("I have begun."), write("made.txt", "fixed\n"), Say(DONE)) as stage:
            on(stage)
            assert outcome(go("--session", "continue", "--check", CHECK)) == (0, "done")
            assert ("assistant", "I have begun.") in stage.asked[1].messages

    @pytest.mark.parametrize(("status", "why"), [(401, "Incorrect API key provided"), (404, "No such model")])
    def test_a_refused_key_or_model_ends_the_run_at_once(self, server, on, go, status, why):
        with server.stage(Forever(Fail(status, why))) as stage:
            on(stage)
            result = go()
            assert outcome(result) == (2, "fatal")
            assert f"{status} {why}" in result.last_line
            assert len(stage.asked) == 1

    def test_the_cost_is_known_during_a_turn_and_can_end_it(self, server, on, go):
        again = Call("shell", "echo again", tokens=Tokens(100_000, 100))
        with server.stage(*[again] * 5, Hang()) as stage:  # the fifth request is over the limit, so it gets no reply
            on(stage, model="gpt-4o")
            result = go("--max-cost", "1")
            assert outcome(result) == (1, "budget")
            assert result.one("agent_finished")["ended_by"] == "max-cost"
            costs = [told["cost_usd"] for told in result.all("agent_result")]
            assert costs == sorted(costs)
            assert 1 <= costs[-1] < 1.6
            assert len(stage.asked) < 9

    def test_used_up_tokens_end_a_turn(self, server, on, go):
        with server.stage(Forever(Call("shell", "echo again", tokens=Tokens(100_000, 100)))) as stage:
            on(stage)
            result = go("--max-tokens", "250000")
            assert outcome(result) == (1, "budget")
            assert result.one("agent_finished")["ended_by"] == "max-tokens"

    def test_an_answer_on_the_last_dollar_counts(self, server, on, go):
        with server.stage(Say(DONE, Tokens(1_000_000, 100))) as stage:
            on(stage, model="gpt-4o")
            assert outcome(go("--max-cost", "1", "--check", "true")) == (0, "done")

    def test_a_budget_is_refused_for_a_model_without_a_price(self, server, on, go):
        with server.stage() as stage:
            on(stage, model="nobody-knows-this-one")
            result = go("--max-cost", "1")
            assert (result.code, stage.asked) == (2, [])
            assert "the price of nobody-knows-this-one is unknown" in result.err

    def test_commands_see_no_key_and_modules_in_the_workspace_are_not_imported(self, server, on, ralph, workspace):
        for name in ("json", "asyncio", "ralph", "httpx2"):
            (workspace / f"{name}.py").write_text("raise SystemExit('imported from the workspace')")
        with server.stage(shell("env"), Say(DONE)) as stage:
            on(stage)
            words = ("run", "--json", "--agent", "builtin", "-C", str(workspace), "--check", "true", "Make it.")
            keys = {"LAB_KEY": KEY, "OPENAI_API_KEY": "sk-of-another", "CODEX_API_KEY": "sk-of-codex", "TZ": "UTC"}
            assert outcome(ralph(*words, cwd=workspace.parent, MINE="mine", **keys)) == (0, "done")
            seen = stage.asked[1].results[0]
            assert "MINE=mine" in seen
            assert not re.search("LAB_KEY|sk-", seen)

    def test_another_model_writes_the_commit_message(self, server, address, settings, ralph, agent, repository, git):
        with server.stage(Say("Add the file")) as stage:
            settings(
                agents={"cheap": {"model": "lab", "url": address(stage)}}, scm={"tasks": ["commit"], "agent": "cheap"}
            )
            works = agent("echo x > new; echo '<response>DONE</response>'")
            result = ralph("run", "-p", "x", "--check", "true", "--agent", works, "--json")
            assert outcome(result) == (0, "done")
            assert git("log", "-1", "--format=%s").strip() == "Add the file"
            assert [told["agent"] for told in result.all("agent_started")][1:] == ["cheap"]

    def test_another_model_reviews(self, server, address, settings, ralph, agent):
        with server.stage(Say("Good.\n\nAPPROVE")) as stage:
            reviews = {"agent": "cheap", "prompts": [{"name": "short", "prompt": "Look at it."}]}
            cheap = {"model": "lab", "url": address(stage), "wire": "chat"}
            settings(agents={"cheap": cheap}, reviews=reviews)
            works = agent("echo x > new; echo '<response>DONE</response>'")
            result = ralph("run", "-p", "x", "--check", "true", "--agent", works, "--json")
            assert outcome(result) == (0, "done")
            assert "Look at it." in stage.asked[0].prompt
            assert result.one("review_finished")["passed"] is True

    def test_the_agent_works_and_resumes_in_a_sandbox_that_reaches_only_its_model(
        self, server, on, go, repository, bubblewrap
    ):
        reach = f"{sys.executable} -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'"
        begins = (shell(f"{reach}; touch ~/x /etc/x"), Say("I have begun."))
        with server.stage(*begins, write("made.txt", "fixed\n"), Say(DONE)) as stage:
            on(stage)
            result = go("--sandbox", "--sandbox-net", "off", "--session", "continue", "--check", CHECK)
            assert outcome(result) == (0, "done"), result.err
            assert "Read-only file system" in stage.asked[1].results[0]
            assert not Path("/etc/x").exists()
            assert ("assistant", "I have begun.") in stage.asked[2].messages


def test_a_model_that_cannot_be_used_ends_the_run_at_once(ralph):
    words = ("run", "--agent", "builtin", "--model", "openrouter:gpt-5", "Make it.")
    result = ralph(*words, OPENROUTER_API_KEY=KEY)
    assert result.code == 2
    assert "cannot use openrouter:gpt-5" in result.last_line


# The agent is refused before anything is spent.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "openai:gpt-5"), "OPENAI_API_KEY is not set"),
        (("--model", "anthropic:claude-haiku-4-5"), "ANTHROPIC_API_KEY is not set"),
        (("--model", "google:gemini-2.5-pro"), "GEMINI_API_KEY is not set"),
        (("--model", "groq:llama-3"), "GROQ_API_KEY is not set"),
        (("--model", "ollama:qwen3", "--agent-arg=--key-env=MY_KEY"), "MY_KEY is not set"),
        (("--model", "opnai:gpt-5"), "unknown provider in --model 'opnai:gpt-5'"),
        (("--model", "gpt-5"), "unknown provider in --model 'gpt-5'"),
        (("--model", "openai:"), "the built-in agent needs a model"),
        ((), "the built-in agent needs a model"),
        (("--model", "x", "--agent-arg=--url=example.org"), "not the address of a server"),
        (("--model", "x", "--agent-arg=--url=http://a", "--agent-arg=--wire=soap"), "unknown wire 'soap'"),
    ],
)
def test_an_impossible_configuration_is_reported_in_one_line(go, workspace, words, said):
    result = go(*words)
    assert result.code == 2
    assert said in result.err
    assert "Traceback" not in result.err
    assert not list(workspace.glob(".ralph/runs/*/iterations"))


def test_the_second_variable_of_a_provider_may_contain_the_key(go):
    result = go(
        "--model", "google:gemini", "--agent-arg=--url=http://127.0.0.1:9", "--max-time", "1s", GOOGLE_API_KEY=KEY
    )
    assert "is not set" not in result.err


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"argv": ["x"]}, "is ralph's own agent"),
        ({"model": ["--model", "{model}"]}, "should be a text: PROVIDER:NAME"),
        ({"wire": "soap"}, 'expected one of "", "chat"'),
        ({"context": 0}, "expected a whole number, 1 or more"),
        ({"keyEnv": "X"}, 'did you mean "key_env"?'),
    ],
)
def test_impossible_settings_of_the_agent_are_refused(settings, go, own, said):
    settings(agents={"builtin": own})
    result = go()
    assert result.code == 2
    assert "settings.json:1" in result.err
    assert said in result.err


def test_settings_for_a_model_of_another_provider_are_ignored(server, settings, go):
    settings(agents={"builtin": {"model": "ollama:qwen3", "url": "http://127.0.0.1:9/v1", "context": 4096}})
    assert "OPENAI_API_KEY is not set" in go("--model", "openai:gpt-5").err


def test_the_error_without_any_agent_names_the_built_in_one_which_is_never_chosen_by_itself(ralph, environment):
    program = Path(environment["HOME"]) / "bin/builtin"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    result = ralph("run", "Make it.", OPENAI_API_KEY=KEY)
    assert result.code == 2
    assert "--agent builtin --model PROVIDER:NAME" in result.err


def test_a_program_named_builtin_is_an_ordinary_program(ralph, workspace):
    program = workspace / "builtin"
    program.write_text("#!/bin/sh\ncat > /dev/null; echo '<response>DONE</response>'\n")
    program.chmod(0o755)
    assert ralph("run", "Make it.", "--agent", "./builtin", "--check", "true").code == 0


def test_the_error_without_the_extra_says_how_to_install_it(go, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pydantic_ai'] = None")
    result = go("--model", "ollama:x", PYTHONPATH=str(tmp_path))
    assert result.code == 2
    assert "pip install 'pydantic-ai-slim[" in result.err


def test_the_address_of_a_provider_can_be_set_in_the_environment(server, go):
    """Every other program that uses Anthropic's API does this as well, for example for a proxy."""
    with server.stage(Say(DONE)) as stage:
        env = {"ANTHROPIC_BASE_URL": stage.url, "ANTHROPIC_API_KEY": KEY}
        result = go("--model", "anthropic:lab", "--check", "true", **env)
        assert outcome(result) == (0, "done"), result.err
        assert len(stage.asked) == 1


def test_a_server_without_a_key_is_not_assumed_to_cost_nothing(server, settings, go):
    with server.stage() as stage:
        settings(agents={"builtin": {"model": "nobody-knows-this-one", "url": f"{stage.url}/v1"}})
        result = go("--max-cost", "1")
        assert (result.code, stage.asked) == (2, [])
        assert "the price of nobody-knows-this-one is unknown" in result.err


def test_a_local_model_costs_nothing_and_needs_no_price_table(server, tmp_path, settings, go):
    """Importing both takes longer than a run; the first is only for the child, the second only for models that cost
    something."""
    seen = tmp_path / "seen"
    code = f"import atexit, sys; atexit.register(lambda: open({str(seen)!r}, 'a').write(repr([*sys.modules]) + '\\n'))"
    (tmp_path / "sitecustomize.py").write_text(code)
    with server.stage(Say(DONE, Tokens(1_000_000, 100))) as stage:
        settings(agents={"builtin": {"model": "ollama:lab", "url": f"{stage.url}/v1"}})
        result = go("--max-cost", "1", "--check", "true", PYTHONPATH=str(tmp_path))
        assert outcome(result) == (0, "done")
        assert result.one("run_finished")["cost_usd"] == 0
    child, *_, parent = seen.read_text().splitlines()
    assert "'pydantic_ai'" in child
    assert "'anthropic'" not in child, "of the wires only the one that is spoken"
    assert "'pydantic_ai'" not in parent
    assert "'genai_prices'" not in parent
