"""The request of a run: stored in the user's state folder as `run.json`, and read back when it is resumed."""

import os
from json import dumps, loads

import msgspec
from msgspec import Struct

from ralph.errors import UNREADABLE, UserError
from ralph.files import decode_file, read_given, save_file
from ralph.sandbox.discovery import resolve_paths
from ralph.sandbox.mounts import is_inside
from ralph.settings import Settings, convert_stored
from ralph.store.folder import order_folder, read_order

REQUEST_FILE = "run.json"


class RunRequest(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run has to do, and how.

    - `goal_file`, if given, is read again before every turn, because people edit it during a run. `goal_text` is then
      only the run's title.
    - `task` is the folder of the task that the run supervises.
    - `work` and `backlog_task` name the backlog task that it works on.
    - `tells_claim`: the prompt explains how to claim, unless the goal does.
    - `looks_only`: only the agent's answer counts, and its changes are undone.
    - `issue` is `OWNER/NAME#N`; `heading` is the run's title, if it isn't the goal.
    - `pr` is `open` for a pull request with the result, `draft` for one even if the run is not done, or `wait` if the
      host's checks have to pass as well.
    - `config` is the settings file given with --config.
    - `green_is_enough`: green checks count as a claim once the agent has nothing to add.
    """

    settings: Settings
    workspace: str
    goal_text: str = ""
    goal_file: str = ""
    one_shot: bool = False
    unlimited: bool = False
    task: str = ""
    work: str = ""
    backlog_task: str = ""
    tells_claim: bool = False
    looks_only: bool = False
    issue: str = ""
    heading: str = ""
    pr: str = ""
    config: str = ""
    green_is_enough: bool = False

    @property
    def title(self) -> str:
        """The run's name for people."""
        return self.heading or self.goal_text or self.goal()

    def goal(self) -> str:
        """Return the goal as it is now."""
        if not self.goal_file:
            return self.goal_text
        refuse_hidden_link(self.goal_file, self.settings, self.workspace, self.task)
        try:
            text = decode_file(read_given(self.goal_file), self.goal_file)
        except OSError as error:
            raise UserError(f"cannot read {self.goal_file}: {error.strerror}", "name a file with the goal") from None
        if not text.strip():
            raise UserError(f"the goal is empty: {self.goal_file}", "write what to achieve into it")
        return text


def refuse_hidden_link(path: str, settings: Settings, *folders: str) -> None:
    """Raise if `path` is a link, made in a folder where a sandboxed agent can write, to a file that its sandbox hides.

    ralph reads the goal and the tasks outside the sandbox, and puts them into the next prompt. `folders` are
    the workspace and the task folder, where the agent can write.
    """
    if not settings.sandbox.enabled:
        return
    home, here = os.path.expanduser("~"), folders[0]
    writable = [*filter(None, folders), *resolve_paths(settings.sandbox.write, here, home)]
    hidden = [*resolve_paths(settings.sandbox.hide, here, home)]
    real, target = [os.path.realpath(folder) for folder in writable], os.path.realpath(path)
    is_theirs = is_inside(os.path.abspath(path), (*writable, *real))
    if is_theirs and (not is_inside(target, real) or is_inside(target, hidden)):
        raise UserError(
            f"{path} is a link to a file that the sandbox hides: {target}",
            "replace the link with a file, or name the file it leads to",
        )


def encode(request: RunRequest) -> bytes:
    try:
        return msgspec.json.format(msgspec.json.encode(request)) + b"\n"
    except UnicodeEncodeError:  # a goal that isn't valid UTF-8: `json` can write it
        return dumps(msgspec.to_builtins(request), indent=2).encode() + b"\n"


def save(run_id: str, data: bytes) -> None:
    """Write an encoded request to the state folder, where no agent works."""
    save_file(f"{order_folder(run_id, os.environ)}/{REQUEST_FILE}", data)


def read(run_id: str) -> RunRequest:
    """Return the request of a run, or raise a UserError that says why there is none."""
    path = f"{order_folder(run_id, os.environ)}/{REQUEST_FILE}"
    try:
        return convert_stored(loads(read_order(path, run_id)), RunRequest)
    except UNREADABLE as error:
        raise UserError(f"cannot parse {path}: {error}", "was it written by another version of ralph?") from None
