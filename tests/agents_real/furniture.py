"""Settings with which each agent uses our server as its model, and connects to nothing else.

Each function writes the agent's settings below `home` and returns the environment that goes with them. The command line
can't be used, because ralph starts the agents and does not know about this server. If an agent has a setting for
retries, it is set to give up soon: by default agents retry for minutes.
"""

import json
from collections.abc import Callable
from pathlib import Path

KEY = "sk-made-up-for-the-tests"
Env = dict[str, str]


def put(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def claude(home: Path, url: str) -> Env:
    quiet = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER")
    return {
        **dict.fromkeys((*quiet, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"), "1"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }


CODEX = """
model = "gpt-5.5"
model_provider = "lab"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
[model_providers.lab]
name = "lab"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 1
stream_max_retries = 1
"""


def codex(home: Path, url: str) -> Env:
    put(home / ".codex/config.toml", CODEX.format(url=url))
    return {"OPENAI_API_KEY": KEY}


def opencode(home: Path, url: str) -> Env:
    model = {"name": "lab", "limit": {"context": 200_000, "output": 32_000}}
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "lab", "options": options, "models": {"lab": model}}
    settings = {"model": "lab/lab", "small_model": "lab/lab", "provider": {"lab": provider}}
    put(home / ".config/opencode/opencode.json", settings)
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    return {f"OPENCODE_DISABLE_{what}": "1" for what in off}


SILENT = {
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False},
}


def gemini(home: Path, url: str) -> Env:
    # A named model: with the default one, the agent first asks a router, whose answers have a different format.
    auth = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    general = {**SILENT["general"], "maxAttempts": 1}
    put(home / ".gemini/settings.json", {**SILENT, **auth, "general": general, "model": {"name": "gemini-2.5-pro"}})
    return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": KEY, "GEMINI_CLI_TRUST_WORKSPACE": "true"}


def qwen(home: Path, url: str) -> Env:
    impatient = {"maxRetries": 0, "retryInitialDelayMs": 10, "retryMaxDelayMs": 10}
    auth = {"security": {"auth": {"selectedType": "openai"}}}
    put(home / ".qwen/settings.json", {**SILENT, **auth, "model": {"generationConfig": impatient}})
    return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": "lab"}


def pi(home: Path, url: str) -> Env:
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": KEY, "models": [{"id": "lab"}]}
    put(home / ".pi/agent/models.json", {"providers": {"lab": provider}})
    put(
        home / ".pi/agent/settings.json",
        {"defaultProvider": "lab", "defaultModel": "lab", "retry": {"baseDelayMs": 10}},
    )
    return {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"}


def copilot(home: Path, url: str) -> Env:
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_MODEL": "lab",
    }


def cline(home: Path, url: str) -> Env:
    name = "openai-compatible"
    settings = {"provider": name, "apiKey": KEY, "model": "lab", "baseUrl": f"{url}/v1"}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: entry}}
    put(home / ".cline/data/settings/providers.json", providers)
    return {}


def amp(home: Path, url: str) -> Env:
    put(home / ".config/amp/settings.json", {"amp.updates.mode": "disabled"})
    return {"AMP_URL": url, "AMP_API_KEY": KEY}


def builtin(home: Path, url: str) -> Env:
    put(home / ".config/ralph/settings.json", {"agents": {"builtin": {"model": "lab", "url": url, "wire": "messages"}}})
    return {}


FURNISH: dict[str, Callable[[Path, str], Env]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "gemini": gemini,
    "qwen": qwen,
    "pi": pi,
    "copilot": copilot,
    "cline": cline,
    "amp": amp,
    "builtin": builtin,
}

# How each one is started headless when ralph does not do it. The prompt goes to stdin, or where {prompt} stands.
ALONE: dict[str, str] = {
    "claude": "env IS_SANDBOX=1 claude -p --output-format stream-json --verbose --dangerously-skip-permissions",
    "codex": "codex exec --json --dangerously-bypass-approvals-and-sandbox -",
    "opencode": "opencode run --format json --auto",
    "gemini": "gemini -o stream-json -y",
    "qwen": "qwen -o stream-json -y",
    "pi": "pi --mode json -p",
    "copilot": "copilot --output-format json --allow-all --no-auto-update",
    "cline": "cline --json {prompt}",
    "amp": "amp -x {prompt} --stream-json",
    "builtin": "python -P -m ralph.builtin_agent --model lab --wire messages --url {url}",
}
