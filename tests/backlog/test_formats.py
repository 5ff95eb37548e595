"""Every format of a backlog is read as its own program reads it, and a tick changes no other byte."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.backlog.backlog_content import BacklogContent, is_id, key_of, require_valid, slug
from ralph.backlog.backlog_source import find_backlog
from ralph.backlog.json_backlogs import (
    MAX_DEPTH,
    JsonPath,
    is_taskmasters,
    read_prd,
    read_taskmaster,
    spans,
    tick_prd,
    tick_taskmaster,
)
from ralph.backlog.markdown_backlogs import read_boxes, read_folder, tick_boxes, tick_folder
from ralph.backlog.trackers import read_beads, read_issues
from ralph.errors import UserError


def sandboxed(text: str) -> BacklogContent:
    return read_boxes({"T.md": text.encode()})


def keys(reading: BacklogContent) -> list[str]:
    return [task.key for task in reading.tasks]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("- [ ] T012 Add the form", "T012"),
        ("* [ ] 1.2 Add the form", "1.2"),
        ("1. [ ] hot1 Add the form", "hot1"),
        ("- [ ] **US-003**: Add the form", "US-003"),
        ("- [ ] #12 Add the form", "12"),
        ("- [ ] Add the form!", "add-the-form"),
        ("- [ ] 2FA for everybody", "2fa-for-everybody"),
        ("- [ ] T012", "t012"),
        ("- [ ] Merged", "merged-task"),
        ("- [ ] Größe ändern", "größe-ändern"),
    ],
)
def test_the_key_is_the_first_word_if_it_looks_like_an_id_else_a_slug(line: str, key: str) -> None:
    assert keys(sandboxed(line)) == [key]


def test_a_word_named_in_after_is_a_key() -> None:
    assert keys(sandboxed("- [ ] login Add the form\n- [ ] logout Add the button\n  after: login\n")) == [
        "login",
        "logout-add-the-button",
    ]


def test_indented_lines_belong_to_the_task_except_its_settings() -> None:
    reading = sandboxed(
        "- [ ] T1 Login\n  It has two fields.\n\n  - [ ] the name\n  check: `make login`\n  - check: make more\n"
        "  after: T2, T3\n  touches: src/login/**\n  agent: codex\n  model: big\n  max-cost: $2.50\n"
        "- [x] T2 x\n- [ ] T3 y\n"
    )
    first, second, _ = reading.tasks
    assert first.text == "T1 Login\nIt has two fields.\n\n- [ ] the name"
    assert (first.checks, first.after) == (("make login", "make more"), ("T2", "T3"))
    assert (first.touches, first.agent, first.model) == (("src/login/**",), "codex", "big")
    assert (first.max_cost, first.place, second.done) == (2.5, "T.md:1", True)


def test_checkboxes_in_code_and_comments_are_not_tasks() -> None:
    assert keys(
        sandboxed("```\n- [ ] T1 a\n```\n<!--\n- [ ] T2 b\n-->\n<!-- - [ ] T3 -->\n~~~\n- [ ] x\n~~~\n- [ ] T4 d")
    ) == ["T4"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_tick_changes_one_character_per_checkbox_of_the_task(end: str) -> None:
    text = end.join(
        ["\ufeff# List", "", "- [ ] T1 a", "  - [ ] part", "", "+ [ ] T2 b  ", "\t- [X] c", "- [] T3 d", "é"]
    )
    data = text.encode() + b"\xff\xfe"
    assert tick_boxes({"T.md": data}, {"T1"})["T.md"] == data.replace(b"[ ] T1", b"[x] T1").replace(b"[ ] p", b"[x] p")
    assert tick_boxes({"T.md": data}, {"T3"})["T.md"] == data.replace(b"[] T3", b"[x] T3")
    assert tick_boxes({"T.md": data}, {"T9"}) == {}


@given(st.lists(st.sampled_from(["- [ ] T{n} a", "  - [ ] sub", "  text", "", "# H", "```", "- [x] D{n} b", "\tx\r"])))
def test_a_tick_changes_nothing_else_in_any_file(parts: list[str]) -> None:
    data = "\n".join(part.format(n=number) for number, part in enumerate(parts)).encode()
    open_ = [task.key for task in read_boxes({"T.md": data}).tasks if not task.done]
    after = tick_boxes({"T.md": data}, set(open_)).get("T.md", data)
    assert all(task.done for task in read_boxes({"T.md": after}).tasks)
    assert after.replace(b"[x]", b"[ ]") == data.replace(b"[x]", b"[ ]")


PLAN = """# Plan: A shop

Sell things.

## Checks

