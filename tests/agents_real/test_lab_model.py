"""The scripted model follows its script in every protocol."""

import json
from http.client import BadStatusLine, HTTPConnection, IncompleteRead
from urllib.parse import urlsplit

import install
import pytest
from modelserver import ASIDES
from script import Cut, Fail, Forever, Say, shell

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BODIES = {
    "/v1/messages": {
        "tools": [{"name": "Bash", "input_schema": SCHEMA}],
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/v1/responses": {"tools": [{"type": "function", "name": "shell", "parameters": SCHEMA}], "input": "hi"},
    "/v1/chat/completions": {
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": SCHEMA}}],
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/v1beta/models/lab:generateContent": {
        "tools": [{"functionDeclarations": [{"name": "run_shell_command", "parametersJsonSchema": SCHEMA}]}],
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
    },
}


def post(stage, path, body):
    url = urlsplit(stage.url)
    connection = HTTPConnection(url.hostname, url.port)
    try:
        connection.request("POST", url.path + path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_script_is_played_in_every_protocol(server, path, streaming):
    body = BODIES[path] | {"stream": streaming}
    if streaming:
        path = path.replace(":generateContent", ":streamGenerateContent")
    with server.stage(shell("echo made-up"), Say("the answer"), Fail(418, "no tea")) as stage:
        assert "echo made-up" in post(stage, path, body)[1]
        assert "the answer" in post(stage, path, body)[1]
        status, text = post(stage, path, body)
        assert (status, "no tea" in text) == (418, True)
        assert [asked.prompt for asked in stage.asked] == ["hi"] * 3


def test_a_side_request_does_not_advance_the_script(server):
    path, body = "/v1/messages", BODIES["/v1/messages"]
    with server.stage(Say("the answer")) as stage:
        assert "the answer" not in post(stage, path, body | {"tools": []})[1]
        assert "the answer" not in post(stage, path, body | {"system": ASIDES[0]})[1]
        assert "the answer" in post(stage, path, body)[1]
        assert (len(stage.asides), len(stage.asked), stage.surplus) == (2, 1, 0)


def test_a_lost_connection_breaks_in_the_middle_of_an_answer(server):
    path, body = "/v1/messages", BODIES["/v1/messages"] | {"stream": True}
    with server.stage(Cut("half an answer"), Cut()) as stage:
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            post(stage, path, body)
        with pytest.raises((BadStatusLine, ConnectionResetError)):
            post(stage, path, body)


def test_a_step_that_repeats_for_ever_never_ends(server):
    path, body = "/v1/messages", BODIES["/v1/messages"]
    with server.stage(Forever(Fail(529))) as stage:
        assert {post(stage, path, body)[0] for _ in range(3)} == {529}


def test_a_finished_scenario_answers_no_request(server):
    with server.stage(Say("old")) as old:
        pass
    with server.stage(Say("new")) as new:
        assert post(old, "/v1/messages", BODIES["/v1/messages"])[0] == 404
        assert new.asked == []


def test_without_npm_the_error_names_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("RALPH_AGENTS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    [problem] = install.bring(["pi"]).values()
    assert "npm is needed" in str(problem)
