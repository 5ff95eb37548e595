"""What does a run take with it into its box? Programs, logins and settings of its agents, the hosts of their models,
and what people allow besides. All else of a person's stays outside."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph import agents
from ralph.agents.protocol import BoxNeeds
from ralph.errors import UserError
from ralph.files import read_head, state_folder
from ralph.processes.box import find_bubblewrap, is_inside
from ralph.processes.network import Reachable, host
from ralph.processes.program import find_program
from ralph.processes.sandbox import AgentState, Sandbox, Wanted, open_sandbox, refuse_what_holds_all
from ralph.settings import Settings

if TYPE_CHECKING:
    from ralph.run.agents import Choice
    from ralph.run.context import Context

_LONGEST_SETTINGS = 1 << 20


class RunPlace(Struct, frozen=True):
    """Where a run works (`root`), whose it is (`workspace`), and where it keeps its things."""

    root: str
    workspace: str
    run_id: str
    run_folder: str = ""
    task: str = ""

    def folder(self, env: Mapping[str, str]) -> str:
        """Where the box of a workspace has its own things, in ralph's state folder."""
        from hashlib import sha256

        path = os.path.realpath(self.workspace)
        return f"{state_folder(env, 'box')}/{os.path.basename(path)[:40]}-{sha256(os.fsencode(path)).hexdigest()[:10]}"


def enclose(context: "Context", settings: Settings, chosen: "Sequence[Choice]", workspace: str) -> Sandbox:
    """The box of a run, tried and found sound."""
    task = str(context.task) if context.task else ""
    place = RunPlace(str(context.root), workspace, context.folder.id, str(context.folder.path), task)
    wanted = wanted_by(settings, chosen, context.env, place)
    reached = allowed(settings, chosen, context.env)
    made = open_sandbox(wanted, place.folder(context.env), place.run_id, reached, context.keeper)
    for choice in chosen:
        if choice.module.BOX:
            _copy(choice.module.BOX.copied, context.env, wanted.private_home)
    return made


def wanted_by(settings: Settings, chosen: "Sequence[Choice]", env: Mapping[str, str], place: RunPlace) -> Wanted:
    """What the box of this run has to hold. Nothing is made yet."""
    box, folder = settings.sandbox, place.folder(env)
    needs = [choice.module.BOX for choice in chosen if choice.module.BOX]
    states = [AgentState(path, need.fixed) for need in needs if (path := _state(need, env))]
    if place.task:
        states.append(AgentState(os.path.realpath(place.task), ("runs",)))
    return Wanted(
        workspace=place.root,
        env=env,
        records=os.path.dirname(state_folder(env, "runs")),
        private_home=f"{folder}/home",
        private_tmp=f"{env.get('TMPDIR') or '/tmp'}/ralph-{place.run_id}",
        ours=(os.path.realpath(place.task),) if place.task else (),
        run_folder=place.run_folder,
        programs=tuple(_words(choice, env, place.root) for choice in chosen),
        states=tuple(states),
        configuration=tuple(_at_home(path, env) for need in needs for path in need.shown),
        read=box.read,
        write=box.write,
        hide=box.hide,
    )


def allowed(settings: Settings, chosen: "Sequence[Choice]", env: Mapping[str, str]) -> tuple[Reachable, ...] | None:
    """Who may be reached from inside; None: everybody. The models always may."""
    net = settings.sandbox.net.strip()
    if net == "on":
        return None
    named = [] if net == "off" else [host(text) for text in net.split(",")]
    found = [url for choice in chosen for url in (*agents.hosts(choice.module, env), *_named(choice, env))]
    return tuple(dict.fromkeys((*named, *map(host, found))))


def without_the_work(path: str, *folders: str) -> str:
    """A search path less what an agent can put programs into: ralph itself starts git and others, outside."""
    real = [os.path.realpath(folder) for folder in folders]
    entries = [entry for entry in path.split(os.pathsep) if os.path.isabs(entry)]
    return os.pathsep.join(entry for entry in entries if not is_inside(os.path.realpath(entry), real))


def refuse_what_has_no_box(settings: Settings, workspace: str, env: Mapping[str, str], is_in_process: bool) -> None:
    """Says before anything is made that this run cannot have a box."""
    refuse_what_holds_all(workspace, env)
    find_bubblewrap(env, workspace)
    if is_in_process:
        raise UserError("an agent that runs inside this program cannot be put into a box", "leave sandbox out")
    if settings.keep_children:
        raise UserError("nothing outlives its box, so --keep-children cannot be had with --sandbox", "leave one out")


def _words(choice: "Choice", env: Mapping[str, str], cwd: str) -> tuple[str, ...]:
    argv = choice.module.invocation(choice.request()).argv
    return (find_program(argv[0], env, cwd), *argv[1:])


def _state(need: BoxNeeds, env: Mapping[str, str]) -> str:
    """The folder in which the agent keeps its login, if there is one: else it begins with one of its own."""
    named = env.get(need.variable, "") if need.variable else ""
    folder = os.path.join(named, need.within).rstrip("/") if named else _at_home(need.state, env)
    return os.path.abspath(folder) if os.path.isdir(folder) else ""


def _at_home(path: str, env: Mapping[str, str]) -> str:
    return (env.get("HOME") or os.path.expanduser("~")) + path.removeprefix("~")


def _copy(paths: Sequence[str], env: Mapping[str, str], home: str) -> None:
    """Copies of files that agents change at any time: what is changed inside stays inside."""
    from shutil import copy2

    for path in paths:
        source, target = _at_home(path, env), home + path.removeprefix("~")
        with suppress(FileNotFoundError):
            if not os.path.exists(target) or os.stat(source).st_mtime > os.stat(target).st_mtime:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                copy2(source, target)


def _named(choice: "Choice", env: Mapping[str, str]) -> Iterator[str]:
    """URLs on the agent's command line, and those that its own settings call the base of its models."""
    for word in (*choice.command, *choice.flags):
        yield from re.findall(r"https?://[\w.:\[\]-]+", word)
    need = choice.module.BOX
    folder = _state(need, env) if need else ""
    files = [f"{folder}/{name}" for name in need.fixed] if need and folder else []
    files += [_at_home(path, env) for path in need.copied] if need else []
    for path in files:
        if path.endswith((".json", ".jsonc", ".toml")):
            with suppress(OSError):
                text = read_head(path, _LONGEST_SETTINGS).decode("utf-8", "replace")
                yield from re.findall(r"(?i)base_?url[\"']?\s*[:=]\s*[\"'](https?://[^\"'\s]+)", text)