- `pytest -q`
- [ ] `ruff check .` as well

## Tasks

- [ ] T1 Cart: there is one
  check: `pytest tests/cart`
- [ ] T2 Till: one can pay
  after: T1

## Questions

- [x] Which currency? Euro.
"""


def test_a_plan_has_checks_and_its_questions_must_be_answered() -> None:
    reading = require_valid(sandboxed(PLAN), "T.md")
    assert reading.checks == ("pytest -q", "ruff check .")
    assert keys(reading) == ["T1", "T2"]
    said = "This is one task of the plan: A shop\n\nSell things.\n\n## Questions\n\n- [x] Which currency? Euro."
    assert reading.tasks[0].text.endswith(said)
    assert reading.title == "A shop"
    with pytest.raises(UserError, match=r"T.md:19: .*Which currency"):
        require_valid(sandboxed(PLAN.replace("[x] Which", "[ ] Which")), "T.md")


SPEC_KIT = """# Tasks: Photo albums

## Phase 1: Setup

- [ ] T001 Create project structure
- [ ] T002 [P] Configure linting
- [ ] T003 [P] Configure formatting

## Phase 2: Foundational

- [ ] T004 Setup database schema
- [ ] T005 [P] [US1] Create model in src/models/album.py
"""


def test_phases_and_marks_of_spec_kit_become_dependencies() -> None:
    after = {task.key: task.after for task in sandboxed(SPEC_KIT).tasks}
    assert after == {
        "T001": (),
        "T002": ("T001",),
        "T003": ("T001",),
        "T004": ("T001", "T002", "T003"),
        "T005": ("T004",),
    }


def test_dependencies_between_phases_leave_out_implied_ones() -> None:
    """Thousands of tasks that each name all tasks above would need too much memory."""
    text = "## Phase 1: a\n- [ ] T1 [P] a\n- [ ] T2 b\n- [ ] T3 c\n- [ ] T4 d\n  after: T1\n- [ ] T5 e\n- [ ] T6 f\n"
    after = {task.key: task.after for task in sandboxed(text).tasks}
    assert after == {"T1": (), "T2": ("T1",), "T3": ("T2",), "T4": ("T1",), "T5": ("T3", "T4"), "T6": ("T5",)}


@pytest.mark.parametrize("tick", [tick_boxes, tick_prd], ids=["boxes", "prd"])
def test_ticking_takes_linear_time(tick: Callable[..., Any]) -> None:
    def seconds(count: int) -> float:
        written = "".join(f"- [ ] T{number} do\n" for number in range(count))
        if tick is tick_prd:
            written = json.dumps([{"id": f"T{number}", "title": "do"} for number in range(count)])
        files, wanted = {"list": written.encode()}, {f"T{number}" for number in range(count)}
        began = time.thread_time()
        (ticked,) = tick(files, wanted).values()
        took = time.thread_time() - began
        assert ticked.count(b"[x]") + ticked.count(b'"passes": true') == count
        return took

    assert any(seconds(30_000) / seconds(3_000) < 30 for _ in range(3))  # 10 if it is linear, 100 if not


def test_reading_a_chain_of_dependencies_takes_linear_time() -> None:
    def seconds(count: int) -> float:
        written = "".join(f"- [ ] T{number} do\n  after: T{number + 1}\n" for number in range(count))
        began = time.thread_time()
        assert sandboxed(written).tasks[0].after == ("T1",)
        return time.thread_time() - began

    assert any(seconds(5_000) / seconds(500) < 30 for _ in range(3))  # 10 if it is linear, 100 if not


@pytest.mark.parametrize("written", ["9" * 5000, '"²"', '"--5"', "Infinity", "NaN", f'"{"9" * 5000}"'])
def test_any_value_of_a_priority_can_be_read(written: str) -> None:
    files = {"prd.json": f'[{{"id": 1, "title": "a", "priority": {written}}}]'.encode()}
    with suppress(UserError):
        assert read_prd(files).tasks[0].priority == 0


@pytest.mark.parametrize("written", ["[" * 3000, "2020-99-99", "9" * 5000])
def test_invalid_front_matter_is_reported(written: str) -> None:
    reading = read_folder({"tasks/a.md": f"---\nid: {written}\n---\n".encode()})
    assert reading.problems == ("tasks/a.md:2: the front matter cannot be parsed",)


def test_front_matter_with_aliases_is_reported_and_not_expanded() -> None:
    """Nested YAML aliases expand to more than the memory holds."""
    tens = "\n".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 12))
    for name in ("id", "title", "dependencies", "check"):
        reading = read_folder({"a.md": f"---\nid: 1\na0: &a0 [x]\n{tens}\n{name}: *a11\n---\n".encode()})
        assert reading.problems == ("a.md:2: the front matter cannot be parsed",)


def test_front_matter_of_more_than_64_KB_is_reported_and_not_parsed() -> None:
    front = "".join(f"k{number}: v\n" for number in range(10_000))
    reading = read_folder({"a.md": f"---\nid: 1\n{front}---\nwords\n".encode()})
    assert reading.tasks == ()
    assert reading.problems == ("a.md:1: the front matter is longer than 64 KB",)


def test_the_context_of_a_plan_is_cut_if_it_has_many_tasks() -> None:
    listed = "".join(f"- [ ] T{number} a\n" for number in range(20_000))
    tasks = read_boxes({"p.md": f"# Plan: x\n\n{'The goal. ' * 1000}\n## Tasks\n{listed}".encode()}).tasks
    assert sum(len(task.text) for task in tasks) < 20_000_000
    assert "The goal." in tasks[-1].text


def test_too_many_dependencies_between_phases_are_reported() -> None:
    first, second = ("".join(f"- [ ] {name}{at} a [P]\n" for at in range(9000)) for name in "AB")
    reading = sandboxed(f"## Phase 1\n{first}## Phase 2\n{second}")
    (problem,) = reading.problems
    assert problem.endswith("put one without [P] between them")
    assert not sandboxed(f"## Phase 1\n{first}- [ ] Z1 all\n## Phase 2\n{second}").problems


def test_a_single_dependency_may_be_a_string() -> None:
    (task,) = read_folder({"tasks/a.md": b"---\nid: 1\ndependencies: 5\n---\n"}).tasks
    assert task.after == ("5",)


def test_the_numbers_of_openspec_are_keys() -> None:
    assert keys(sandboxed("## 1. Implementation\n- [ ] 1.1 Create schema\n- [x] 1.2 Add endpoint\n")) == ["1.1", "1.2"]


PRD = """{
  "project": "shop", "branchName": "ralph/shop",
  "userStories": [
    {"id": "US-001", "title": "Cart", "description": "As a buyer …", "acceptanceCriteria": ["it counts"],
     "priority": 2, "passes": false, "notes": "\\u00e9 \\ud83d"},
    { "id" : "US-002",
      "title": "Till",
      "dependsOn": ["US-001"],
      "priority": 1 }
  ]
}
"""


def test_a_prd_is_read_story_by_story() -> None:
    first, second = read_prd({"prd.json": PRD.encode()}).tasks
    assert (first.key, first.title, first.done, first.priority) == ("US-001", "Cart", False, 2)
    assert first.text.startswith("Cart\n\nAs a buyer …")
    assert "- it counts" in first.text
    assert second.after == ("US-001",)


def test_a_ticked_story_passes_and_nothing_else_changes() -> None:
    ticked = tick_prd({"prd.json": PRD.encode()}, {"US-001"})["prd.json"].decode()
    assert ticked == PRD.replace('"passes": false', '"passes": true')
    added = tick_prd({"prd.json": PRD.encode()}, {"US-002"})["prd.json"].decode()
    assert json.loads(added)["userStories"][1]["passes"] is True
    assert added.replace(',\n      "passes": true', "").replace(', "passes": true', "") == PRD


PLAIN = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_the_position_of_every_json_value_is_found(document: object) -> None:
    for text in (json.dumps(document), json.dumps(document, indent=3, ensure_ascii=False)):
        wanted = dict(values_in(document))
        found = spans(text, wanted)
        assert found.keys() == {path for path in wanted if len(path) <= MAX_DEPTH}
        for path, (start, end, last) in found.items():
            assert json.loads(text[start:end]) == wanted[path]
            assert not text[last or start + 1 : end - 1].strip() or not isinstance(wanted[path], list | dict)


def values_in(document: object, path: JsonPath = ()) -> Iterator[tuple[JsonPath, object]]:
    """Yield every value of a document with its path."""
    yield path, document
    steps = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for step, value in steps:
        yield from values_in(value, (*path, step))


TASKMASTER = {
    "master": {
        "tasks": [
            {"id": 1, "title": "Init", "status": "done", "dependencies": [], "priority": "high", "subtasks": []},
            {
                "id": 2,
                "title": "Core",
                "description": "The core",
                "details": "How",
                "testStrategy": "unit",
                "status": "pending",
                "dependencies": [1],
                "priority": "low",
                "subtasks": [{"id": 1, "title": "part", "status": "pending", "description": "x"}],
            },
            {"id": 3, "title": "Not now", "status": "deferred", "dependencies": [2], "priority": "medium"},
        ],
        "metadata": {},
    }
}


@pytest.mark.parametrize("document", [TASKMASTER, TASKMASTER["master"]])
def test_task_master_files_are_read_with_and_without_tags(document: object) -> None:
    text = json.dumps(document, indent=2)
    assert is_taskmasters(document)
    tasks = read_taskmaster({"tasks.json": text.encode()}).tasks
    assert [(task.key, task.done, task.after, task.priority) for task in tasks] == [
        ("1", True, (), -1),
        ("2", False, ("1",), 1),
        ("3", True, ("2",), 0),
    ]
    ticked = tick_taskmaster({"tasks.json": text.encode()}, {"2"})["tasks.json"].decode()
    assert ticked == text.replace('"status": "pending"', '"status": "done"')


TASK = """---
id: task-{n}
title: 'Task number {n}'
status: To Do
assignee: []
labels: [x]
dependencies: {after}
priority: high
---

