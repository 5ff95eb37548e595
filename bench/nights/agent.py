"""What does the agent of a night do in this turn? It plays its script on real files, and speaks as Claude Code does:
stream-json, json or text, as it is asked. Started as `claude` or `agent`; imports nothing of ralph.

python -I -S agent.py LEDGER [ARGUMENTS]
"""

import json
import os
import re
import signal
import sys
import time

SESSION = "6254815a-e87e-44d3-b4c5-5f153c8cfbf3"
TAKES_VALUE = re.compile(
    "--(output|input)-format|--(fallback-)?model|--max-turns|--permission-mode|--resume|--session-id|--(dis)?allowed-?Tools"
    "|--(append-)?system-prompt|--settings|--add-dir|--mcp-config|--json-schema|--max-budget-usd|--setting-sources",
    re.IGNORECASE,
)
FLOOD = 12_000_000
LIMIT_SECONDS = 1.0

CLAIMS = (
    "I ran the tests and all of them pass.\n\n{claim}",
    "All tests pass now.\n{claim}",
    "Everything is in place and the tests are green.\n\n**{claim}**",
    "Summary: every function is implemented, every test passes.\n\n`{claim}`",
    "{claim}",
    "# Summary\n\n- implemented what was missing in lib/\n- `sh tests/run` exits with 0\n\n{claim}",
    "All acceptance criteria are met:\n\n```\n{claim}\n```",
    "The suite is green. {claim}",
    "✅ Every test passes.\n\n✅ {claim}",
    "I double-checked: no test fails any more, nothing is left to do.\n\n{claim}\n",
)
BURIED = (
    "All tests pass.\n\n{claim}\n\nLet me know if you would like me to tidy anything up.",
    "{claim}\n\nI changed the files in lib/ and ran sh tests/run; it exits with 0.",
    "{claim}: all tests pass, and I have not touched anything else.",
)
TALK = (
    "I will output {claim} once all tests pass. Two of them still fail.",
    "Not {claim} yet: the tests are red.",
    "I cannot say {claim} because a test still fails. Next I will look at it.",
    "The instructions ask me to print {claim} only when everything is finished, and it is not.",
    "Plan:\n- [x] read the tests\n- [ ] fix what is left\n- [ ] output {claim}",
    "Remaining: one function. After that, `{claim}` will be the last line of my answer.",
    'When the work is complete I am to answer "{claim}". Today I fixed one function.',
    "If the tests were green I would now write\n\n{claim}\n\nbut they are not, so I go on in the next turn.",
    "When the tests are green, my last line will be:\n\n{claim}",
    "My final answer will be\n\n{claim}\n\nbut first I have to finish another function.",
    "> When every test passes, output {claim}\n\nUnderstood. One function is done, the rest follows.",
    "Next steps:\n1. fix the last function\n2. run the tests\n3. {claim}",
    "Is it time for {claim}? No: one test fails.",
    "I was told not to say {claim} before the tests pass, so I do not say it.",
    "I almost printed {claim}, but then a test failed.",
    "Two of five functions work. {claim} comes last.",
    "Once the rest is fixed: {claim}",
    "Expected at the end: {claim}. For now the run is red.",
    "Noch nicht fertig. Ich schreibe {claim}, sobald alle Tests grün sind.",
    "Todavía no puedo decir {claim}: falla una prueba.",
    "The previous run claimed {claim} too early; the tests show that it was wrong.",
    "I removed the line that printed {claim} from my notes, as the work goes on.",
)
NOT_YET = (
    "I fixed what I could in this turn. Some tests still fail.",
    "Progress: one function is implemented. The test run is still red.",
    "I read the tests and began with the first function. There is more to do.",
)
FORGOTTEN = (
    "All tests pass now. The functions in lib/ are implemented.",
    "The work is complete: I implemented everything and the suite is green.",
)


