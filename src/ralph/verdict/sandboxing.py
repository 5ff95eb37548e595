"""What the sandbox of a run contains: programs, logins and settings of its agents. And what can be reached from it: the
hosts of their models.

Everything else of the user stays outside, except what the settings allow.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from shutil import copy2

from msgspec.structs import replace

from ralph import agents
from ralph.agents.protocol import Choice, SandboxNeeds
from ralph.errors import UserError
from ralph.files import read_head, state_folder
from ralph.process.program import find_program
from ralph.sandbox.discovery import AgentState, SandboxRequest, refuse_whole_machine
from ralph.sandbox.network import Reachable, parse_host
from ralph.sandbox.sandbox import Sandbox, find_bubblewrap, open_sandbox
from ralph.settings import Settings
from ralph.verdict.context import Context
from ralph.verdict.exam_commands import hidden_paths

_MOST_SETTINGS = 1 << 20  # bytes of a settings file that are searched for URLs


@contextmanager
def open_run_sandbox(context: Context, chosen: Sequence[Choice], sealed: bool = False) -> Iterator[Sandbox]:
    """Create and test the sandbox of a run, and close it afterwards."""
    request = replace(sandbox_request(context, chosen), sealed=sealed)
    hosts = reachable_hosts(context.settings, chosen, context.env)
    folder, run_id = _sandbox_folder(context), context.folder.id
    sandbox = open_sandbox(request, folder, run_id, hosts, context.keeper, namespace=context.namespace)
    try:
        # Files that agents replace, such as their settings. Changes stay in the sandbox.
        for path in [path for choice in chosen if choice.module.SANDBOX for path in choice.module.SANDBOX.copied]:
            source, target = _at_home(path, context.env), request.private_home + path.removeprefix("~")
            with suppress(FileNotFoundError):
                if not os.path.exists(target) or os.stat(source).st_mtime > os.stat(target).st_mtime:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    copy2(source, target)
        yield sandbox
    finally:
        sandbox.close()


def _sandbox_folder(context: Context) -> str:
    """Return the folder for the sandboxes of this workspace, in ralph's state folder."""
    path = os.path.realpath(context.workspace)
    name = f"{os.path.basename(path)[:40]}-{sha256(os.fsencode(path)).hexdigest()[:10]}"
    return os.path.join(state_folder(context.env, "sandbox"), name)


def sandbox_request(context: Context, chosen: Sequence[Choice]) -> SandboxRequest:
    """Return what the sandbox of this run needs. Creates nothing."""
    choice_of_user, env, root = context.settings.sandbox, context.env, str(context.root)
    task = os.path.realpath(context.task) if context.task else ""
    started = [choice.module.invocation(choice.request()).argv for choice in chosen]
    needs = [choice.module.SANDBOX for choice in chosen if choice.module.SANDBOX]
    states = [_agent_state(need, path, context) for need in needs if (path := _state_folder(need, env))]
    if task:
        states.append(AgentState(task, ("runs",)))
    return SandboxRequest(
        workspace=root,
        env=env,
        records=os.path.dirname(state_folder(env, "runs")),
        private_home=f"{_sandbox_folder(context)}/home",
        private_tmp=f"{env.get('TMPDIR') or '/tmp'}/ralph-{context.folder.id}",
        ralph_folders=(task,) if task else (),
        run_folder=str(context.folder.path),
        programs=tuple((find_program(words[0], env, root), *words[1:]) for words in started),
        states=tuple(states),
        agent_files=tuple(_at_home(path, env) for need in needs for path in need.shown),
        read=choice_of_user.read,
        write=choice_of_user.write,
        hide=(*choice_of_user.hide, *hidden_paths(context.settings, context.workspace)),
    )


def reachable_hosts(
    settings: Settings, chosen: Sequence[Choice], env: Mapping[str, str]
) -> tuple[Reachable, ...] | None:
    """Return the hosts that the sandbox can reach, including those of the models; None if it can reach all."""
    net = settings.sandbox.net.strip()
    if net == "on":
        return None
    named = [] if net == "off" else [parse_host(text) for text in net.split(",")]
    urls = [url for choice in chosen for url in (*agents.hosts(choice.module, env), *_named_urls(choice, env))]
    return tuple(dict.fromkeys((*named, *map(parse_host, urls))))


def validate_sandbox(settings: Settings, workspace: str, env: Mapping[str, str], is_in_process: bool) -> None:
    """Raise if this run cannot have a sandbox. Creates nothing."""
    refuse_whole_machine(workspace, env)
    find_bubblewrap(env, workspace)
    if is_in_process:
        raise UserError("an agent that runs inside this program cannot be sandboxed", "leave sandbox out")
    if settings.keep_children:
        raise UserError("--keep-children does not work with --sandbox: nothing outlives a sandbox", "leave one out")


def _state_folder(need: SandboxNeeds, env: Mapping[str, str]) -> str:
    """Return the folder with the agent's login; empty if there is none: then the agent creates one inside."""
    named = env.get(need.variable, "") if need.variable else ""
    folder = os.path.join(named, need.within).rstrip("/") if named else _at_home(need.state, env)
    return os.path.abspath(folder) if os.path.isdir(folder) else ""


def _agent_state(need: SandboxNeeds, folder: str, context: Context) -> AgentState:
    """Return what a sandbox shows of the agent's folder. Its private folders last as long as the private home."""
    private = f"{_sandbox_folder(context)}/{os.path.basename(need.state)}"
    project = need.project(os.path.realpath(context.root)) if need.project else ""
    return AgentState(
        folder,
        need.fixed,
        private={name: f"{private}/{name}" for name in need.private},
        shared=(project,) if project else (),
    )


def _at_home(path: str, env: Mapping[str, str]) -> str:
    return (env.get("HOME") or os.path.expanduser("~")) + path.removeprefix("~")


def _named_urls(choice: Choice, env: Mapping[str, str]) -> Iterator[str]:
    """Yield URLs on the agent's command line, and base URLs of models in its settings."""
    for word in (*choice.command, *choice.flags):
        yield from re.findall(r"https?://[\w.:\[\]-]+", word)
    need = choice.module.SANDBOX
    folder = _state_folder(need, env) if need else ""
    files = [f"{folder}/{name}" for name in need.fixed] if need and folder else []
    files += [_at_home(path, env) for path in need.copied] if need else []
    for path in files:
        if path.endswith((".json", ".jsonc", ".toml")):
            with suppress(OSError):
                text = read_head(path, _MOST_SETTINGS).decode("utf-8", "replace")
                yield from re.findall(r"(?i)base_?url[\"']?\s*[:=]\s*[\"'](https?://[^\"'\s]+)", text)
