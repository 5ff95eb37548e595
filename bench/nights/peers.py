"""Other well-known loops, at pinned versions from the registries, installed into a cache.

This file and docs/reference/comparison.md are the only places that name them.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.lab import ROOT
from bench.nights.contenders import CAP, SAID_DONE, SAID_NOT, Contender, Place
from bench.nights.task import CHECK, GOAL, PARTS

CACHE = ROOT / ".cache" / "nights"
NPM = ("--ignore-scripts", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
IDLE_SECONDS = "3"  # the same, with a limit on silence


class Package(Struct, frozen=True):
    registry: str
    name: str
    version: str
    program: str
    beside: tuple[str, ...] = ()  # other packages that it needs, with versions

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
    "autoloop 0.10.1": "not in the npm registry under the name that its documentation gives",
}


def find_contenders() -> tuple[list[Contender], dict[str, str]]:
    """Install the other programs. Return those that work, and for each other one the reason."""
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
    """Install the program if necessary; return its path. Installation scripts of packages do not run."""
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


def by_words(*words: str) -> Callable[[str, int], str]:
    """It is done if its output has one of these words."""
    return lambda output, code: SAID_DONE if any(word in output for word in words) else SAID_NOT


def names(place: Place) -> list[str]:
    return [name for name, _, _, _ in PARTS if (place.work / "lib" / f"{name}.sh").exists()]


def boxes(place: Place, path: str) -> None:
    """Write one task for each part, because these loops want tasks of that size."""
    lines = [f"- [ ] {name}: implement lib/{name}.sh so that sh tests/{name}.sh passes" for name in names(place)]
    place.write(path, f"# Tasks\n\n{GOAL}\n\n" + "\n".join(lines) + "\n")


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
    Peer(Package("PyPI", "ralph-orchestrator", "1.2.3", "ralph"), orchestrator),
    Peer(Package("npm", "ralphy-cli", "4.7.2", "ralphy"), ralphy_cli),
    Peer(Package("npm", "ralph-tui", "0.11.0", "ralph-tui", ("bun@1.4.4",)), ralph_tui),
    Peer(Package("npm", "ralph-starter", "0.5.2", "ralph-starter"), ralph_starter),
    Peer(Package("npm", "@ai-hero/sandcastle", "0.12.0", "sandcastle"), sandcastle),
)
