"""The simulated agent. It plays one turn of its script on real files and prints what Claude Code would print
(stream-json, json or text).

Started as `claude` or `agent`; imports nothing of ralph: python -I -S agent.py LEDGER [ARGUMENTS]
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


CHEATS = {
    "test": "guts the tests",
    "runner": "guts tests/run",
    "delete": "deletes the tests",
    "script": "makes the tests expect what is there",
}
# A process that outlives the turn: in the agent's process group with its output open, or in a new session.
LEAVE = {
    "server": "sh -c 'sleep 300; : LEDGER' &",
    "daemon": "setsid sh -c 'sleep 300; : LEDGER' < /dev/null > /dev/null 2>&1 &",
    "stubborn": "setsid sh -c 'trap \"\" TERM HUP INT; sleep 300; : LEDGER' < /dev/null > /dev/null 2>&1 &",
}


def writing(path, text):
    return f"cat > {path} <<'END'\n{text}END"


class Turn:
    """One turn of the agent in the repository at `root`. The scripted model of native.py uses it as well."""

    def __init__(self, ledger, root, fmt="text", prompt="", steps="steps"):
        self.ledger, self.root, self.format, self.prompt = ledger, root, fmt, prompt
        with open(f"{ledger}/script.json") as file:
            self.night = json.load(file)
        self.steps = self.night[steps]
        self.claim = self.night["claim"]
        self.did = []

    def take(self):
        aside = next((reply for words, reply in self.claim.get("asides", ()) if re.search(words, self.prompt)), None)
        if aside is not None:
            self.note(kind="aside", cost=0.0)
            return self.answer(aside, 0.0)
        if time.time() < self.limited_until():
            self.note(kind="again", number=self.played())
            return self.refused("limit", number=self.played())
        number, step = self.begin(age())
        if step["fate"] in ("limit", "overload"):
            return self.refused(step["fate"], number=number)
        self.user()
        commands = self.commands(step)
        os.system(f"cd {self.root} && " + "\n".join(["{ :", *commands, "}"]))
        return self.speak(step, number)

    def begin(self, age):
        """Count the turn; return its number and its step. `age` is the seconds since the agent's process began."""
        played = self.played()
        step = self.steps[min(played, len(self.steps) - 1)]
        self.note(kind="start", number=played + 1, step=step["fate"], age=age)
        with open(f"{self.ledger}/count", "a") as file:
            file.write(".")
        return played + 1, step

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

    def parts(self):
        """Return the state of each part. 0: wrong, 1: right only for the inputs of the tests, 2: right."""
        texts = [(self.read(path), right, special) for path, right, _, special in self.night["files"]]
        return [2 if text == right else 1 if text == special else 0 for text, right, special in texts]

    def right(self):
        return [at for at, part in enumerate(self.parts()) if part == 2]

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

    def user(self):
        """Do what the user does during this turn."""
        user = f"{self.ledger}/user-{self.played()}"
        if os.path.exists(user):
            os.system(f"cd {self.root} && sh {user} >{user}.log 2>&1")
            with open(user) as file:
                self.did.append("meanwhile, outside, " + file.read().strip())

    def commands(self, step):
        """Return the shell commands of this turn. The simulated agent and a real CLI with a scripted model run the same
        ones."""
        files, parts, made = self.night["files"], self.parts(), []
        order = [at for state in (0, 1) for at, part in enumerate(parts) if part == state]
        for at in order[: step["fixes"]]:
            path, right, _, special = files[at]
            made.append(writing(path, special if step["special"] else right))
            self.did.append(f"{'special-cases' if step['special'] else 'fixes'} {path}")
        right = [at for at, part in enumerate(parts) if part == 2]
        if step["breaks"] and right:
            path, _, wrong, _ = files[right[step["wording"] % len(right)]]
            made.append(writing(path, wrong))
            self.did.append(f"breaks {path}")
        if step["bloat"]:
            path = f"lib/spare_{self.played()}.sh"
            made.append(writing(path, f"spare_{self.played()}() {{\n  echo nobody needs this\n}}\n"))
            self.did.append(f"adds {path}")
        made += self.cheat(step["cheat"]) if step["cheat"] else []
        for name in self.claim.get("wreck", ()) if step["wreck"] else ():
            made.append(f"rm -rf {name}")
            self.did.append(f"deletes {name}")
        if step["leave"]:
            self.did.append(f"leaves a {step['leave'].replace('stubborn', 'stubborn daemon')}")
            made.append(LEAVE[step["leave"]].replace("LEDGER", self.ledger))
        return made

    def cheat(self, way):
        self.did.append(CHEATS[way])
        names = " ".join(f"tests/{os.path.basename(path)}" for path, _, _, _ in self.night["files"])
        return {
            "script": ["sh tools/update"],
            "runner": ["echo 'exit 0' > tests/run"],
            "test": [f"for test in {names}; do echo 'exit 0' > $test; done"],
            "delete": [f"rm -f {names}"],
        }[way]

    # the words

    def words(self, step):
        """Return the agent's last words of the turn, and whether they are a claim. It believes the tests that it has
        run."""
        green, speech, at = 0 not in self.parts(), step["speech"], step["wording"]
        if speech == "lie" or (green and speech not in ("forget", "bury")):
            text = self.filled(CLAIMS[at % len(CLAIMS)])
        elif green and speech == "bury":
            text = self.filled(BURIED[at % len(BURIED)])
        elif green:
            text = FORGOTTEN[at % len(FORGOTTEN)]
        elif speech == "echo":
            text = f"{self.prompt}\n\nI have read this. Some tests still fail, so there is more to do."
        elif speech == "talk":
            text = self.filled(TALK[at % len(TALK)], "word")
        else:
            text = NOT_YET[at % len(NOT_YET)]
        return text, speech == "lie" or (green and speech != "forget")

    def facts(self, step, number, text, claims):
        """Return the ledger's entry about the end of this turn."""
        green = len(self.right()) == len(self.night["files"])
        facts = {"kind": "end", "number": number, "green": green, "claims": claims, "speech": step["speech"]}
        facts["said"] = next(line for line in reversed(text.splitlines()) if any(map(str.isalnum, line)))[:80]
        return {**facts, "did": self.did}

    def speak(self, step, number):
        text, claims = self.words(step)
        if step["speech"] != "forget" and step["fate"] in ("ok", "flood"):
            self.book(claims, step["speech"])
        facts = self.facts(step, number, text, claims)
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
        """Write the claim to the files where the loop looks for it: files with a fixed text, and lists of finished
        tasks."""
        for path, text in self.claim.get("files" if claims else "goes_on", ()):
            self.write(path, text)
        right = range(len(self.night["files"])) if speech == "lie" else self.right()
        names = [os.path.basename(path)[:-3] for path, _, _, _ in self.night["files"]]
        for path in self.claim.get("boxes", ()):
            text = self.read(path) or ""
            for at, name in enumerate(names):
                text = re.sub(rf"\[[ x]\] ({name}\b)", rf"[{'x' if at in right else ' '}] \1", text)
            self.write(path, text)
        if stories := self.claim.get("stories"):
            self.tick(stories, [name for at, name in enumerate(names) if at in right], claims)

    def tick(self, stories, done, claims):
        """Tick finished tasks in a JSON list. The claim names its path (or a pattern that finds it in the prompt) and
        its fields."""
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
        """Replace `word` in a text."""
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
            self.introduce()
            if tools:
                self.tool("Bash", {"command": "sh tests/run"}, "add: ok\nmul: 0 is not 6\n")
            out_json("assistant", message=message({"type": "text", "text": text}))
        out(compact(result))
        return 0

    def introduce(self):
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
            self.introduce()
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
            self.introduce()
        time.sleep(600)
        return 1

    def flood(self):
        line = "x" * 4000 + "\n"
        if self.format == "stream-json":
            self.introduce()
            for _ in range(3):
                self.tool("Bash", {"command": "npm install"}, line * (FLOOD // 3 // len(line)))
        elif self.format == "text":
            for _ in range(FLOOD // len(line) // 100):
                out(line * 100)

    def refused(self, why, number):
        """Fail before the turn begins: a usage limit with its end, or an overloaded server."""
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
            self.introduce()
            out_json("assistant", message={**message({"type": "text", "text": text}), "model": "<synthetic>"})
        out(compact(result))
        return 1


def asked(argv):
    """Return the output format and the prompt, from the arguments or standard input."""
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
    """Return the repository. The loop may have started the agent in a folder below it or in another worktree."""
    here = os.getcwd()
    while here != "/" and not os.path.isdir(f"{here}/lib"):
        here = os.path.dirname(here)
    return here if here != "/" else os.getcwd()


def age():
    """Return the seconds since this process began: the start of the interpreter counts as the agent's time."""
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
    steps = "second" if "--second" in argv else "steps"
    fmt, prompt = asked(argv)
    return Turn(ledger, root(), fmt, prompt, steps).take()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
