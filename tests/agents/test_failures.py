"""Which kind of failure an error is, and what is not a failure."""

import pytest

from ralph.agents import module
from ralph.agents.failures import failure, kind_of, stated_in
from ralph.agents.protocol import Trouble, TurnRequest
from ralph.core.events import AgentResult
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
        ("limit", "You've hit your 5-hour limit · resets 2:06am (UTC)"),
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
        ("limit", "You have exhausted your daily quota on this model"),
        ("limit", "Your quota will reset after 2h24m55s"),
        ("limit", "Exceeded tokens per minute limit"),
        ("limit", "Rate limit. Retry after: 45s"),
        ("limit", "Exceeded API limit"),
        ("limit", "Azure service throttling request"),
        ("limit", "Please backoff and retry"),
        ("limit", "You have exceeded your premium request allowance"),
        ("limit", "Insufficient credits"),
        ("limit", "You've reached your session limit · resets 3pm (UTC)"),
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
def test_the_kind_of_an_error_follows_from_its_message(kind: str, message: str) -> None:
    assert kind_of(message) == kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "ordinary"), (401, "fatal"), (402, "limit"), (403, "fatal"), (404, "fatal"), (408, "transient")),
        *((413, "ordinary"), (429, "limit"), (500, "transient"), (503, "transient"), (529, "transient")),
    ],
)
def test_an_http_status_alone_decides_the_kind_of_failure(status: int, kind: str) -> None:
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
def test_mentions_of_errors_in_a_failed_commands_output_are_not_errors(output: str) -> None:
    assert stated_in(output) is None
    parser = module("command").parser(TurnRequest(prompt="p", prompt_file="", command=("my-agent",)))
    for line in output.encode().split(b"\n"):
        parser.feed(line)
    turn = parser.turn(Exit(code=1, at=NOW, duration=1.0, stderr=output))
    assert turn.failure is not None
    assert turn.failure.kind == "ordinary"
    assert turn.text == output


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode", "qwen", "copilot", "pi", "cline"])
def test_an_answer_about_limits_is_not_a_failure(agent: str, recorded, reading) -> None:
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
def test_the_last_lines_of_a_failed_command_decide_the_kind_of_failure(line: str, kind: str) -> None:
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=f"working\n{line}\n")).kind == kind


def test_the_error_is_found_among_the_last_lines_of_stderr() -> None:
    stderr = "\x1b[31merror: unexpected argument '--full-auto' found\x1b[0m\n\nUsage: codex exec [OPTIONS]\n\nFor more:"
    told = failure(None, "", Exit(code=2, at=NOW, duration=1.0, stderr=stderr))
    assert (told.kind, told.reason) == ("fatal", "error: unexpected argument '--full-auto' found")


def test_an_error_long_before_the_end_is_not_the_reason() -> None:
    stderr = "Error: Request rejected (429)\n" + "went on well\n" * 250
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=stderr)).kind == "ordinary"


def test_a_limit_is_found_far_above_the_end_of_the_output_but_a_fatal_error_is_not() -> None:
    after = "cleaning up\n" * 150
    assert (
        failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=f"API rate limit exceeded\n{after}")).kind
        == "limit"
    )
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=f"Invalid API key\n{after}")).kind == "ordinary"


