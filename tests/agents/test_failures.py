"""What kind of failure is it, and what is none?"""

import pytest

from ralph.agents import module
from ralph.agents.failures import failure, kind_of, stated_in
from ralph.agents.protocol import Request
from ralph.agents.reader import Trouble
from ralph.core.model import Exit

NOW = 1794727000.0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fatal", "Invalid API key · Fix external API key"),
        ("fatal", "Invalid API key · Please run /login"),
        ("fatal", "Failed to authenticate. API Error: 403 Your account does not have access"),
        ("fatal", "There's an issue with the selected model (nope). It may not exist"),
        ("fatal", "unexpected status 401 Unauthorized: invalid x-api-key, url: http://127.0.0.1/v1/responses"),
        ("fatal", "API Error: 404 model: no-such-model"),
        ("fatal", "model: no-such-model"),
        ("fatal", '401 {"type":"error","error":{"type":"authentication_error","message":"key revoked"}}'),
        ("fatal", "Error: Invalid or missing API key. Please check your key"),
        ("fatal", "API Error: 400 API key not valid. Please pass a valid API key."),
        ("fatal", "error: unexpected argument '--full-auto' found"),
        ("fatal", "error: unknown option '--frobnicate'"),
        ("fatal", "No conversation found with session ID: 1234"),
        ("fatal", "No saved session found with ID 1234. Run `qwen --resume` without an ID to choose one."),
        ("fatal", "Error: No session, task, or name matched '1234'."),
        ("fatal", "Not inside a trusted directory and --skip-git-repo-check was not specified."),
        ("fatal", "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons"),
        ("fatal", "Not logged in · Please run /login"),
        ("fatal", "Error: No authentication information found."),
        ("fatal", "No auth type is selected. Please configure an auth type (e.g. via settings or `--auth-type`)"),
        ("fatal", "Please set an Auth method in your ~/.gemini/settings.json or specify one of the following"),
        ("limit", "API Error: Request rejected (429) · This request would exceed your account's rate limit."),
        ("limit", "You've hit your limit · resets 7:17am (UTC)"),
        ("limit", "You’ve hit your usage limit. Upgrade to Pro or try again at 7:20 AM."),
        ("limit", "Claude AI usage limit reached|1794730000"),
        ("limit", "5-hour limit reached ∙ resets 7pm"),
        ("limit", "Quota exceeded. Check your plan and billing details."),
        ("limit", "You exceeded your current quota, please check your plan and billing details."),
        ("limit", "exceeded retry limit, last status: 429 Too Many Requests"),
        ("limit", "Credit balance is too low"),
        ("limit", 'API Error: 400 {"error":{"message":"Your credit balance is too low to access the API"}}'),
        ("limit", '{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"x"}}'),
        ("limit", "403 rate limit exceeded for user 5"),
        ("transient", "API Error: 529 Overloaded. This is a server-side issue, usually temporary"),
        ("transient", "API Error: Connection refused — a firewall or proxy may be blocking it (ECONNREFUSED)"),
        ("transient", "unexpected status 529 <unknown status code>: Overloaded, url: http://127.0.0.1"),
        ("transient", "stream disconnected before completion: stream closed before response.completed"),
        ("transient", "Response stream ended without a finish reason."),
        ("transient", "API Error: Connection error. (cause: fetch failed)"),
        ("transient", "Could not connect to local model provider at http://127.0.0.1:9/v1."),
        ("transient", "API Error: 500 Internal server error"),
        ("transient", '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
        ("ordinary", "prompt is too long: 213345 tokens > 200000 maximum"),
        ("ordinary", "API Error: 400 prompt is too long: 213345 tokens > 200000 maximum"),
        ("ordinary", "Reached maximum number of turns (500)"),
        ("ordinary", "Model returned empty response"),
        ("ordinary", "error TS2304: Cannot find name 'rateLimit'."),
        ("ordinary", "Error: Cannot find module 'ratelimit'"),
        ("ordinary", "Error: Cannot find module 'rate-limit'"),
        ("ordinary", "ModuleNotFoundError: No module named 'ratelimit'"),
        ("ordinary", "Error: 404 Not Found - GET https://registry.example/left-pad"),
        ("ordinary", "E429: some lint rule"),
        ("ordinary", ""),
    ],
)
def test_an_error_is_of_the_kind_that_its_words_say(kind: str, message: str) -> None:
    assert kind_of(message) == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "ordinary"), (401, "fatal"), (402, "limit"), (403, "fatal"), (404, "fatal"), (408, "transient")),
        *((413, "ordinary"), (429, "limit"), (500, "transient"), (503, "transient"), (529, "transient")),
    ],
)
def test_a_status_says_it_without_words(status: int, kind: str) -> None:
    assert kind_of("it went wrong", status) == kind


