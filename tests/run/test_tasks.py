import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.model import Task
from ralph.core.tasks_file import NO_TEXT
from ralph.errors import UserError
from ralph.run.workspace import read_tasks

MARKDOWN: dict[str, list[tuple[str, bool]]] = {
    "- [ ] one\n- [x] two\n* [X] three\n+ [ ] four": [("one", False), ("two", True), ("three", True), ("four", False)],
    "1. [ ] one\n2) [x] two": [("one", False), ("two", True)],
    "- [x] outer\n  - [ ] inner\n    1. [x] innermost\n\t- [ ] tab": [
        ("outer", True),
        ("inner", False),
        ("innermost", True),
        ("tab", False),
    ],
    "> - [ ] quoted": [("quoted", False)],
    "- [ ] one\r\n- [x] two\r\n": [("one", False), ("two", True)],
    "\ufeff- [ ] after a mark": [("after a mark", False)],
    "- [~] halfway\n- [-] given up\n- [!] stuck\n- [] sloppy": [
        ("halfway", False),
        ("given up", False),
        ("stuck", False),
        ("sloppy", False),
    ],
    "- [ ]\n- [x]": [(NO_TEXT, False), (NO_TEXT, True)],
    "- [ ] **bold** `code` [link](x)": [("**bold** `code` [link](x)", False)],
    "- [ ] real\n```\n- [ ] example\n```\n- [x] more": [("real", False), ("more", True)],
    "~~~~ md\n- [ ] example\n~~~\n```\n- [ ] example\n~~~~\n- [ ] real": [("real", False)],
    "- item\n  ```sh\n  - [ ] example\n  ```\n- [ ] real": [("real", False)],
    "```inline``` text\n- [ ] real": [("real", False)],
    "- [ ] real\n```\n- [ ] never closed": [("real", False)],
    "<!--\n- [ ] example\n-->\n- [ ] real": [("real", False)],
    "- [ ] real\n- [link](x)\n- [a] footnote\n- [1] footnote\n-[ ] no\n[ ] no\n- [ ]no\ntext - [ ] no": [
        ("real", False)
    ],
    "- [ ] with \x1b[31mcolour\x1b[0m": [("with colour", False)],
}


@pytest.mark.parametrize("text", MARKDOWN)
def test_checkboxes_are_tasks(tmp_path: Path, text: str) -> None:
    path = tmp_path / "TODO.md"
    path.write_bytes(text.encode())
    assert read_tasks(path) == tuple(Task(*expected) for expected in MARKDOWN[text])


JSON: list[tuple[object, list[Task]]] = [
    ([{"title": "one", "passes": True}, {"title": "two", "passes": False}], [Task("one", True), Task("two", False)]),
    ({"userStories": [{"id": "US-1", "title": "one", "description": "long", "passes": True}]}, [Task("one", True)]),
    ({"stories": [{"description": "one", "passes": False}]}, [Task("one", False)]),
    (
        {"features": [{"name": "one", "passes": True}], "tasks": [{"name": "two"}]},
        [Task("two", False), Task("one", True)],
    ),
    ([{"title": "x", "passes": "true"}, {"title": "y", "passes": 1}], [Task("x", False), Task("y", False)]),
    ([{"title": "x", "passes": False, "status": "done"}], [Task("x", False)]),
    ([{"title": "x", "status": "Done"}, {"title": "y", "status": "pending"}], [Task("x", True), Task("y", False)]),
    (
        [{"title": "x", "passes": False, "status": "blocked"}, {"title": "y", "status": "FAILED"}],
        [Task("x", False, failed=True), Task("y", False, failed=True)],
    ),
    ([{"title": "x", "done": True}, {"title": "y", "completed": True}], [Task("x", True), Task("y", True)]),
    ([{"passes": False}, "words", 3, None, []], [Task(NO_TEXT, False)]),
    (
        {"tasks": [{"title": "outer", "status": "done", "subtasks": [{"title": "inner", "status": "todo"}]}]},
        [Task("outer", True), Task("inner", False)],
    ),
    ({"features": [{"stories": [{"title": "in a group", "passes": True}]}]}, [Task("in a group", True)]),
    ([{"title": "two\nlines"}], [Task("two lines", False)]),
]


@pytest.mark.parametrize(("content", "tasks"), JSON)
def test_entries_of_a_list_in_json_are_tasks(tmp_path: Path, content: object, tasks: list[Task]) -> None:
    path = tmp_path / "prd.json"
    path.write_text(json.dumps(content))
    assert read_tasks(path) == tuple(tasks)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("TODO.md", "", "names no task"),
        ("TODO.md", "just text", "names no task"),
        ("TODO.md", "```\n- [ ] example\n```", "names no task"),
        ("prd.json", "", "is not JSON"),
        ("prd.json", "[", "is not JSON: Expecting value: line 1 column 2"),
        ("prd.json", "[" * 100_000, "is not JSON"),
        ("prd.json", "[]", "names no task"),
        ("prd.json", "3", "names no task"),
        ("prd.json", '{"tasks": {}}', "names no task"),
        ("prd.json", '["words"]', "names no task"),
    ],
)
def test_a_file_without_tasks_is_an_error(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read_tasks(tmp_path / name)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_tasks(tmp_path / "TODO.md")
    with pytest.raises(UserError, match="Is a directory"):
        read_tasks(tmp_path)


@given(st.binary(), st.sampled_from(["x.md", "x.json"]))
def test_any_content_gives_tasks_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    with suppress(UserError):
        assert read_tasks(path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(st.sampled_from(["tasks", "title", "passes", "status", "stories", "done", "subtasks"]), x)
        ),
    )
)
def test_any_json_gives_tasks_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(content))
    with suppress(UserError):
        assert read_tasks(path)