LIMITS = [
    "API rate limit exceeded. retry-after: 60s",
    "Requests per minute limit exceeded",
    "quota-exceeded",
    "throttled",
    "Request was throttled. Expected available in 27 seconds.",
    "API returned error 429",
    "upstream responded with status=429",
    "[2026-11-15 06:30:00] WARN provider=x rate limit exceeded, giving up",
    "Oops! You've hit a rate limit. Please wait 2 minutes.",
    "openai.RateLimitError: Error code: 429 - {'error': {'message': 'slow down'}}",
    "ThrottlingException: Too many tokens, please wait before trying again.",
    "litellm.exceptions.RateLimitError: RateLimitError: quota exceeded",
    "The daily quota has been exhausted for this project",
    "You exceeded your current quota",
    "Sorry, you have hit your weekly limit",
    "You've hit your 5-hour limit · resets 2:06am (UTC)",
    "agent: request throttled (retry in 5s)",
    "tokens per minute limit reached for gpt-x",
    "HTTP/1.1 429 Too Many Requests",
    "  ⎿ usage limit reached ∙ resets 7pm",
    "You have reached your weekly usage limit. Resets in 3 days 4 hours.",
    "google.api_core.exceptions.ResourceExhausted: 429 Resource has been exhausted (e.g. check quota).",
    "Concurrency limit exceeded for account, please retry later",
    "You're out of extra usage · resets 11pm",
    "Your account has hit its spend limit for this month",
    "Token limit per day exceeded: 1000000. Try again tomorrow",
    "rate limit: retry_after=2500ms",
]
OVERLOADS = [
    "Server is overloaded, please try again later",
    "The model is at capacity right now",
    "The server is busy. Please try again later.",
    "Sorry, the service is currently overloaded",
    "[error] upstream: provider is overloaded",
    "We are at capacity, come back soon",
    "Service temporarily unavailable",
    "HTTP/2 529",
    "dial tcp 127.0.0.1:443: i/o timeout",
    "read ECONNRESET",
    "We're experiencing high demand. Please try again later.",
    "The service is experiencing heavy load; try again in 5 min",
]
NONE = [
    "Added a rate limit: 429 after 100 requests",
    "+    raise RateLimitError('rate limit exceeded')",
    "-  # too many requests",
    "tests/test_limits.py::test_rate_limit_exceeded PASSED",
    "FAILED tests/test_api.py::test_throttled - assert 200 == 429",
    "E       AssertionError: rate limit exceeded not raised",
    "src/limits.py:12: rate limit exceeded",
    "pip install ratelimit",
    "npm warn deprecated express-rate-limit@5: use 6",
    "it should answer 429 when the quota is exceeded",
    "    if response.status == 429:",
    "the middleware returns too many requests if the quota is exceeded",
    "ok 4 - throttled requests are retried",
    "recursion limit exceeded",
    "time limit exceeded in case 3",
    "the queue is at 80% capacity",
    "429 tests passed",
    "429 files changed",
    "500",
    "const LIMIT = 'rate limit exceeded';",
    "fixed: the client was throttled for no reason",
    "Documented how usage limit reached errors are shown",
    "vector at capacity 16, growing",
    '"GET /health HTTP/1.1" 503 -',
    "read 503 lines of ECONNRESET.md",
]


@pytest.mark.parametrize(
    ("kind", "line"),
    [*(("limit", line) for line in LIMITS), *(("transient", line) for line in OVERLOADS)],
)
def test_a_limit_or_an_overload_is_found_anywhere_in_a_line(kind: str, line: str) -> None:
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=f"working\n{line}\nbye\n")).kind == kind
    parser = module("command").parser(TurnRequest(prompt="p", prompt_file="", command=("my-agent",)))
    for each in (b"working", line.encode(), b"bye"):
        parser.feed(each)
    told = parser.turn(Exit(code=1, at=NOW, duration=1.0)).failure
    assert told is not None
    assert told.kind == kind


@pytest.mark.parametrize("line", NONE)
def test_a_line_that_only_mentions_limits_is_not_a_limit(line: str) -> None:
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=f"working\n{line}\nbye\n")).kind == "ordinary"


@pytest.mark.parametrize(
    ("output", "seconds"),
    [
        ("API rate limit exceeded. retry-after: 60s", 60),
        ("rate limit exceeded, retry after 2 minutes", 120),
        ("Too many requests. Please wait 90 seconds.", 90),
        ("429 Too Many Requests\nRetry-After: 5m", 300),
        ("quota exceeded, try again in an hour", 3600),
        ("throttled, retry in 1 hr 5 min", 3900),
        ("usage limit reached, resets in 2 weeks", 1209600),
        ("rate limit: retry_after=2500ms", 2.5),
        ("You have reached your weekly usage limit. Resets in 3 days 4 hours.", 273600),
    ],
)
def test_the_end_of_a_limit_may_be_stated_in_any_unit(output: str, seconds: float) -> None:
    told = failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=output))
    assert (told.kind, told.resets_at) == ("limit", NOW + seconds)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "exit code 3"), (-9, "killed by signal 9"), (None, "no exit code"), (0, "ended by ralph: the idle timeout")],
)
def test_an_exit_without_output_is_described_by_its_code(code: int | None, reason: str) -> None:
    by = "the idle timeout" if code == 0 else ""
    assert failure(None, "", Exit(code=code, at=NOW, duration=1.0, stderr="", ended_by=by)).reason == reason


