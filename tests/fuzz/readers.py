"""Everything in ralph that reads text from outside: answers, output, streams, prompts and lists."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz import shown

from ralph.agents import known_names, module
from ralph.agents.failures import resets_at, stated_in
from ralph.agents.protocol import TurnRequest
from ralph.agents.reader import without_summary
from ralph.backlog import json_backlogs, markdown_backlogs, trackers
from ralph.backlog.backlog_content import BacklogContent, find_problems
from ralph.core import prompts, text
from ralph.core.backlog import overlap
from ralph.core.check_counts import count_failures
from ralph.core.claims import Claim, Reading, find_echoes, find_marker
from ralph.core.model import Exit
from ralph.core.proof import function_name
from ralph.core.runner_output import read_tests
from ralph.core.secrets import Redactor, redact_text, redactable_length
from ralph.core.tasks_file import tasks_in_markdown
from ralph.errors import UserError
from ralph.forge import host
from ralph.git.protect import matches, parse_glob
from ralph.history.evidence import files_in
from ralph.hooks.transcript import Transcript
from ralph.planning.plans import load_plan, plan_in
from ralph.settings.detect_checks import detect_checks
from ralph.settings.load import load
from ralph.show import plots, words
from ralph.show.report import code, escape_markdown
from ralph.store import journal
from ralph.supervise import bus
from ralph.supervise.task import RUN_FILE, RunInfo, TaskFolder
from ralph.tui.slash_commands import completions, parse_line
from ralph.tui.widgets import to_text

Reader = Callable[[str], object]
Read = Callable[[Mapping[str, bytes]], BacklogContent]
Ticked = Callable[[Mapping[str, bytes], Collection[str]], dict[str, bytes]]

CLAIMS = (
    Claim("promise", "DONE"),
    Claim("response", "DONE"),
    Claim("word", "STOP"),
    Claim("tag", "COMPLETE"),
    Claim("suffix", "DONE"),
)
READINGS = (Reading(), Reading(verified=True), Reading(strict=True), Reading(anywhere=True))
PROMPT = "Fix the parser.\nWhen it works, say:\n\nSTOP\n\nor\n<promise>DONE</promise>\n"

# Characters that may cause backtracking in an expression or parser.
PIECES = (
    *("<promise>DONE</promise>", "<response>DONE</response>", "<response>", "</response>", "STOP", "COMPLETE"),
    *("DONE", "-", "--", "---", "=", "*", "**", "`", "```", "~~", "#", ">", "|", '"', "'", "“", "„", "«", "「"),
    *("(", "[ ]", "[x]", ".", ":", "!", "?", "…", "。", "：", ",", ";", " ", "\t", "\n", "\n\n", "\r"),
    *("\u2028", "\u00a0", "✅", "❌", "🎉", "1. ", "1) ", "- ", "a", "é", "не", "还没", "まだ", "아직", "بعد"),
    *("not yet ", "when ", "I will ", "all tests pass ", "5/5 ", "\x1b[31m", "\x1b]0;", "\x1b", "\x9b", "\x07"),
    *("\ud83d", "\0", "{", "}", '{"type":"', '\\"', "\\n", "<!--", "-->", "sk-", "sk-ant-", "ghp_", "xoxb-"),
    *("eyJ", "eyJaaaaaaaa.", "Bearer ", "-----BEGIN ", "PRIVATE KEY-----", "-----END ", "429 ", "error: "),
    *("rate limit ", "exceeded ", "retry-after: ", "try again in ", "10s", "1h", "resets ", "7pm ", "(UTC)"),
    *("aaaaaaaa", "AAAAAAAA", "00000000", "________", "a.b.c.", "https://a:b@c/", "model: ", "quota"),
    *("overloaded ", "Fix the parser.\n", "When it works, say:\n", "- [ ] T1 a\n", "- [x] b [P]\n", "  after: T1\n"),
    *("## Phase 1\n", "# Plan: a\n", "  check: `a`\n", '{"id":1,', '"title":"a",', "[]", "[", "{}", "&a [*a]", "- - "),
    *("diff --git a/a b/a\n", "+++ b/a\n", "\u0301", "\u200d", "👩\u200d", "\u200b", "\u202e", "漢", "\ufe0f"),
    *("status: ", "a: b\n", "msg_id: ", "\nlength: 3\n", "\\", "%", "a/", "**/", "*a", "?", "!", "https://a/b?c=d&"),
)


def _parsed(agent: str, said: str) -> None:
    parser = module(agent).parser(TurnRequest(prompt=PROMPT, prompt_file="", command=(agent,)))
    for line in said.encode("utf-8", "replace").split(b"\n"):
        list(parser.feed(line))
    parser.turn(Exit(code=1, at=1.8e9, duration=1.0, stderr=said)).text.encode()


def _in_a_file(read: Callable[[Path], object]) -> Reader:
    """A reader of files: the text becomes the file's content."""

    def reader(said: str) -> None:
        with TemporaryDirectory(prefix="ralph-fuzz-") as place, suppress(UserError):
            file = Path(place, ".ralph", "settings.json")
            file.parent.mkdir()
            file.write_bytes(said.encode("utf-8", "replace"))
            read(file)

    return reader


def _load_run(file: Path) -> RunInfo:
    task = TaskFolder(file.parent, "p", "t")
    (task.runs / "r").mkdir(parents=True)
    file.rename(task.runs / "r" / RUN_FILE)
    return task.load_run("r")


def _listed(read: Read, ticked: Ticked) -> Reader:
    """A reader of backlogs: it validates the backlog, and ticks its tasks."""

    def reader(said: str) -> None:
        files = {"list": said.encode("utf-8", "surrogatepass")}
        with suppress(UserError):
            found = read(files)
            find_problems(found)
            ticked(files, {task.key for task in found.tasks})

    return reader


