"""Plans are Markdown that people edit: ralph changes only what it must, and reports problems."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.backlog.backlog_content import require_valid
from ralph.backlog.markdown_backlogs import read_boxes
from ralph.errors import UserError
from ralph.planning.plans import Plan, load_plan, plan_in, save_plan

PLAN = """# Plan: Coupons

A cart takes coupons.

## Assumptions

- Prices are in cents

## Checks

- `make test`

## Tasks

- [ ] T1 Parser: a code is read
  check: `pytest tests/test_code.py`
- [ ] T2 Cart: a code lowers the total
  after: T1
  touches: cart.py

## Questions

- [ ] May coupons be combined?
"""


def test_a_plan_names_its_tasks_checks_and_questions() -> None:
    plan = Plan(PLAN)
    assert plan.problems() == []
    assert plan.questions() == ["May coupons be combined?"]
    assert plan.commands() == ["make test", "pytest tests/test_code.py"]
    assert [task.key for task in plan.read().tasks] == ["T1", "T2"]


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
def test_an_unchanged_plan_is_written_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, more: str, newline: str, mark: str
) -> None:
    path = tmp_path_factory.mktemp("plan") / "PLAN.md"
    data = (mark + PLAN + more).replace("\r", "").replace("\n", newline).encode() + b"\xff\x00 no text"
    path.write_bytes(data)
    plan = load_plan(path)
    assert plan.with_answers({}) == plan
    save_plan(plan, path.with_name("again.md"))
    assert path.with_name("again.md").read_bytes() == data


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_answer_is_added_below_its_question_and_ticks_it(newline: str) -> None:
    plan = Plan(PLAN.replace("\n", newline) + f"  at checkout{newline}- [ ] And gifts?{newline}")
    done = plan.with_answers({"May coupons be combined?": "no,\nnever"})
    said = f"- [x] May coupons be combined?{newline}  at checkout{newline}  Answer: no, never{newline}- [ ] And gifts?"
    assert said in done.text
    assert done.questions() == ["And gifts?"]
    assert done.text.replace(f"  Answer: no, never{newline}", "").replace("[x]", "[ ]") == plan.text


def test_a_plan_with_an_open_question_is_refused() -> None:
    with pytest.raises(UserError, match="answer and tick this question first: May coupons be combined"):
        require_valid(read_boxes({"PLAN.md": PLAN.encode()}), "PLAN.md")


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("# Plan: Coupons", "# Coupons", "on the first line"),
        ("- [ ] T1", "- T1", "T2 comes after T1, which is not in the list"),
        ("  check: `pytest tests/test_code.py`", "  after: T2", "each comes after the next"),
        ("- [ ] T2 Cart", "- [ ] T1 Cart", "the key T1 is taken"),
        ("after: T1", "after: T9", "T2 comes after T9"),
        ("touches: cart.py", "max-cost: much", "not an amount of dollars"),
    ],
)
def test_the_problems_of_a_plan_are_reported(old: str, new: str, wrong: str) -> None:
    assert wrong in Plan(PLAN.replace(old, new)).problems()[0]


def test_a_plan_without_tasks_or_checks_is_invalid() -> None:
    head, _, _ = PLAN.partition("## Tasks")
    assert "no tasks" in Plan(head).problems()[0]
    bare = PLAN.replace("- `make test`\n", "").replace("  check: `pytest tests/test_code.py`\n", "")
    assert "no checks" in Plan(bare).problems()[0]


@pytest.mark.parametrize(
    "answer",
    [
        PLAN,
        f"Here it is.\n\n```markdown\n{PLAN}```\nShall I begin?",
        f"````\n{PLAN}````\n",
        PLAN.replace("\n", "\r\n"),
        f"I looked around.\n\n{PLAN}",
    ],
)
def test_a_plan_with_text_or_a_fence_around_it_is_found_in_an_answer(answer: str) -> None:
    plan = plan_in(answer)
    assert plan
    assert plan.text == PLAN


def test_an_answer_without_a_plan_contains_no_plan() -> None:
    assert plan_in("I would begin with the parser.") is None


def test_a_command_that_is_not_allowed_as_a_check_becomes_a_remark() -> None:
    plan = Plan(PLAN.replace("  touches: cart.py", "  agent: evil")).without_commands({"make test"}.__contains__)
    assert plan.commands() == ["make test"]
    assert "  (not taken as check: pytest tests/test_code.py)" in plan.text
    assert [(task.key, task.agent) for task in plan.read().tasks] == [("T1", ""), ("T2", "")]


@pytest.mark.parametrize("text", [PLAN, PLAN.replace("## Checks\n\n- `make test`\n\n", "")])
def test_the_projects_own_checks_can_be_added(text: str) -> None:
    plan = Plan(text).with_checks(["make test", "make lint"])
    assert sorted(plan.read().checks) == ["make lint", "make test"]
    assert plan.problems() == []
    assert plan.questions() == Plan(text).questions()


def test_a_plan_of_two_megabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PLAN.md").write_bytes(b"x" * (2 << 20))
    with pytest.raises(UserError, match="too large"):
        load_plan(tmp_path / "PLAN.md")
