"""Set a goal for Codex through its app-server, as an editor does, and wait until the goal is no longer active.

python codex_goal.py CODEX GOAL TOKENS
"""

import json
import os
import subprocess
import sys


def main(program, goal, tokens):
    env = dict(os.environ)
    server = subprocess.Popen(
        [program, "app-server"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        return Client(server).pursue(goal, int(tokens))
    finally:
        server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()


class Client:
    def __init__(self, server):
        self.server, self.calls, self.waiting = server, 0, []

    def pursue(self, goal, tokens):
        self.call("initialize", clientInfo={"name": "nights", "version": "1"}, capabilities={"experimentalApi": True})
        self.send({"method": "initialized"})
        rights = {"approvalPolicy": "never", "sandbox": "danger-full-access"}
        thread = self.call("thread/start", cwd=os.getcwd(), **rights)["thread"]["id"]
        self.call("thread/goal/set", threadId=thread, objective=goal, tokenBudget=tokens)
        status = "active"
        while status == "active":
            message = self.waiting.pop(0) if self.waiting else self.receive()
            if message.get("method") == "thread/goal/updated":
                status = message["params"]["goal"]["status"]
            if message.get("method") == "error":
                print(message["params"], file=sys.stderr)
        print(f"goal: {status}")
        return 0 if status == "complete" else 1

    def call(self, method, **params):
        self.calls += 1
        self.send({"id": self.calls, "method": method, "params": params})
        while True:
            message = self.receive()
            if message.get("id") == self.calls and "method" not in message:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
            self.waiting.append(message)

    def send(self, message):
        self.server.stdin.write(json.dumps(message) + "\n")
        self.server.stdin.flush()

    def receive(self):
        line = self.server.stdout.readline()
        if not line:
            sys.exit("the app-server has ended")
        return json.loads(line)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