def _minded(read: Callable[[str], object]) -> Reader:
    """A reader that may refuse a text with a UserError."""

    def reader(said: str) -> None:
        with suppress(UserError):
            read(said)

    return reader


def _in_bytes(read: Callable[[bytes], object]) -> Reader:
    return _minded(lambda said: read(said.encode("utf-8", "replace")))


def _planned(said: str) -> None:
    plan = plan_in(f"# Plan: x\n## Questions\n{said}")
    assert plan
    plan.problems()
    plan.with_answers(dict.fromkeys(plan.questions(), said[:100])).without_commands(bool).with_checks([said])


def _patched(said: str) -> None:
    data = said.encode("utf-8", "replace")
    files_in(data[at : at + 4096] for at in range(0, len(data), 4096))


def _phases(said: str) -> None:
    """Read a list as long as the text, in which half of the tasks wait for the other half."""
    number = len(said) // 100
    halves = ("".join(f"- [ ] T{at} a [P]\n" for at in range(begin, begin + number)) for begin in (0, number))
    READERS["a backlog of boxes"]("## Phase 1\n{}## Phase 2\n{}".format(*halves))


def _widely(read: Reader) -> Reader:
    """A function that renders a text in a hundred places. Of a long text it gets only a part."""
    return lambda said: read(said[: max(len(said) // 20, 2000)])


DEAF = {"a backlog in phases"}  # for these only the length of the text matters
SECRETS = Redactor([b"key number %d" % number for number in range(200)])

READERS: dict[str, Reader] = {
    **{
        f"claim {claim} {number}": lambda said, claim=claim, reading=reading: find_marker(claim, said, reading)
        for claim in CLAIMS
        for number, reading in enumerate(READINGS)
    },
    "echoes in an answer": lambda said: find_echoes(said, PROMPT),
    "echoes of a prompt": lambda said: find_echoes(PROMPT, said),
    "failures": stated_in,
    "an answer with a summary": without_summary,
    "failure counts": count_failures,
    "what test runners report": lambda said: read_tests(f"1..3\n=== RUN\nPHPUnit\n<testsuite>{said}"),
    "a count of unittest": lambda said: count_failures(f"Ran 3 tests in 1s\n\nFAILED {said}"),
    "a function's name": function_name,
    "resets": lambda said: resets_at(said, 1.8e9),
    "secrets": redact_text,
    "known secrets": Redactor([b"correct horse battery"]).text,
    "settled": lambda said: redactable_length(said.encode("utf-8", "replace")),
    "clean": text.clean,
    "one line": text.one_line,
    "short": lambda said: text.short(said, 200),
    "commit message": prompts.commit_message,
    "boxes": lambda said: list(tasks_in_markdown(said)),
    "settings": _in_a_file(lambda file: load(file.parent.parent, {}, env={})),
    "a journal": _in_a_file(lambda file: list(journal.read_entries(file))),
    "a bus": _in_a_file(lambda file: list(bus.MessageBus(file).read())),
    "a transcript": _in_a_file(lambda file: Transcript(str(file)).read()),
    "a plan": _in_a_file(load_plan),
    "checks of a project": _in_a_file(
        lambda file: file.rename(file.parent.parent / "Makefile") and detect_checks(file.parent.parent)
    ),
    "known secrets by the hundred": SECRETS.text,
    "a backlog of boxes": _listed(markdown_backlogs.read_boxes, markdown_backlogs.tick_boxes),
    "a backlog in phases": _phases,
    "a backlog in a folder": _listed(markdown_backlogs.read_folder, markdown_backlogs.tick_folder),
    "front matter": lambda said: READERS["a backlog in a folder"](f"---\nid: 1\nstatus:{said}\n---\n"),
    "stories": _listed(json_backlogs.read_prd, json_backlogs.tick_prd),
    "tasks by tag": _listed(json_backlogs.read_taskmaster, json_backlogs.tick_taskmaster),
    "issues": _in_bytes(trackers.read_issues),
    "beads": _in_bytes(trackers.read_beads),
    "an issue": lambda said: host.issue_goal(1, "a/b", said),
    "an address": host.parse_repository_url,
    "a plan in an answer": _planned,
    "patterns of files": lambda said: overlap(said.split("\n")[:2], [said[:200], said[-200:]]),
    "a protected name": lambda said: matches([parse_glob("a*b/**/*.x"), parse_glob("!*_*-*.b")], said),
    "a pattern": _minded(lambda said: matches([parse_glob(said[:4000])], said)),
    "a patch": _patched,
    "a run of a task": _in_a_file(_load_run),
    "a line that was typed": _minded(lambda said: (parse_line(f"/{said}"), completions(f"/{said}"))),
    "a wide line": lambda said: (words.wrap(said, 20), words.cut(said, 20), words.width(said)),
    "prose": lambda said: plots.prose(shown.encodable(said)),
    "a line of the TUI": lambda said: to_text([said]),
    "Markdown in a report": lambda said: (escape_markdown(said, 1 << 20), code(said, 1 << 20)),
    "lines on a screen": _widely(lambda said: shown.lines(said, 80, False)),
    "all lines on a narrow screen": _widely(lambda said: shown.lines(said, 12, True)),
    "pieces of a page": _widely(shown.on_a_page),
    "a summary": _widely(shown.in_summary),
    "a report": _widely(shown.in_report),
    "a report on a backlog": _widely(shown.of_work),
    **{f"stream of {agent}": lambda said, agent=agent: _parsed(agent, said) for agent in (*known_names(), "command")},
}