## Description

<!-- SECTION:DESCRIPTION:BEGIN -->
Do it.
<!-- SECTION:DESCRIPTION:END -->

- [ ] #1 it works
"""


def test_a_folder_of_backlog_md_is_read_file_by_file(tmp_path: Path) -> None:
    for number, after in ((1, "[]"), (2, "[TASK-1]"), (10, "[task-3]")):
        folder = tmp_path / "backlog" / ("tasks" if number != 3 else "completed")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"task-{number} - Task.md").write_text(TASK.format(n=number, after=after))
    done = tmp_path / "backlog" / "completed"
    done.mkdir()
    (done / "task-3 - Old.md").write_text(TASK.format(n=3, after="[]").replace("To Do", "Done"))
    (tmp_path / "backlog" / "tasks" / "readme.md").write_text("# Tasks\n")
    source = find_backlog("backlog", tmp_path, tmp_path)
    tasks = require_valid(source.read(), "backlog").tasks
    assert [(task.key, task.after, task.done) for task in tasks] == [
        ("task-1", (), False),
        ("task-2", ("task-1",), False),
        ("task-3", (), True),
        ("task-10", ("task-3",), False),
    ]
    assert tasks[0].text == "Task number 1\n\n## Description\n\nDo it.\n\n- [ ] #1 it works"
    (name,) = (path for path in source._contents() if "task-1 " in path)
    data = source._contents()[name]
    assert source.ticked({name: data}, {"task-1"}) == {name: data.replace(b"status: To Do", b"status: Done")}


def test_a_new_status_keeps_quotes_and_line_ending() -> None:
    data = b'---\r\nid: task-1\r\nstatus: "In Progress" # mine\r\ntitle: x\r\n---\r\nbody status: To Do\r\n'
    assert tick_folder({"a.md": data}, {"task-1"})["a.md"] == data.replace(b'"In Progress"', b'"Done"')


def test_an_issue_becomes_a_goal_and_its_commands_are_ignored() -> None:
    body = "Please.\n\ncheck: rm -rf /\nagent: evil\nafter: #3, #99\ntouches: src/**\nmax-cost: 99999"
    issues = [{"number": 12, "title": "Dark mode", "body": body}, {"number": 3, "title": "First", "body": None}]
    first, second = read_issues(json.dumps(issues).encode()).tasks
    assert (first.key, second.key, second.after) == ("3", "12", ("3",))
    assert (second.checks, second.agent, second.max_cost) == ((), "", None)
    assert f"issue>\nDark mode\n\n{body}\n</" in second.text
    assert find_backlog("github:", Path(), None).closing("12") == "Closes #12"


def test_pages_of_issues_are_joined_without_pull_requests() -> None:
    pages = [
        [{"number": 1, "title": "One", "body": ""}],
        [{"number": 2, "title": "Two", "body": "", "pull_request": {}}],
    ]
    for said in ("".join(map(json.dumps, pages)), "\n".join(map(json.dumps, pages)), json.dumps(pages[0] + pages[1])):
        assert [task.key for task in read_issues(said.encode()).tasks] == ["1"]
    with pytest.raises(UserError, match="#2 is a pull request"):
        read_issues(json.dumps(pages[1][0]).encode())
    for broken in (b"{", b"[1]", b'[{"number": 1}]', b"\xff"):
        with pytest.raises(UserError, match="cannot parse the answer of gh"):
            read_issues(broken)


def test_beads_come_after_the_beads_that_block_them() -> None:
    listed = [
        {"id": "bd-a1", "title": "One", "description": "d", "status": "open", "priority": 1, "issue_type": "task"},
        {
            "id": "bd-b2",
            "title": "Two",
            "status": "in_progress",
            "priority": 0,
            "dependencies": [
                {"issue_id": "bd-b2", "depends_on_id": "bd-a1", "type": "blocks"},
                {"issue_id": "bd-b2", "depends_on_id": "bd-e0", "type": "parent-child"},
            ],
        },
        {"id": "bd-e0", "title": "Epic", "status": "open", "issue_type": "epic"},
    ]
    tasks = read_beads(json.dumps(listed).encode()).tasks
    assert [(task.key, task.after, task.priority) for task in tasks] == [("bd-a1", (), 1), ("bd-b2", ("bd-a1",), 0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing here", "T.md names no task"),
        ("- [ ] T1 a\n- [ ] T1 b\n", "T.md:2: the key T1 is taken by T.md:1"),
        ("- [ ] T1 a\n- [ ] t1 b\n", "T.md:2: the key t1 is taken by T.md:1"),
        ("- [ ] T1 a\n  after: T9\n", "T.md:1: T1 comes after T9, which is not in the list"),
        ("- [ ] T1 a\n  after: T2\n- [ ] T2 b\n  after: T1\n", "T1 → T2 → T1: each comes after the next"),
        ("- [ ] T1 a\n  max-cost: lots\n", "T.md:2: max-cost: 'lots' is not an amount"),
        ("- [ ] T1 a\n  check:\n", "T.md:2: check: is empty"),
        ("- [ ] T1 a\n  check:\n- [ ] T1 b", r"and 1 more"),
    ],
)
def test_problems_of_a_backlog_name_the_line(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        require_valid(sandboxed(text), "T.md")


def test_invalid_json_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "prd.json").write_text('{\n"userStories": [\n')
    with pytest.raises(UserError, match=r"prd.json:\d: invalid JSON"):
        find_backlog("prd.json", tmp_path, None)


@given(st.text())
def test_a_key_can_always_be_part_of_a_branch(word: str) -> None:
    for key in (key_of(word), slug(word)):
        if key:
            name = f"refs/heads/ralph/x/{key}"
            assert not any(c in name for c in " ~^:?*[\\\x7f")
            assert not any(ord(c) < 32 for c in name)
            assert ".." not in name
            assert not name.endswith((".lock", ".", "/"))
            assert not key.startswith((".", "-"))


def test_git_accepts_keys_as_branch_names() -> None:
    for word in ("@{x}", "a.lock", "a..b", "x@{y", "..", "T1.lock.lock", "a~b^c:d?e*f[g\\h"):
        if key := key_of(word):
            subprocess.run(["git", "check-ref-format", f"refs/heads/ralph/x/{key}"], check=True)


@pytest.mark.parametrize("word", ["T012", "1.2", "hot1", "US-003", "bd-12", "12", "#12", "T1a"])
def test_words_that_look_like_an_id_are_recognised(word: str) -> None:
    assert is_id(word)


@pytest.mark.parametrize("word", ["Add", "2FA", "3rd", "e.g.", "1-click-buy"])
def test_other_words_are_not_ids(word: str) -> None:
    assert not is_id(word)


@pytest.mark.parametrize("name", ["tasks.md", "prd.json", "tasks/tasks.json"])
def test_a_folder_is_searched_for_its_backlog(tmp_path: Path, name: str) -> None:
    path = tmp_path / "specs" / name
    path.parent.mkdir(parents=True)
    path.write_text(
        "- [ ] T1 a" if name.endswith("md") else '{"tasks": [{"id": 1, "title": "a", "status": "pending"}]}'
    )
    assert find_backlog("specs", tmp_path, tmp_path).paths == (f"specs/{name}",)


def test_a_path_without_a_backlog_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for word, said in (
        ("gone.md", "gone.md not found"),
        ("empty", "no backlog found in"),
        ("github:x=1", "github:x=1"),
    ):
        with pytest.raises(UserError, match=said):
            find_backlog(word, tmp_path, tmp_path)


def test_a_backlog_outside_the_repository_has_no_path_in_it(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "T.md").write_text("- [ ] T1 a")
    source = find_backlog(str(tmp_path / "T.md"), tmp_path / "repo", tmp_path / "repo")
    assert (source.paths, [task.key for task in source.read().tasks]) == ((), ["T1"])
    source.tick_on_disk({"T1"})
    assert (tmp_path / "T.md").read_text() == "- [x] T1 a"


def test_the_stamp_changes_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "T.md").write_text("- [ ] T1 a")
    source = find_backlog("T.md", tmp_path, tmp_path)
    before = source.stamp()
    assert source.stamp() == before
    (tmp_path / "T.md").write_text("- [ ] T1 ab")
    assert source.stamp() != before
