"""What was asked for? Fixed when a run starts, kept in its `run.json`, and read back when it is resumed."""

from pathlib import Path

import msgspec

from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file, read_given
from ralph.settings import Settings


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`goal_file`, where there is one, is read again before every turn: it may be edited while the run goes on; what
    stands in `goal_text` beside it is only the run's title.
    `task` is the folder of the task that the run supervises; `work` and `item` name the backlog's item that it is for.
    `tells_claim`: the prompt says how to claim, unless the goal does. `looks_only`: the agent's answer is what is
    wanted, and whatever it changes is put back. `issue` is the one that it is about, as `OWNER/NAME#N`,
    `issue_title` what that is called. `pr`: a pull request is made of what it comes to (`open`; `draft`: also where it
    is not done; `wait`: and it is not done before the checks of the host pass). `config` is the settings file that a
    person has named, which the next run may be given, too.
    """

    settings: Settings
    workspace: str
    goal_text: str = ""
    goal_file: str = ""
    agent_args: tuple[str, ...] = ()
    one_shot: bool = False
    unlimited: bool = False
    version: str = ""
    task: str = ""
    work: str = ""
    item: str = ""
    tells_claim: bool = False
    looks_only: bool = False
    issue: str = ""
    issue_title: str = ""
    pr: str = ""
    config: str = ""

    @property
    def title(self) -> str:
        """What people call the run."""
        return self.issue_title or self.goal_text or self.goal()

    def goal(self) -> str:
        if not self.goal_file:
            return self.goal_text
        try:
            text = read_given(self.goal_file).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise UserError(f"cannot read {self.goal_file}: {error.strerror}", "name a file with the goal") from None
        if not text.strip():
            raise UserError(f"the goal is empty: {self.goal_file}", "write what to achieve into it")
        return text


def encode(order: Order) -> bytes:
    try:
        return msgspec.json.format(msgspec.json.encode(order)) + b"\n"
    except UnicodeEncodeError:  # a goal whose bytes are no text: `json` can write them
        from json import dumps

        return dumps(msgspec.to_builtins(order), indent=2).encode() + b"\n"


def read(path: Path) -> Order:
    from json import loads

    try:
        return msgspec.convert(loads(read_file(path)), Order)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}", "this run cannot be resumed; start a new one"
        ) from None
    except UNREADABLE as error:
        raise UserError(f"cannot understand {path}: {error}", "was it written by another version of ralph?") from None
