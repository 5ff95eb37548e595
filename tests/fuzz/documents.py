"""Valid, very long documents of every kind that ralph reads, each with its reader. An invalid one would be refused at
its first line, and would say nothing about the time that a valid one takes."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from tests.agents.conftest import recordings
from tests.fuzz import shown
from tests.fuzz.readers import READERS, Reader

from ralph.agents import module
from ralph.agents.protocol import TurnRequest
from ralph.backlog.backlog_content import find_problems
from ralph.backlog.markdown_backlogs import read_boxes, read_folder, tick_folder
from ralph.core import backlog, backlog_events, events
from ralph.core.backlog import BacklogTask
from ralph.core.model import Exit, Iteration
from ralph.core.prompts import own_words
from ralph.core.state import Activity
from ralph.core.tasks_file import tasks_in_json
from ralph.errors import UserError
from ralph.git import checkpoints
from ralph.history.backlog_history import fold_backlog, todo_of
from ralph.history.evidence import evidence_of
from ralph.history.feed import history_of
from ralph.hooks import starting, transcript
from ralph.hooks.hosts import HOSTS, with_hooks, without_hooks
from ralph.options.command_options import parse_prompt_line
from ralph.planning.plans import plan_in
from ralph.settings.load import load
from ralph.settings.trust import SettingsRecord, difference_since
from ralph.show import backlog_lines, backlog_report, report, summary
from ralph.show.event_lines import EventLines
from ralph.show.outlet import Style
from ralph.store import journal
from ralph.store.folder import RunFolder
from ralph.store.journal import load_run
from ralph.store.mailbox import Mailbox
from ralph.supervise import bus
from ralph.web.pieces import RecentPieces

Make = Callable[[int], str]
Document = tuple[Make, Reader]
RUN = "20260101-000000-abcd"


def grown(entry: Callable[[int], str], before: str = "", after: str = "", between: str = "") -> Make:
    """Return a document of numbered entries, with as many as the size allows."""

    def make(size: int) -> str:
        parts, room = list[str](), size - len(before) - len(after)
        for number in count():
            parts.append(entry(number))
            room -= len(parts[-1]) + len(between)
            if room <= 0:
                break
        return before + between.join(parts) + after

    return make


def listed(entry: Callable[[int], Any], before: str = "[", after: str = "]") -> Make:
    return grown(lambda number: json.dumps(entry(number)), before, after, ",")


def in_file(read: Callable[[Path], object], name: str = "file") -> Reader:
    def reader(text: str) -> None:
        with TemporaryDirectory(prefix="ralph-fuzz-") as place, suppress(UserError):
            file = Path(place, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            read(file)

    return reader


settings = READERS["settings"]
yaml = in_file(lambda file: load(file.parent, {}, env={}, config=file))
SETTINGS: dict[str, Document] = {
    "checks": (listed(lambda n: {"command": f"make c{n}"}, '{"guardrails":[', "]}"), settings),
    "agents": (grown(lambda n: f'"a{n}":{{"argv":["x{n}"]}}', '{"agents":{', "}}", ",\n"), settings),
    "wrong agents": (grown(lambda n: f'"a{n}":{{"flags":["x{n}"]}}', '{"agents":{', "}}", ",\n"), settings),
    "unknown names": (grown(lambda n: f'"a{n}":1', "{", "}", ",\n"), settings),
    "names given twice": (grown(lambda n: f'"stall":{n}', "{", "}", ",\n"), settings),
    "names not given": (grown(lambda n: f'"a{n}":null', "{", "}", ","), settings),
    "claims": (listed(lambda n: f"word:W{n}", '{"until":[', "]}"), settings),
    "patterns": (listed(lambda n: f"a{n}/**", '{"protect":[', "]}"), settings),
    "YAML": (grown(lambda n: f"  - make c{n}\n", "ralph_loop:\n  max_iterations: 5\nchecks:\n"), yaml),
    "unknown names in YAML": (grown(lambda n: f"a{n}: 1\n"), yaml),
    "a change of settings": (
        grown(lambda n: f'"a{n * 7919 % 10007}":1,\n'),
        in_file(
            lambda file: difference_since(
                SettingsRecord(1, {bytes(file): "\n".join(sorted(file.read_text().split("\n"))).encode()})
            )
        ),
    ),
    "hooks of others": (
        listed(
            lambda n: {"matcher": "x", "hooks": [{"type": "command", "command": f"c{n}"}]}, '{"hooks":{"Stop":[', "]}}"
        ),
        lambda said: [without_hooks(with_hooks(json.loads(said), host), host) for host in HOSTS.values()],
    ),
    "recipes": (grown(lambda n: f"test{n}:\n\techo\n"), READERS["checks of a project"]),
}


def _on_a_board(said: str) -> None:
    board = backlog.Board()
    for item in read_boxes({"list": said.encode()}).tasks:
        board = backlog_events.apply_event(board, backlog_events.TaskListed(item), 0.0)
    backlog.displayed_states(board), backlog.next_starts(board), backlog.forecast(board), todo_of(board)
    backlog_lines.table(board, backlog_lines.rows(board, {}), Style(), 80), backlog_lines.totals(board)


def _in_folder(said: str) -> None:
    files = {f"task-{number}.md": one.encode() for number, one in enumerate(said.split("\f"))}
    found = read_folder(files)
    find_problems(found)
    tick_folder(files, {task.key for task in found.tasks})


def _plan(said: str) -> None:
    plan = plan_in(said)
    assert plan
    plan.problems(), plan.commands(), plan.without_commands(lambda command: False)
    plan.with_answers(dict.fromkeys(plan.questions(), "so")).with_checks([f"d{n}" for n in range(len(said) // 100)])
    READERS["a backlog of boxes"](said)


def _task(number: int) -> dict[str, Any]:
    about = {"id": number + 1, "title": f"t{number}", "description": "d", "status": "pending", "priority": "high"}
    parts = [{"id": part, "title": f"s{part}", "status": "pending"} for part in range(3)]
    return {**about, "dependencies": [number] if number else [], "testStrategy": "t", "subtasks": parts}


PLAN = "# Plan: x\n\n" + "The goal. " * 1000 + "\n\n## Checks\n- `make`\n\n## Tasks\n"
boxes, stories, tasks = (READERS[name] for name in ("a backlog of boxes", "stories", "tasks by tag"))
LISTS: dict[str, Document] = {
    "a chain": (grown(lambda n: f"- [ ] T{n} do it\n  after: T{n - 1}\n  check: `make c{n}`\n"), boxes),
    "boxes in boxes": (grown(lambda n: f"{'  ' * (n % 40)}- [ ] T{n} do it\n"), boxes),
    "boxes of one name": (grown(lambda n: "- [ ] do the thing\n"), boxes),
    "all after the first": (grown(lambda n: f"- [ ] T{n} a\n  after: T0\n"), boxes),
    "one after many": (grown(lambda n: f"  after: T{n}\n", "- [ ] T0 a\n"), boxes),
    "one with much below": (grown(lambda n: f"  text {n}\n", "- [ ] T0 a\n"), boxes),
    "phases": (grown(lambda n: f"## Phase {n}\n- [ ] T{n} a [P]\n- [ ] T{n}b b\n"), boxes),
    "sections": (grown(lambda n: f"## S{n}\n\n- [ ] {n}.1 a\n- [x] {n}.2 b\n"), boxes),
    "a board": (grown(lambda n: f"- [ ] T{n} do it\n  after: T{n - 1}\n  touches: a{n}/\n"), _on_a_board),
    "a board of one folder": (grown(lambda n: f"- [ ] T{n} do it\n  touches: src/\n"), _on_a_board),
    "a plan": (grown(lambda n: f"- [ ] T{n} do it\n  check: `make c{n}`\n", PLAN), _plan),
    "a plan of checks": (grown(lambda n: f"- `make c{n}`\n", "# Plan: x\n## Tasks\n- [ ] T1 a\n## Checks\n"), _plan),
    "a plan of questions": (grown(lambda n: f"- [ ] Shall it {n}?\n", PLAN + "- [ ] T1 a\n## Questions\n"), _plan),
    "stories": (
        listed(
            lambda n: {"id": f"U{n}", "title": f"t{n}", "passes": False, "dependsOn": [f"U{n - 1}"], "steps": ["a"]}
        ),
        stories,
    ),
    "stories without an end": (listed(lambda n: {"id": f"U{n}", "title": f"t{n}"}, '{"stories":[', "]}"), stories),
    "tasks": (listed(_task, '{"tasks":[', "]}"), tasks),
    "tasks below a tag": (listed(_task, '{"master":{"tasks":[', "]}}"), tasks),
    "tags": (grown(lambda n: f'"t{n}":{{"tasks":[{json.dumps(_task(n))}]}}', "{", "}", ","), tasks),
    "parts of one task": (
        listed(
            lambda n: {"id": n, "title": f"s{n}", "status": "pending"},
            '{"tasks":[{"id":1,"title":"a","status":"pending","subtasks":[',
            "]}]}",
        ),
        tasks,
    ),
    "what one task waits for": (
        listed(lambda n: n, '{"tasks":[{"id":1,"title":"a","status":"pending","dependencies":[', "]}]}"),
        tasks,
    ),
    "tasks in tasks": (
        listed(lambda n: {"title": f"a{n}", "subtasks": [{"title": "b"}]}),
        lambda said: list(tasks_in_json(json.loads(said))),
    ),
    "a folder": (
        grown(
            lambda n: f"---\nid: task-{n}\ntitle: t{n}\nstatus: To Do\ndependencies: [task-{n - 1}]\n---\nx\n",
            between="\f",
        ),
        _in_folder,
    ),
    "long front matter": (grown(lambda n: f"k{n}: v\n", "---\nid: task-0\nstatus: To Do\n", "---\nbody\n"), _in_folder),
    "sections of a task": (grown(lambda n: f"<!-- SECTION:{n} -->\nwords\n", "---\nid: task-0\n---\n"), _in_folder),
    "issues": (listed(lambda n: {"number": n, "title": f"t{n}", "body": f"after: {n - 1}\nwords"}), READERS["issues"]),
    "pages of issues": (grown(lambda n: json.dumps([{"number": n, "title": "t"}]), between="\n"), READERS["issues"]),
    "a long issue": (
        grown(lambda n: f"touches: a{n}\\n", '[{"number":1,"title":"t","body":"', '"}]'),
        READERS["issues"],
    ),
    "beads": (
        listed(
            lambda n: {
                "id": f"b{n}",
                "title": f"t{n}",
                "dependencies": [{"depends_on_id": f"b{n - 1}", "type": "blocks"}],
            }
        ),
        READERS["beads"],
    ),
}


def _line(event: object, seq: int) -> str:
    name = (events.NAMES | backlog_events.NAMES)[type(event)]
    told = {"type": name, "timestamp": f"2026-01-01T00:{seq // 60 % 60:02}:{seq % 60:02}Z", "run": RUN, "seq": seq}
    return json.dumps({**told, "data": msgspec.to_builtins(event)}) + "\n"


def _numbered(kind: Any, number: int) -> Any:
    """Return a value in which every text and every number differs from the previous one."""
    return shown.filled(kind, shown.Filling(f"a{number}", number, bool(number % 2)))


STARTED = _line(events.RunStarted(goal="g", preset="p", agent="a", workspace="/w", max_iterations=3), 0)
WORK = _line(_numbered(backlog_events.BacklogStarted, 1), 0)


def in_one_iteration(kind: type) -> Make:
    return grown(lambda n: _line(_numbered(kind, n), n), STARTED + _line(events.IterationStarted(1, 3, "g"), 1))


def in_iterations(kind: type) -> Make:
    def iteration(n: int) -> str:
        record = msgspec.structs.replace(_numbered(Iteration, n), number=n + 1)
        told = (events.IterationStarted(n + 1, 3, "g"), _numbered(kind, n), events.IterationFinished(n + 1, record))
        return "".join(_line(event, n) for event in told)

    return grown(iteration, STARTED)


def on_items(kind: type) -> Make:
    """Events in which each task is listed and started, and then something happens to each."""

    def item(n: int) -> str:
        listed = backlog_events.TaskListed(BacklogTask(key=f"a{n}", title="t", after=(f"a{n - 1}",) if n else ()))
        return _line(listed, n) + _line(_numbered(backlog_events.TaskStarted, n), n)

    def make(size: int) -> str:
        items = grown(item, WORK)(size // 2)
        return grown(lambda n: _line(_numbered(kind, n), n), items)(size)

    return make


def _history(folder: RunFolder) -> None:
    load_run(folder.journal)
    history = history_of(folder)
    evidence_of(folder, history, {})
    [*summary.table(history, Style()), *summary.render_history(history, Style())]
    report.html(history, {}), report.for_review(history, "so")


def _looked_at(folder: RunFolder) -> None:
    lines, recent, activity = EventLines(Style(color=True), verbose=True, columns=80), RecentPieces(""), Activity()
    for entry in journal.read_entries(folder.journal):
        if event := entry.event():
            lines(event, entry.at)
            recent.add(entry, event)
            activity(event, entry.at)
    recent.since(-1)


def _work(folder: RunFolder) -> None:
    history = fold_backlog(RUN, journal.read_entries(folder.journal))
    backlog_report.html(history), backlog_report.summary(history)
    todo_of(history.board), history.needing()


def _of_run(read: Callable[[RunFolder], None]) -> Reader:
    return in_file(lambda file: read(RunFolder(file.parents[2], RUN)), f".ralph/runs/{RUN}/journal.ndjson")


def journals(scene: Callable[[type], Make], *readers: Callable[[RunFolder], None]) -> dict[str, Document]:
    kinds = events.NAMES | backlog_events.NAMES
    return {f"{kind.__name__}{read.__name__}": (scene(kind), _of_run(read)) for kind in kinds for read in readers}


def streams() -> dict[str, Document]:
    """All lines of all recorded streams of an agent, again and again."""
    found: dict[str, Document] = {}
    for recording in recordings():
        lines = [line.decode("utf-8", "replace") + "\n" for line in recording.lines if len(line) < 5000]
        reader = READERS[f"stream of {recording.agent}"]
        if recording.is_text or recording.code or not lines:
            continue
        found[f"{recording.agent} {recording.file}"] = (grown(lambda n, lines=lines: lines[n % len(lines)]), reader)  # type: ignore[misc]
        for line in lines:
            with suppress(ValueError, AttributeError):
                name = f"{recording.agent}: {json.loads(line).get('type')}"
                found.setdefault(name, (grown(lambda n, line=line: line, lines[0]), reader))  # type: ignore[misc]
    return found


def _transcribed(file: Path) -> None:
    found = transcript.Transcript(str(file), marker="m")
    found.read()
    assert isinstance(found.text, str)
    found.usage("m", is_priced=True)


def _row(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _letters(said: str) -> None:
    """Questions and notes, one per line."""
    with TemporaryDirectory(prefix="ralph-fuzz-") as place:
        box = Path(place, "mail")
        box.mkdir()
        for number, line in enumerate(said.split("\n")):
            (box / f"{number:09}{'.note' if number % 2 else '.question'}").write_text(line)
        Mailbox(place).read()


def _echoed(said: str) -> None:
    """A plain agent that first prints its prompt, which looks like another agent's stream."""
    parser = module("command").parser(TurnRequest(prompt=said, prompt_file="", command=("x",)))
    for line in (*said.encode().split(b"\n"), b"done"):
        list(parser.feed(line))
    parser.turn(Exit(code=0, at=1.8e9, duration=1.0))