def test_an_error_of_the_agent_counts_more_than_the_timeout_that_ended_the_turn() -> None:
    ended = Exit(code=-15, at=NOW, duration=1.0, stderr="", ended_by="the idle timeout")
    assert failure(Trouble("invalid x-api-key", 401), "", ended).kind == "fatal"
    assert (
        failure(Trouble("it was interrupted", kind="ordinary"), "", ended).reason == "ended by ralph: the idle timeout"
    )


def test_a_limit_has_the_reset_time_in_its_message() -> None:
    told = failure(Trouble("You've hit your limit · resets 7:17am (UTC)", 429), "", Exit(code=1, at=NOW, duration=1.0))
    assert (told.kind, told.resets_at) == ("limit", 1794727020.0)
    assert failure(Trouble("limit", 429, resets_at=5.0), "", Exit(code=1, at=NOW, duration=1.0)).resets_at == 5.0
    assert (
        failure(Trouble("Overloaded, try again in 5s", 529), "", Exit(code=1, at=NOW, duration=1.0)).resets_at is None
    )


def test_claude_reports_the_reset_of_a_limit_in_a_separate_line() -> None:
    parser = module("claude").parser(TurnRequest(prompt="p", prompt_file="", command=("claude",)))
    for line in (
        b'{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1794730000,"rateLimitType":"five_hour"}}',
        b'{"type":"result","is_error":true,"api_error_status":429,"result":"You\'ve hit your limit"}',
    ):
        parser.feed(line)
    told = parser.turn(Exit(code=1, at=NOW, duration=1.0)).failure
    assert told is not None
    assert (told.kind, told.resets_at) == ("limit", 1794730000.0)


def test_a_successful_result_with_a_bad_exit_code_is_a_failure_with_an_answer() -> None:
    parser = module("claude").parser(TurnRequest(prompt="p", prompt_file="", command=("claude",)))
    parser.feed(b'{"type":"result","subtype":"success","is_error":false,"result":"Done."}')
    turn = parser.turn(Exit(code=7, at=NOW, duration=1.0))
    assert turn.text == "Done."
    assert turn.failure is not None
    assert turn.failure.reason == "exit code 7"


@pytest.mark.parametrize("code", [42, 55])
def test_two_exit_codes_of_gemini_are_fatal(code: int) -> None:
    told = (
        module("gemini")
        .parser(TurnRequest(prompt="p", prompt_file="", command=("gemini",)))
        .turn(Exit(code=code, at=NOW, duration=1.0))
        .failure
    )
    assert told is not None
    assert told.kind == "fatal"


@pytest.mark.parametrize(
    ("code", "kind"), [(144, "ordinary"), (145, "fatal"), (147, "fatal"), (173, "limit"), (247, "transient")]
)
def test_the_exit_code_of_gemini_is_the_http_status_modulo_256(code: int, kind: str) -> None:
    told = (
        module("gemini")
        .parser(TurnRequest(prompt="p", prompt_file="", command=("gemini",)))
        .turn(Exit(code=code, at=NOW, duration=1.0))
        .failure
    )
    assert told is not None
    assert told.kind == kind


def test_a_tool_that_opencode_refused_ends_a_turn_without_an_answer(recorded, reading) -> None:
    recording = recorded["opencode/tools.ndjson"]
    turn = reading(recording, recording.lines[:4]).turn  # it ends after the first tool call, with exit code 0
    assert turn.failure.kind == "ordinary"
    assert turn.text == ""


def test_an_error_about_an_option_is_found_above_a_page_of_help() -> None:
    page = "\n".join(f"      --option-{number}  it does this" for number in range(50))
    told = failure(
        None,
        "",
        Exit(code=1, at=NOW, duration=1.0, stderr=f"Unknown arguments: bogus-flag, bogusFlag\nUsage:\n{page}\n"),
    )
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
def test_a_missing_login_is_a_fatal_failure(output: str) -> None:
    assert failure(None, "", Exit(code=1, at=NOW, duration=1.0, stderr=output)).kind == "fatal"