@pytest.mark.parametrize(
    "output",
    [
        "I added ratelimit==2.2 to the requirements; too many requests are now refused with 429.",
        "The login page says invalid API key until you log in.",
        "Tests: 401 passed, 0 failed",
        "npm warn deprecated rate-limit@1.0: overloaded",
        "handles ECONNREFUSED and usage limit reached|5 gracefully",
        "STOP",
    ],
)
def test_words_in_the_middle_of_a_failed_commands_output_are_no_errors(output: str) -> None:
    assert stated_in(output) is None
    parser = module("command").parser(Request("p", "", ("my-agent",)))
    for line in output.encode().split(b"\n"):
        parser.feed(line)
    turn = parser.turn(Exit(1, NOW, 1.0, output))
    assert turn.failure is not None
    assert turn.failure.kind == "ordinary"
    assert turn.text == output


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode", "qwen", "copilot", "pi", "cline"])
def test_an_answer_about_limits_is_an_answer(agent: str, recorded, reading) -> None:
    recording = recorded[f"{agent}/text.ndjson"]
    answer = (
        rb"API Error: 429 Too many requests. You've hit your limit \u00b7 resets 7pm. Invalid API key. ECONNREFUSED"
    )
    lines = [line.replace(rb"All done.\nSTOP", answer) for line in recording.lines]
    turn = reading(recording, lines).turn
    assert turn.failure is None
    assert turn.text.startswith("API Error: 429 Too many requests")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("529 Overloaded", "transient"),
        ("HTTP 503 Service Unavailable", "transient"),
        ("connect ECONNREFUSED 127.0.0.1:443", "transient"),
        ("getaddrinfo ENOTFOUND api.example.com", "transient"),
        ("TypeError: fetch failed", "transient"),
        ("anthropic.APIConnectionError: Connection error.", "transient"),
        ("The model is overloaded. Please try again later.", "transient"),
        ("Request failed with status code 503", "transient"),
        ("Request failed with status code 429", "limit"),
        ("429 Too Many Requests", "limit"),
        ("500 tests passed", "ordinary"),
        ("connection pool: 3 of 4 tests pass", "ordinary"),
        ("ValueError: 500 is too many", "ordinary"),
    ],
)
def test_the_last_words_of_a_failed_command_say_what_kind_of_failure_it_was(line: str, kind: str) -> None:
    assert failure(None, "", Exit(1, NOW, 1.0, f"working\n{line}\n")).kind == kind


def test_the_error_is_found_among_the_last_lines_of_stderr() -> None:
    stderr = "\x1b[31merror: unexpected argument '--full-auto' found\x1b[0m\n\nUsage: codex exec [OPTIONS]\n\nFor more:"
    told = failure(None, "", Exit(2, NOW, 1.0, stderr))
    assert (told.kind, told.reason) == ("fatal", "error: unexpected argument '--full-auto' found")


def test_an_error_long_before_the_end_is_not_the_reason() -> None:
    stderr = "Error: Request rejected (429)\n" + "went on well\n" * 50
    assert failure(None, "", Exit(1, NOW, 1.0, stderr)).kind == "ordinary"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "exit code 3"), (-9, "killed by signal 9"), (None, "no exit code"), (0, "ended by ralph: the idle timeout")],
)
def test_a_silent_end_is_told_by_its_code(code: int | None, reason: str) -> None:
    by = "the idle timeout" if code == 0 else ""
    assert failure(None, "", Exit(code, NOW, 1.0, "", by)).reason == reason