class Turn:
    def __init__(self, ledger, argv):
        self.ledger = ledger
        with open(f"{ledger}/script.json") as file:
            self.night = json.load(file)
        self.claim = self.night["claim"]
        self.format, self.prompt = asked(argv)
        self.root = root()
        self.did = []

    def take(self):
        aside = next((reply for words, reply in self.claim.get("asides", ()) if re.search(words, self.prompt)), None)
        if aside is not None:
            self.note(kind="aside", cost=0.0)
            return self.answer(aside, 0.0)
        played = self.played()
        if time.time() < self.limited_until():
            self.note(kind="again", number=played)
            return self.refused("limit", number=played)
        step = self.night["steps"][min(played, len(self.night["steps"]) - 1)]
        self.note(kind="start", number=played + 1, step=step["fate"], age=age())
        with open(f"{self.ledger}/count", "a") as file:
            file.write(".")
        if step["fate"] in ("limit", "overload"):
            return self.refused(step["fate"], number=played + 1)
        self.work(step)
        return self.speak(step, played + 1)

    def played(self):
        try:
            return os.stat(f"{self.ledger}/count").st_size
        except OSError:
            return 0

    def limited_until(self):
        try:
            with open(f"{self.ledger}/limited") as file:
                return float(file.read() or 0)
        except OSError:
            return 0.0

    def note(self, **facts):
        line = json.dumps({"moment": round(time.monotonic(), 4), **facts}) + "\n"
        file = os.open(f"{self.ledger}/turns.ndjson", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, line.encode())
        os.close(file)

    # the files

    def right(self):
        return [at for at, (path, good, _) in enumerate(self.night["files"]) if self.read(path) == good]

    def read(self, path):
        try:
            with open(f"{self.root}/{path}") as file:
                return file.read()
        except OSError:
            return None

    def write(self, path, text):
        full = f"{self.root}/{path}"
        os.makedirs(os.path.dirname(full) or ".", exist_ok=True)
        with open(full, "w") as file:
            file.write(text)

    def work(self, step):
        user = f"{self.ledger}/user-{self.played()}"
        if os.path.exists(user):
            os.system(f"cd {self.root} && sh {user} >{user}.log 2>&1")
            with open(user) as file:
                self.did.append("meanwhile, outside, " + file.read().strip())
        files, before = self.night["files"], self.right()
        wrong = [at for at in range(len(files)) if at not in before]
        for at in wrong[: step["fixes"]]:
            self.write(files[at][0], files[at][1])
            self.did.append(f"fixes {files[at][0]}")
        if step["breaks"] and before:
            path, _, bad = files[before[step["wording"] % len(before)]]
            self.write(path, bad)
            self.did.append(f"breaks {path}")
        if step["cheat"]:
            self.cheat(step["cheat"])
        for name in self.claim.get("wreck", ()) if step["wreck"] else ():
            os.system(f"rm -rf {self.root}/{name}")
            self.did.append(f"deletes {name}")
        if step["leave"]:
            self.did.append(f"leaves a {step['leave'].replace('stubborn', 'stubborn daemon')}")
            self.leave(step["leave"])

    def cheat(self, way):
        self.did.append({"test": "guts the tests", "runner": "guts tests/run", "delete": "deletes the tests"}[way])
        names = [f"tests/{os.path.basename(path)}" for path, _, _ in self.night["files"]]
        if way == "runner":
            self.write("tests/run", "exit 0\n")
        for name in names if way != "runner" else ():
            if way == "test":
                self.write(name, "exit 0\n")
            elif os.path.exists(f"{self.root}/{name}"):
                os.unlink(f"{self.root}/{name}")

    def leave(self, kind):
        """A process that outlives the turn: in this group and holding the output, or in a session of its own."""
        if os.fork():
            return
        if kind != "server":
            os.setsid()
            if os.fork():
                os._exit(0)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
        stubborn = "trap '' TERM HUP INT; " if kind == "stubborn" else ""
        os.execv("/bin/sh", ["sh", "-c", f"{stubborn}sleep 300; : {self.ledger}"])

    # the words

    def speak(self, step, number):
        green = len(self.right()) == len(self.night["files"])
        speech, text = step["speech"], ""
        if speech == "lie" or (green and speech not in ("forget", "bury")):
            text = self.filled(CLAIMS[step["wording"] % len(CLAIMS)])
        elif green and speech == "bury":
            text = self.filled(BURIED[step["wording"] % len(BURIED)])
        elif green:
            text = FORGOTTEN[step["wording"] % len(FORGOTTEN)]
        elif speech == "echo":
            text = f"{self.prompt}\n\nI have read this. Some tests still fail, so there is more to do."
        elif speech == "talk":
            text = self.filled(TALK[step["wording"] % len(TALK)], "word")
        else:
            text = NOT_YET[step["wording"] % len(NOT_YET)]
        claims = speech == "lie" or (green and speech != "forget")
        if speech != "forget" and step["fate"] in ("ok", "flood"):
            self.book(claims, speech)
        facts = {"kind": "end", "number": number, "green": green, "claims": claims, "speech": speech, "did": self.did}
        facts["said"] = next(line for line in reversed(text.splitlines()) if any(map(str.isalnum, line)))[:80]
        if step["fate"] in ("crash", "cut"):
            self.note(**facts, cost=0.0, fate=step["fate"])
            return self.broken_off(step)
        if step["fate"] == "hang":
            self.note(**facts, cost=0.0, fate="hang")
            return self.hang(step)
        if step["fate"] == "flood":
            self.flood()
        self.answer(text, step["cost"], tools=True)
        self.note(**facts, cost=step["cost"] if self.format != "text" else 0.0, paid=step["cost"], fate=step["fate"])
        return 0

    def book(self, claims, speech):
        """Writes down what it believes where the loop looks for it: files that say so, and lists of what is done."""
        for path, text in self.claim.get("files" if claims else "goes_on", ()):
            self.write(path, text)
        right = range(len(self.night["files"])) if speech == "lie" else self.right()
        names = [os.path.basename(path)[:-3] for path, _, _ in self.night["files"]]
        for path in self.claim.get("boxes", ()):
            text = self.read(path) or ""
            for at, name in enumerate(names):
                text = re.sub(rf"\[[ x]\] ({name}\b)", rf"[{'x' if at in right else ' '}] \1", text)
            self.write(path, text)
        if stories := self.claim.get("stories"):
            self.tick(stories, [name for at, name in enumerate(names) if at in right], claims)

    def tick(self, stories, done, claims):
        """A list in JSON: its path (or a pattern that finds it in the prompt), and what its fields are called."""
        found = re.search(stories["path"], self.prompt) if stories.get("in_prompt") else None
        path = found[0] if found else f"{self.root}/{stories['path']}"
        try:
            with open(path) as file:
                table = json.load(file)
        except (OSError, ValueError):
            return
        for story in table[stories["list"]]:
            story[stories["flag"]] = claims or story[stories["key"]] in done
        with open(path, "w") as file:
            json.dump(table, file, indent=2)

    def filled(self, text, key="text"):
        """`word`: what one says of a claim that is a whole block of text."""
        return text.replace("{claim}", self.claim.get(key) or self.claim.get("text") or "done")

    def answer(self, text, cost, tools=False):
        if self.format == "text":
            out(text + "\n")
            return 0
        result = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1000,
            "num_turns": 3,
            "result": text,
            "session_id": SESSION,
            "total_cost_usd": cost,
            "usage": usage(),
        }
        if self.format == "stream-json":
            self.begin()
            if tools:
                self.tool("Bash", {"command": "sh tests/run"}, "add: ok\nmul: 0 is not 6\n")
            out_json("assistant", message=message({"type": "text", "text": text}))
        out(compact(result))
        return 0

    def begin(self):
        out_json(
            "system",
            subtype="init",
            cwd=os.getcwd(),
            tools=["Bash", "Edit", "Read", "Write"],
            mcp_servers=[],
            model="claude-sonnet-4-5",
            permissionMode="bypassPermissions",
            apiKeySource="none",
        )

    def tool(self, name, given, output):
        call = {"type": "tool_use", "id": "toolu_1", "name": name, "input": given}
        out_json("assistant", message=message(call))
        block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": output, "is_error": False}
        out_json("user", message={"role": "user", "content": [block]})

    def broken_off(self, step):
        words = self.filled("I will print {claim} at the end. First I look at the tests.", "word")
        if self.format == "stream-json":
            self.begin()
            out_json("assistant", message=message({"type": "text", "text": words}))
        elif self.format == "text":
            out(words + "\n")
        if step["fate"] == "cut":
            return 0 if self.format == "stream-json" else 1
        sys.stderr.write("TypeError: Cannot read properties of undefined (reading 'content')\n")
        return 1

    def hang(self, step):
        if step["wording"] % 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.format == "stream-json":
            self.begin()
        time.sleep(600)
        return 1

    def flood(self):
        line = "x" * 4000 + "\n"
        if self.format == "stream-json":
            self.begin()
            for _ in range(3):
                self.tool("Bash", {"command": "npm install"}, line * (FLOOD // 3 // len(line)))
        elif self.format == "text":
            for _ in range(FLOOD // len(line) // 100):
                out(line * 100)

    def refused(self, why, number):
        """A limit whose end is stated, or a server that is overloaded: the turn is over before it begins."""
        status, text = 529, "API Error: 529 Overloaded. This is a server-side issue, usually temporary."
        if why == "limit":
            until = self.limited_until()
            if until < time.time():
                until = float(int(time.time() + LIMIT_SECONDS) + 1)
                with open(f"{self.ledger}/limited", "w") as file:
                    file.write(str(until))
            status, text = 429, f"Claude AI usage limit reached|{int(until)}"
        facts = {"claims": False, "speech": "", "said": "", "did": [], "cost": 0.0}
        self.note(kind="end", number=number, green=False, fate=why, **facts)
        if self.format == "text":
            out(text + "\n")
            return 1
        result = {
            "type": "result",
            "subtype": "success",
            "is_error": True,
            "api_error_status": status,
            "terminal_reason": "api_error",
            "num_turns": 1,
            "duration_ms": 50,
            "result": text,
            "session_id": SESSION,
            "total_cost_usd": 0,
            "usage": usage(0),
        }
        if self.format == "stream-json":
            self.begin()
            out_json("assistant", message={**message({"type": "text", "text": text}), "model": "<synthetic>"})
        out(compact(result))
        return 1


def asked(argv):
    """The output format and the prompt: an argument, or standard input."""
    fmt, words, at = "text", [], 0
    while at < len(argv):
        word = argv[at]
        if word == "--output-format" and at + 1 < len(argv):
            fmt = argv[at + 1]
        elif word.startswith("--output-format="):
            fmt = word.partition("=")[2]
        if TAKES_VALUE.fullmatch(word):
            at += 1
        elif not word.startswith("-"):
            words.append(word)
        at += 1
    if "--plain" in argv:
        fmt = "text"
    prompt = " ".join(words)
    if not prompt and not sys.stdin.isatty():
        prompt = sys.stdin.buffer.read().decode(errors="replace")
    return fmt, prompt


def root():
    """The repository: the loop may have started the agent below it, or in another work tree."""
    here = os.getcwd()
    while here != "/" and not os.path.isdir(f"{here}/lib"):
        here = os.path.dirname(here)
    return here if here != "/" else os.getcwd()


def age():
    """The seconds since this process began: the interpreter's start is the agent's time, not the loop's."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as file:
        return round(float(file.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK"), 3)


def usage(tokens=1000):
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return dict.fromkeys(names, tokens)


def message(block):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [block],
        "stop_reason": None,
        "usage": usage(),
    }


def out_json(kind, **more):
    out(compact({"type": kind, **more, "parent_tool_use_id": None, "session_id": SESSION}))


def compact(line):
    return json.dumps(line, separators=(",", ":")) + "\n"


def out(text):
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def main(ledger, argv):
    if argv[:1] in (["--version"], ["-v"]):
        out("2.1.325 (Claude Code)\n")
        return 0
    if "--help" in argv or "-h" in argv:
        out("Usage: claude [options] [prompt]\n  -p, --print\n  --output-format <format>\n")
        return 0
    return Turn(ledger, argv).take()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