@pytest.mark.parametrize(
    ("agent", "last"),
    [
        *(("claude", 1), ("codex", 1), ("gemini", 1), ("opencode", 1)),
        *(("qwen", 1), ("copilot", 1), ("pi", 3), ("cline", 1)),
    ],
)
def test_a_stream_without_its_last_line_has_no_answer(agent: str, last: int, recorded, reading) -> None:
    recording = recorded[f"{agent}/text.ndjson"]
    assert reading(recording).turn.failure is None
    turn = reading(recording, recording.lines[:-last]).turn
    assert turn.failure is not None
    assert turn.failure.reason == "it ended in the middle of a turn"
    assert turn.text == ""


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Quota exceeded. Check your plan.", "limit"),
        ("unexpected status 401 Unauthorized", "fatal"),
        ("odd", "ordinary"),
    ],
)
@pytest.mark.parametrize("over", [b"", b'{"type":"turn.completed","usage":{}}'])
def test_the_last_error_of_codex_is_the_reason_when_its_exit_code_is_not_zero(
    message: str, kind: str, over: bytes
) -> None:
    parser = module("codex").parser(TurnRequest(prompt="p", prompt_file="", command=("codex",)))
    parser.feed(b'{"type":"turn.started"}')
    parser.feed(b'{"type":"item.completed","item":{"type":"agent_message","text":"STOP"}}')
    parser.feed(b'{"type":"item.completed","item":{"type":"error","message":"%s"}}' % message.encode())
    if over:
        parser.feed(over)
    told = parser.turn(Exit(code=1, at=NOW, duration=1.0)).failure
    assert told is not None
    assert (told.kind, told.reason) == (kind, message)


@pytest.mark.parametrize("file", ["text", "tools", "lateerr", "empty", "cutok", "e401", "sseerr"])
def test_the_cost_of_a_turn_of_opencode_is_always_known(file: str, recorded, reading) -> None:
    assert any(isinstance(event, AgentResult) for event in reading(recorded[f"opencode/{file}.ndjson"]).events)


UNRECOGNISED = (
    "Error: You have exhausted your daily quota on this model",
    "You have exhausted your daily quota on this model. Your quota will reset after 2h24m55s.",
    "Your quota will reset after 2h24m55s",
    "Exceeded tokens per minute limit",
    "Rate limit. Retry after: 45s",
    "Exceeded API limit",
    "Azure service throttling request",
    "Please backoff and retry",
    "You have exceeded your premium request allowance",
    "Insufficient credits",
    "You've reached your weekly limit · resets 3pm (UTC)",
    "You’ve reached your Opus limit ∙ resets Nov 20, 3pm (UTC)",
    f"Error: the request {'x ' * 800}failed: Rate limit exceeded",
    f"{'word ' * 1500}Too many requests",
)


@pytest.mark.parametrize("line", UNRECOGNISED, ids=lambda line: line[-30:])
def test_a_limit_is_recognised_in_the_output_of_a_failed_process(line: str) -> None:
    parser = module("command").parser(TurnRequest(prompt="p", prompt_file="", command=("my-agent",)))
    parser.feed(b"Working on it.")
    parser.feed(line.encode())
    found = parser.turn(Exit(code=1, at=NOW, duration=1.0)).failure
    assert found is not None
    assert found.kind == "limit"


def test_the_end_of_a_quota_is_read_from_its_message() -> None:
    stated = stated_in("You have exhausted your daily quota. Your quota will reset after 2h24m55s.")
    found = failure(stated, "", Exit(code=1, at=NOW, duration=1.0))
    assert found.resets_at == NOW + 2 * 3600 + 24 * 60 + 55


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("fatal", "Not logged in · Please run /login"),
        ("limit", "You've reached your session limit · resets 3pm (UTC)"),
        (None, "Not logged in: that is what the page says now. Please run /login to see it."),
        (None, "I fixed the text.\nNot logged in · Please run /login"),
    ],
)
@pytest.mark.parametrize("agent", ["claude", "command"])
def test_an_error_that_is_the_whole_answer_of_a_successful_process_is_a_failure(
    agent: str, kind: str | None, answer: str
) -> None:
    parser = module(agent).parser(TurnRequest(prompt="p", prompt_file="", command=(agent,), stream=False))
    for line in answer.splitlines():
        parser.feed(line.encode())
    found = parser.turn(Exit(code=0, at=NOW, duration=1.0))
    assert (found.failure.kind if found.failure else None) == kind
    assert found.text == ("" if kind else answer)