def test_what_the_agent_said_is_worse_than_the_timeout_that_ended_it() -> None:
    ended = Exit(-15, NOW, 1.0, "", "the idle timeout")
    assert failure(Trouble("invalid x-api-key", 401), "", ended).kind == "fatal"
    assert (
        failure(Trouble("it was interrupted", kind="ordinary"), "", ended).reason == "ended by ralph: the idle timeout"
    )


def test_a_limit_carries_the_moment_that_its_words_state() -> None:
    told = failure(Trouble("You've hit your limit · resets 7:17am (UTC)", 429), "", Exit(1, NOW, 1.0))
    assert (told.kind, told.resets_at) == ("limit", 1794727020.0)
    assert failure(Trouble("limit", 429, resets_at=5.0), "", Exit(1, NOW, 1.0)).resets_at == 5.0
    assert failure(Trouble("Overloaded, try again in 5s", 529), "", Exit(1, NOW, 1.0)).resets_at is None


def test_a_rejected_subscription_tells_its_reset_in_an_event_of_its_own() -> None:
    parser = module("claude").parser(Request("p", "", ("claude",)))
    for line in (
        b'{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1794730000,"rateLimitType":"five_hour"}}',
        b'{"type":"result","is_error":true,"api_error_status":429,"result":"You\'ve hit your limit"}',
    ):
        parser.feed(line)
    told = parser.turn(Exit(1, NOW, 1.0)).failure
    assert told is not None
    assert (told.kind, told.resets_at) == ("limit", 1794730000.0)


def test_a_success_that_exits_badly_is_a_failure_with_an_answer() -> None:
    parser = module("claude").parser(Request("p", "", ("claude",)))
    parser.feed(b'{"type":"result","subtype":"success","is_error":false,"result":"Done."}')
    turn = parser.turn(Exit(7, NOW, 1.0))
    assert turn.text == "Done."
    assert turn.failure is not None
    assert turn.failure.reason == "exit code 7"


@pytest.mark.parametrize("code", [42, 55])
def test_gemini_says_by_its_exit_code_that_it_is_hopeless(code: int) -> None:
    told = module("gemini").parser(Request("p", "", ("gemini",))).turn(Exit(code, NOW, 1.0)).failure
    assert told is not None
    assert told.kind == "fatal"


@pytest.mark.parametrize(
    ("code", "kind"), [(144, "ordinary"), (145, "fatal"), (147, "fatal"), (173, "limit"), (247, "transient")]
)
def test_gemini_says_the_status_by_its_exit_code(code: int, kind: str) -> None:
    told = module("gemini").parser(Request("p", "", ("gemini",))).turn(Exit(code, NOW, 1.0)).failure
    assert told is not None
    assert told.kind == kind


def test_a_tool_that_opencode_refused_ends_a_turn_without_an_answer(recorded, reading) -> None:
    recording = recorded["opencode/tools.ndjson"]
    turn = reading(recording, recording.lines[:4]).turn  # it ends behind the first tool call, with exit code 0
    assert turn.failure.kind == "ordinary"
    assert turn.text == ""


def test_a_refused_option_is_found_above_the_help_that_follows_it() -> None:
    page = "\n".join(f"      --option-{number}  it does this" for number in range(50))
    told = failure(None, "", Exit(1, NOW, 1.0, f"Unknown arguments: bogus-flag, bogusFlag\nUsage:\n{page}\n"))
    assert (told.kind, told.reason) == ("fatal", "Unknown arguments: bogus-flag, bogusFlag")


@pytest.mark.parametrize(
    "output",
    [
        "Please set an Auth method in your ~/.gemini/settings.json or specify one of these variables: GEMINI_API_KEY",
        "Error: No authentication information found.\n\nCopilot can be authenticated with GitHub using a token.\n\n"
        "To authenticate, you can use any of the following methods:\n  • Start 'copilot' and run the '/login' command\n"
        "  • Set the COPILOT_GITHUB_TOKEN variable\n  • Run 'gh auth login' to authenticate with the GitHub CLI\n",
    ],
)
def test_an_agent_that_nobody_has_logged_in_says_so(output: str) -> None:
    assert failure(None, "", Exit(1, NOW, 1.0, output)).kind == "fatal"
