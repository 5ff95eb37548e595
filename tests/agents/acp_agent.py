"""A scripted ACP agent for the tests: `python acp_agent.py BEHAVIOUR`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

behaviour = sys.argv[1]
session = "s-1"


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(**fields):
    send(method="session/update", params={"sessionId": session, "update": fields})


def say(text):
    update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def ask(kind, path):
    """Ask for permission; return the chosen option."""
    call = {
        "toolCallId": "c1",
        "kind": kind,
        "title": "a tool",
        "locations": [{"path": path}],
        "rawInput": {"path": path},
    }
    options = [
        {"optionId": "always", "kind": "allow_always"},
        {"optionId": "yes", "kind": "allow_once"},
        {"optionId": "no", "kind": "reject_once"},
    ]
    send(id=7, method="session/request_permission", params={"sessionId": session, "toolCall": call, "options": options})
    while True:
        answer = json.loads(sys.stdin.readline())
        if answer.get("id") == 7:
            return answer["result"]["outcome"].get("optionId")


def on_prompt(request):
    text = request["params"]["prompt"][0]["text"]
    if behaviour == "edits":
        option = ask("edit", os.path.abspath("made.txt"))
        if option == "yes":
            Path("made.txt").write_text("hello\n")
        update(sessionUpdate="tool_call_update", toolCallId="c1", status="completed" if option == "yes" else "failed")
        say(f"option {option}")
    elif behaviour == "outside":
        say(f"option {ask('edit', '/etc/passwd')}")
    elif behaviour == "unknown-request":
        send(id=9, method="craft/drainMidTurnQueue", params={})
        answer = json.loads(sys.stdin.readline())
        say(f"code {answer['error']['code']}")
    elif behaviour == "hangs":
        child = subprocess.Popen(["sleep", "600"])
        Path("hanging").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    elif behaviour == "dies":
        sys.exit(3)
    elif behaviour == "limit":
        error = {"code": -32603, "message": "API Error: 429 try again in 1h30m.", "data": {"errorKind": "rate_limit"}}
        return send(id=request["id"], error=error)
    elif behaviour == "surrogate":
        sys.stdout.write(
            '{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":'
            '"agent_message_chunk","content":{"type":"text","text":"half \\ud83d an emoji"}}}}\n'
        )
    else:
        say("I saw: ")
        say(text.strip().splitlines()[-1])
        if "work" in text:
            say("\n\nCOMPLETE")
    send(id=request["id"], result={"stopReason": "end_turn", "usage": {"inputTokens": 10, "outputTokens": 5}})
    return None


if behaviour == "prose":
    print("Welcome to the old CLI")
    sys.exit(0)
if behaviour == "silent":
    time.sleep(600)
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if method == "initialize":
        version = 2 if behaviour == "version2" else 1
        capabilities: dict[str, object] = (
            {"sessionCapabilities": {"resume": {}}} if behaviour == "resumes" else {"loadSession": True}
        )
        send(
            id=request["id"],
            result={
                "protocolVersion": version,
                "agentCapabilities": capabilities,
                "agentInfo": {"title": "Scripted", "version": "1"},
            },
        )
    elif method == "session/new" and behaviour == "login":
        send(id=request["id"], error={"code": -32000, "message": "Authentication required: run `scripted login`"})
    elif method == "session/new":
        options = [
            {"id": "mode", "currentValue": "ask", "options": [{"value": "ask"}, {"value": "yolo"}]},
            {"id": "model", "currentValue": "small", "options": [{"value": "small"}, {"value": "large"}]},
        ]
        send(id=request["id"], result={"sessionId": session, "configOptions": options})
    elif method == "session/resume":
        send(id=request["id"], result={})
    elif method == "session/load":
        say("an old answer")
        send(id=request["id"], error={"code": -32602, "message": "Session not found"})
    elif method == "session/set_config_option":
        wanted, name = request["params"]["value"], request["params"]["configId"]
        value = wanted if wanted in ("large", "yolo") else "small"
        with Path("options").open("a") as file:
            file.write(f"{name}={value}\n")
        send(id=request["id"], result={"configOptions": [{"id": name, "currentValue": value}]})
    elif method == "session/prompt":
        on_prompt(request)
