"""Which other loops are there, and how does one run each of them for a night? Those that the registries have and that
need no person, at pinned versions, in a cache of their own. This file and docs/reference/comparison.md are the only
places that name them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bench.lab import ROOT
from bench.nights.contenders import CAP, SAID_DONE, SAID_NOT, Contender, Place
from bench.nights.task import CHECK, GOAL, PARTS

CACHE = ROOT / ".cache" / "nights"
NPM = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
TURN_SECONDS = "5"  # for those that bound a turn as a whole
IDLE_SECONDS = "3"  # … and those that bound silence


class Package(Struct, frozen=True):
    registry: str
    name: str
    version: str
    program: str
    beside: tuple[str, ...] = ()  # what it needs besides, with versions

    @property
    def label(self) -> str:
        return f"{self.name} {self.version} ({self.registry})"

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.registry}-{self.name.replace('/', '-').lstrip('@')}-{self.version}"


class Peer(Struct, frozen=True):
    package: Package
    adapter: Callable[[str], Contender]


NOT_HAD = {
    "@ralph-orchestrator/ralph-cli 2.10.1 (npm)": "its install step downloads a program from outside the registry",
    "@tmustier/pi-ralph-wiggum 0.2.3 (npm)": "an extension of an interactive session of another agent",
    "ralph-code 0.6.3 (PyPI)": "starts with menus that a person must answer",
    "ralph-loop 0.0.1-alpha.0 (npm)": "an empty package",
    "agentloop 0.2.2 (PyPI)": "a frame for agents that one writes oneself; there is nothing in it that decides",
    "loop-agent 1.1.0 (PyPI)": "a frame for agents that one writes oneself",
    "claude-autopilot 0.2.2 (PyPI)": "brings an agent of its own, and needs the API of its model",
    "agentic-loop 3.14.2 (npm)": "ends before its first turn: its script does not get over `set -e` with bash 5",
    "agentic-loop 0.3.0 (PyPI)": "brings an agent of its own, and needs the API of a model",
}


def brought() -> tuple[list[Contender], dict[str, str]]:
    """Every peer that can be had, installed; and why the others cannot."""
    there, missing = [], dict(NOT_HAD)
    for peer in PEERS:
        try:
            program = installed(peer.package)
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or error.stdout or "").strip().splitlines()
            missing[peer.package.label] = f"cannot be installed here: {lines[-1] if lines else error}"
            continue
        one = peer.adapter(program)
        there.append(replace(one, name=peer.package.label, version=peer.package.version, reads=False))
    return there, missing


def installed(package: Package) -> str:
    """Its program, installed if it is not there yet. No package runs a script of its own."""
    folder, mark = package.folder, package.folder / "whole"
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if package.registry == "PyPI":
            _run(sys.executable, "-m", "venv", str(folder / "venv"))
            pip = str(folder / "venv" / "bin" / "pip")
            _run(pip, "install", "--quiet", "--disable-pip-version-check", f"{package.name}=={package.version}")
        else:
            wanted = (f"{package.name}@{package.version}", *package.beside)
            _run("npm", "install", "--prefix", str(folder), *NPM, *wanted)
        mark.touch()
    within = "venv/bin" if package.registry == "PyPI" else "node_modules/.bin"
    return str(folder / within / package.program)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True, cwd=CACHE, stdin=subprocess.DEVNULL)


def setting_up(place: Place, *argv: str) -> None:
    """A command that its documentation has one run once."""
    env = {**os.environ, "HOME": str(place.home), "PATH": f"{place.bin}:{os.environ.get('PATH', '')}"}
    subprocess.run(argv, cwd=place.work, env=env, capture_output=True, stdin=subprocess.DEVNULL)


def by_words(*words: str) -> Callable[[str, int], str]:
    """Done is what it says with one of these words."""
    return lambda output, code: SAID_DONE if any(word in output for word in words) else SAID_NOT


def by_exit(output: str, code: int) -> str:
    return SAID_DONE if code == 0 else SAID_NOT


def names(place: Place) -> list[str]:
    return [name for name, _, _, _ in PARTS if (place.work / "lib" / f"{name}.sh").exists()]


def boxes(place: Place, path: str) -> None:
    """One task a part, which is how these loops want their work cut."""
    lines = [f"- [ ] {name}: implement lib/{name}.sh so that sh tests/{name}.sh passes" for name in names(place)]
    place.write(path, f"# Tasks\n\n{GOAL}\n\n" + "\n".join(lines) + "\n")


def stories(place: Place, path: str, **more: Any) -> None:
    made = [
        {
            "id": name,
            "title": f"Implement lib/{name}.sh",
            "description": f"Implement lib/{name}.sh so that sh tests/{name}.sh passes.",
            "acceptanceCriteria": [f"`{CHECK}` exits with 0"],
            "priority": at,
            "passes": False,
        }
        for at, name in enumerate(names(place), 1)
    ]
    place.write(path, json.dumps({**more, "description": GOAL, "userStories": made}, indent=2))


PASSES = {"path": "prd.json", "list": "userStories", "key": "id", "flag": "passes"}


def ralph_py(program: str) -> Contender:
    return Contender(
        name="",
        argv=lambda place: (program, "run", GOAL, "-n", str(CAP), "-d", "0"),
        claim={"text": "RALPH_COMPLETE"},
        says=by_words("completed"),
        plain=False,
        fairness="takes no check; its pause between turns is set to 0; has no limit on a turn that hangs",
    )


def ralph_runner(program: str) -> Contender:
    words = ("--iterations", "1", "--max-iterations", str(CAP), "--idle-timeout", IDLE_SECONDS, "--verify", CHECK)
    return Contender(
        name="",
        argv=lambda place: (program, "--prompt", GOAL, *words),
        claim={"text": "###RALPH_COMPLETE###", "asides": [("^Summarize what was accomplished", "- work was done")]},
        says=by_words("Task completed!"),
        gate=True,
        plain=False,
        fairness="the least number of iterations is set from 10 to 1, so that it may end as soon as the others",
    )


def ralph_loop(program: str) -> Contender:
    def prepare(place: Place) -> None:
        setting_up(place, program, "init")
        place.write("PROMPT.md", f"# Goal\n{GOAL}\n\n# Success Criteria\n- [ ] `{CHECK}` exits with 0\n")

    return Contender(
        name="",
        argv=lambda place: (program, "run", "-m", str(CAP), "--timeout", TURN_SECONDS, "--agents", "claude"),
        claim={
            "text": "DONE",
            "files": [(".ralph/status", "DONE")],
            "goes_on": [(".ralph/status", "CONTINUE")],
            "wreck": [".ralph"],
        },
        says=by_exit,
        prepare=prepare,
        plain=False,
        fairness="wants three claims in a row by design, so it cannot come near the ideal number of turns",
    )


def ralphify(program: str) -> Contender:
    def prepare(place: Place) -> None:
        agent = "agent" if place.agent == "agent" else "claude -p --dangerously-skip-permissions"
        head = f"---\nagent: {agent}\ncommands:\n  - name: tests\n    run: {CHECK}\n---\n"
        place.write("loop/RALPH.md", f"{head}{GOAL}\n\n## Test results\n\n{{{{ commands.tests }}}}\n")

    return Contender(
        name="",
        argv=lambda place: (program, "run", "loop", "-n", str(CAP), "-t", TURN_SECONDS),
        claim={"text": "DONE"},
        says=lambda output, code: SAID_NOT,
        prepare=prepare,
        fairness="knows no end but the cap, by design: it never says done; its exit code does not speak of the task",
    )


def ralphy_py(program: str) -> Contender:
    more = ("--max-iterations", str(CAP), "--max-retries", "3", "--retry-delay", "0")
    return Contender(
        name="",
        argv=lambda place: (program, "--prd", "PRD.md", *more),
        claim={"text": "<promise>COMPLETE</promise>", "boxes": ["PRD.md"], "wreck": [".ralphy"]},
        says=by_words("PRD complete", "All tasks complete", "tasks completed"),
        prepare=lambda place: boxes(place, "PRD.md"),
        plain=False,
        fairness="works by a list of tasks: one for each part; its pause before a retry is set to 0",
    )


def ralphy_cli(program: str) -> Contender:
    def prepare(place: Place) -> None:
        boxes(place, "PRD.md")
        place.write(".ralphy/config.yaml", f'project:\n  name: sums\ncommands:\n  test: "{CHECK}"\n')

    return Contender(
        name="",
        argv=lambda place: (program, "--prd", "PRD.md", "--max-iterations", str(CAP), "--retry-delay", "0"),
        claim={"text": "Done.", "wreck": [".ralphy"]},
        says=by_words("All tasks completed", "all tasks complete", "All done"),
        prepare=prepare,
        plain=False,
        fairness="works by a list of tasks and ticks each itself when the agent has ended well: one for each part",
    )


def ralph_cli(program: str) -> Contender:
    def prepare(place: Place) -> None:
        stories(place, "plans/TASKS.json", project="sums", branchName="main")
        place.write("plans/PROGRESS.txt", "")
        place.write("CLAUDE.md", f"# Sums\n\n<!-- RALPH:CHECKS:START -->\n- {CHECK}\n<!-- RALPH:CHECKS:END -->\n")

    return Contender(
        name="",
        argv=lambda place: (program, "loop", str(CAP), "--skip-review"),
        claim={"text": "<ralph>COMPLETE</ralph>", "stories": {**PASSES, "path": "plans/TASKS.json"}},
        says=by_words("All stories complete", "all stories complete"),
        prepare=prepare,
        plain=False,
        fairness="retired by its author; stops when a story fails twice: not made for agents of one step at a time",
    )


def ralph_template(program: str) -> Contender:
    def prepare(place: Place) -> None:
        setting_up(place, program, "ralph")
        boxes(place, "ralph/fix_plan.md")
        script = place.work / "ralph" / "run.sh"
        script.write_text(script.read_text().replace("sleep 2", "sleep 0"))

    def block(status: str, leave: str) -> str:
        return f"---RALPH_STATUS---\nSTATUS: {status}\nERRORS: none\nEXIT_SIGNAL: {leave}\n---END_RALPH_STATUS---"

    return Contender(
        name="",
        argv=lambda place: ("bash", "ralph/run.sh", "claude", str(CAP)),
        claim={"text": block("COMPLETE", "true"), "word": "EXIT_SIGNAL: true", "boxes": ["ralph/fix_plan.md"]},
        says=by_exit,
        prepare=prepare,
        plain=False,
        fairness="made for writing documents; takes no check; its pause of two seconds is set to 0",
    )


def ralph_tui(program: str) -> Contender:
    bun = next((str(found) for found in Path(program).parents[1].glob("@oven/bun-*/bin/bun")), "bun")
    words = ("run", "--headless", "--no-setup", "--prd", "prd.json", "--agent", "claude", "--iterations", str(CAP))

    def prepare(place: Place) -> None:
        one = {"id": "US-001", "title": "Implement lib/", "description": GOAL, "priority": 1, "passes": False}
        story = {**one, "acceptanceCriteria": [f"`{CHECK}` exits with 0"], "dependsOn": []}
        place.write("prd.json", json.dumps({"name": "sums", "branchName": "main", "userStories": [story]}, indent=2))
        place.write(".ralph-tui/config.toml", 'agent = "claude"\ntracker = "json"\n')

    return Contender(
        name="",
        argv=lambda place: (bun, program, *words),
        claim={"text": "<promise>COMPLETE</promise>", "wreck": [".ralph-tui"]},
        says=by_words("All tasks complete", "all tasks complete", "Status: completed"),
        prepare=prepare,
        plain=False,
        fairness="one story with the whole goal; takes no check",
    )


def ralph_starter(program: str) -> Contender:
    marker = "<promise>COMPLETE</promise>"
    words = ("--agent", "claude-code", "--max-iterations", str(CAP), "--completion-promise", marker)
    patient = ("--circuit-breaker-failures", str(CAP), "--circuit-breaker-errors", str(CAP))
    more = ("--validate", "--output-dir", ".", "--no-auto-skills", *patient)
    return Contender(
        name="",
        argv=lambda place: (program, "run", GOAL, *words, *more),
        claim={"text": marker, "wreck": [".ralph"]},
        says=by_words("Task completed", "Loop completed", "completed successfully"),
        prepare=lambda place: place.write("AGENTS.md", f"# Sums\n\n- **Build**: `{CHECK}`\n"),
        gate=True,
        plain=False,
        fairness="finds its check in AGENTS.md; runs no tests without a person, so the tests are called a build there",
    )


def pyralph(program: str) -> Contender:
    task = {"id": "TASK-001", "description": GOAL, "priority": "Must Have", "status": "pending"}
    story = {**task, "acceptanceCriteria": [f"`{CHECK}` exits with 0"], "definitionOfDone": [], "dependencies": []}

    def prepare(place: Place) -> None:
        place.write(".ralph/prd.json", json.dumps({"id": "PRD-001", "description": GOAL, "userStories": [story]}))

    return Contender(
        name="",
        argv=lambda place: (program, "execute", "-y", "--no-emoji", "--test-cmd", CHECK, "--retries", str(CAP)),
        claim={"text": "STATUS: SUCCESS", "wreck": [".ralph"]},
        says=by_words("All Tasks Complete"),
        prepare=prepare,
        gate=True,
        plain=False,
        fairness="its plan is given, so that it begins to work at once; the cap is its number of retries",
    )


def ralphkit(program: str) -> Contender:
    def prepare(place: Place) -> None:
        items = [
            {"id": at, "title": name, "details": f"implement lib/{name}.sh", "done": False}
            for at, name in enumerate(names(place), 1)
        ]
        place.write("task.md", f"# Goal\n{GOAL}\n")
        place.write("tickets.json", json.dumps({"goal": GOAL, "items": items}))
        step = (
            'step_name: worker\n    task_prompt: "Read {state_dir}/tickets.json, find the next incomplete item, and '
            f'implement it. {CHECK} must pass."\n    system_prompt: "You are a worker in a loop."\n'
        )
        place.write("loop.yaml", f"max_iterations: {CAP}\n\nloop:\n  - {step}")

    where = {"path": r"\S+/tickets\.json", "in_prompt": True, "list": "items", "key": "title", "flag": "done"}
    return Contender(
        name="",
        argv=lambda place: (program, "loop", "task.md", "--config", "loop.yaml", "--plan", "tickets.json", "--force"),
        claim={"text": "All items are done.", "stories": where, "asides": [("Review the work done", "It looks good.")]},
        says=by_words("COMPLETE — All"),
        prepare=prepare,
        plain=False,
        fairness="its plan is given: one item for each part; takes no check",
    )


def ralph_agent(program: str) -> Contender:
    status = ".ralph/status.json"
    words = ("--prompt", GOAL, "-y", "--max", str(CAP), "-s", "0", "-t", TURN_SECONDS)
    return Contender(
        name="",
        argv=lambda place: (program, "run", *words),
        claim={
            "text": "PROJECT_COMPLETE",
            "files": [(status, '{"status": "PROJECT_COMPLETE", "task_id": "task-prompt"}')],
            "wreck": [".ralph"],
        },
        says=by_words("PROJECT_COMPLETE - All done", "All tasks complete", "Project Complete"),
        plain=False,
        fairness="starts the agent's full screen, not its mode for scripts; here both print and end",
    )


def orchestrator(program: str) -> Contender:
    words = ("run", "-a", "gemini", "-i", str(CAP), "--retry-delay", "1", "--no-metrics")

    def prepare(place: Place) -> None:
        (place.bin / "gemini").symlink_to(place.bin / "agent")
        place.write("PROMPT.md", f"# Task\n{GOAL}\n")

    return Contender(
        name="",
        argv=lambda place: (program, *words, "--completion-promise", "LOOP_COMPLETE"),
        claim={"text": "LOOP_COMPLETE", "wreck": [".agent"]},
        says=by_words("task marked complete", "Completion promise matched", "Completion marker found"),
        prepare=prepare,
        plain=False,
        fairness="its Claude adapter brings a Claude Code of its own, so the agent is plain text under another name",
    )


def sandcastle(program: str) -> Contender:
    modules = Path(program).parent.parent / "@ai-hero" / "sandcastle" / "dist"
    marker = "<promise>COMPLETE</promise>"

    def prepare(place: Place) -> None:
        (place.folder / "run.mjs").write_text(
            f'import {{ run, claudeCode }} from "{modules}/index.js";\n'
            f'import {{ noSandbox }} from "{modules}/sandboxes/no-sandbox.js";\n'
            f"const result = await run({{ agent: claudeCode('claude-sonnet-4-5'), sandbox: noSandbox(), cwd: "
            f"process.cwd(), branchStrategy: {{ type: 'head' }}, maxIterations: {CAP}, idleTimeoutSeconds: "
            f"{IDLE_SECONDS}, completionSignal: '{marker}', prompt: {json.dumps(f'{GOAL} Then output {marker}')} }});\n"
            "console.log(result.completionSignal ? 'signal: done' : 'no signal');\n"
            "process.exit(result.completionSignal ? 0 : 1);\n"
        )

    return Contender(
        name="",
        argv=lambda place: ("node", str(place.folder / "run.mjs")),
        claim={"text": marker, "wreck": [".sandcastle"]},
        says=by_words("signal: done"),
        prepare=prepare,
        plain=False,
        fairness="a library: the lines that call it, and so its exit code, are ours; without its box: it needs Docker",
    )


PEERS: Sequence[Peer] = (
    Peer(Package("PyPI", "ralph-loop", "0.6.0", "ralph"), ralph_loop),
    Peer(Package("PyPI", "ralph-py", "0.4.0", "ralph"), ralph_py),
    Peer(Package("PyPI", "ralph-runner", "0.1.0", "ralph-runner"), ralph_runner),
    Peer(Package("PyPI", "ralphify", "0.3.0", "ralph"), ralphify),
    Peer(Package("PyPI", "ralphy", "4.0.1", "ralphy"), ralphy_py),
    Peer(Package("PyPI", "ralph-cli", "2.2.2", "ralph"), ralph_cli),
    Peer(Package("PyPI", "pyralph", "0.1.0", "ralph"), pyralph),
    Peer(Package("PyPI", "ralphkit", "0.1.7", "ralphkit"), ralphkit),
    Peer(Package("PyPI", "ralph-agent", "1.1.1", "ralph"), ralph_agent),
    Peer(Package("PyPI", "ralph-orchestrator", "1.2.3", "ralph"), orchestrator),
    Peer(Package("npm", "ralphy-cli", "4.7.2", "ralphy"), ralphy_cli),
    Peer(Package("npm", "ralph-template", "1.15.0", "ralph-template"), ralph_template),
    Peer(Package("npm", "ralph-tui", "0.11.0", "ralph-tui", ("bun@1.4.4",)), ralph_tui),
    Peer(Package("npm", "ralph-starter", "0.5.2", "ralph-starter"), ralph_starter),
    Peer(Package("npm", "@ai-hero/sandcastle", "0.12.0", "sandcastle"), sandcastle),
)