message = in_file(lambda file: [*bus.MessageBus(file).read()])
TALK: dict[str, Document] = {
    "messages": (
        grown(lambda n: f'{{"msg_id":"m{n}","ts":"t","type":"FACT","body":"hello","parent":"m{n - 1}"}}\n'),
        message,
    ),
    "messages of others": (
        grown(lambda n: f"---\nmsg_id: m{n}\nparents:\n  - m{n - 1}\n---\nhello\n\n"),
        message,
    ),
    "a transcript of Claude's": (
        grown(
            lambda n: _row(
                {
                    "type": "assistant",
                    "message": {
                        "id": f"m{n}",
                        "content": [{"type": "text", "text": "w"}, {"type": "tool_use"}],
                        "usage": {"input_tokens": 3},
                    },
                }
            )
        ),
        in_file(_transcribed),
    ),
    "one message of Claude's": (
        grown(
            lambda n: _row(
                {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "word " * 12}]}}
            )
        ),
        in_file(_transcribed),
    ),
    "a transcript of Codex's": (
        grown(
            lambda n: _row(
                {
                    "type": "response_item",
                    "payload": {"type": "message", "role": "assistant", "content": [{"text": f"w{n}"}]},
                }
            )
        ),
        in_file(_transcribed),
    ),
    "a transcript of Gemini's": (
        grown(
            lambda n: _row({"type": "gemini", "id": f"g{n}", "content": "w", "toolCalls": [{}], "tokens": {"input": 1}})
        ),
        in_file(_transcribed),
    ),
    "one line of Gemini's": (
        grown(lambda n: _row({"type": "message", "role": "assistant", "content": "word " * 12, "delta": True})),
        READERS["stream of gemini"],
    ),
    "a prompt that is a stream": (
        grown(lambda n: _row({"type": "assistant", "message": {"id": f"m{n}", "content": []}, "session_id": "s"})),
        _echoed,
    ),
    "fences in a goal": (grown(lambda n: "<0123456789abcdef issue>\n\n", after="</0123456789abcdef issue"), own_words),
    "options in a task": (
        grown(lambda n: f"--max-iterations {n} --force ", "do ", "it"),
        lambda said: parse_prompt_line(said, starting.OPTIONS),
    ),
    "a patch of files": (
        grown(lambda n: f"diff --git a/f{n} b/f{n}\n--- a/f{n}\n+++ b/f{n}\n@@ -1 +1 @@\n-a\n+b\n"),
        READERS["a patch"],
    ),
    "a patch of lines": (
        grown(lambda n: f"+line {n}\n", "diff --git a/f b/f\n+++ b/f\n@@ -1 +1 @@\n"),
        READERS["a patch"],
    ),
    "one line of a patch": (grown(lambda n: "+word"), lambda said: checkpoints._split_pairs(said.encode())),
    "trees that are the same": (
        grown(lambda n: f"{n:040x} {n + 1:040x}\n"),
        lambda said: checkpoints._split_pairs(said.encode()),
    ),
    "paragraphs": (grown(lambda n: f"Paragraph {n} with `code` and **bold**.\n\n"), READERS["prose"]),
    "a table": (grown(lambda n: f"| a{n} | b |\n"), READERS["Markdown in a report"]),
    "letters": (grown(lambda n: json.dumps({"id": f"q{n}", "text": f"why {n}?"}), between="\n"), _letters),
    "a long report": (
        grown(lambda n: f"- I did thing {n}. All tests pass.\n", after="<promise>DONE</promise>"),
        lambda said: [read(said) for name, read in READERS.items() if name.startswith("claim ")],
    ),
}

DOCUMENTS: dict[str, dict[str, Document]] = {
    "settings": SETTINGS,
    "lists": LISTS,
    "one iteration": journals(in_one_iteration, _history, _looked_at),
    "many iterations": journals(in_iterations, _history),
    "many items": journals(on_items, _work, _looked_at),
    "streams": streams(),
    "talk": TALK,
}
