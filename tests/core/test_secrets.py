import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.core.secrets import Redactor, redact, redact_text, redactable_length, secret_values
from ralph.process.streams import Lines

KEYS = {
    "anthropic": "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz-0123456789_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "anthropic, short": "sk-ant-oat01-abcdefghij",
    "openai": "sk-AbCdEfGhIjKlMnOpQrStT3BlbkFJAbCdEfGhIjKlMnOpQrSt",
    "openai project": "sk-proj-Ab_CdEfGhIjKlMnOpQrStUvWx-YzAbCdEfGhIjKlMnOp",
    "openrouter": "sk-or-v1-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "deepseek": "sk-0123456789abcdef0123456789abcdef",
    "named": "sk-live-prod-a1b2c3d4e5f6g7h8i9j0",
    "letters only": "sk-abcdefghijklmnopqrstuvwxyz",
    "stripe": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "stripe restricted": "rk_test_4eC39HqLyjWDarjtT1zdp7dc",
    "github": "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github oauth": "gho_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github server": "ghs_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github user": "ghu_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github refresh": "ghr_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github fine-grained": "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789a",
    "gitlab": "glpat-AbCdEfGhIjKlMnOpQrSt",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aws session": "ASIAIOSFODNN7EXAMPLE",
    "google": "AIzaSyA-1234567890abcdefghijklmnopqrstuv",
    "slack": "xoxb-123456789012-abcdefABCDEF",
    "npm": "npm_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "groq": "gsk_AbCdEfGhIjKlMnOpQrStWGdyb3FYAbCdEfGhIjKlMnOpQrStUvWx",
    "xai": "xai-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "perplexity": "pplx-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGhIjKl",
    "tavily": "tvly-dev-AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "gitlab runner": "glrt-AbCdEfGhIjKlMnOpQrSt",
    "slack app": "xapp-1-A0123456789-1234567890123-0123456789abcdef0123456789abcdef",
    "docker": "dckr_pat_AbCdEfGhIjKl-nOpQrStUvWx_z0",
    "digital ocean": "dop_v1_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "stripe hook": "whsec_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "shopify": "shpat_0123456789abcdef0123456789abcdef",
    "pypi": "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0wMDAwLTAwMDAwMDAwMDAwMAACKlszLCJh",
    "age": "AGE-SECRET-KEY-1QYQ5ZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQ2",
    "hugging face": "hf_AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "pem": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA\nAAAA==\n-----END OPENSSH PRIVATE KEY-----",
    "pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
    "half a pem": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7\n",
    "half a pem with numbers": "-----BEGIN PRIVATE KEY-----\n     2→MIIEvQIBADANBgkqhkiG9w0B\n     3→BKcwggSjAgEA\n",
    "half a pem, quoted": "-----BEGIN PRIVATE KEY-----\n> MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n> BKcwggSjAgEAAoI\n",
    "half a pem in JSON in JSON": "-----BEGIN PRIVATE KEY-----\\\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\\\\nBKcwggSjAgEA",
    "half a pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\nComment: mine\n\nlQOYBF\nQWERTYUIO\n",
    "half a pem with a head": "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: A,1\n\nMIIEvQIB\n",
}
AROUND = ["{}", "export KEY={}", '"{}"', "key: {}, next", "({})", "\x1b[32m{}\x1b[0m", "https://user:{}@host/", "é{}é"]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", KEYS)
def test_text_that_looks_like_a_key_is_redacted(name: str, around: str) -> None:
    text = around.format(KEYS[name])
    assert redact_text(text) == around.format("[redacted]")


@pytest.mark.parametrize("name", KEYS)
def test_redacted_json_is_valid_json(name: str) -> None:
    for text in (f"line\n{KEYS[name]}\nline", f'"{KEYS[name]}"', KEYS[name]):
        line = json.dumps({"text": text, "n": 1}).encode()
        clean = json.loads(redact(line))
        assert clean["n"] == 1
        assert KEYS[name].strip()[-12:] not in clean["text"]
        assert "[redacted]" in clean["text"]


@pytest.mark.parametrize(
    "text",
    [
        "task-force",
        "a risk-assessment-of-long-words-and-more-long-words",
        "risk-0123456789abcdef0123456789abcdef",
        ".sk-folding-cube .sk-cube-grid-animation-delay-12 { }",
        "sk-circle-fade-dot-internationalization",
        "desk_live_broadcast_of_the_event_2024",
        "def task_test_internationalization2():",
        "risk_live_assessmentofeverything1",
        "r8_internal_name_of_a_register_with_words",
        "it looks for -----BEGIN PRIVATE KEY----- in files, and for others",
        "-----BEGIN PRIVATE KEY-----\n...\n",
        "AKIA is a prefix, AKIAI too",
        "BREAKIAMLONGWORDSINUPPERCASE",
        "eyJ is how a token begins",
        "eyJhbGciOiJIUzI1NiJ9.short",
        "npm_config_registry_for_packages_of_all_kinds",
        "npm_lifecycle_event=test",
        "shelf_life",
        "ghp_not_a_token_but_a_name_of_some_length",
        "github_pat_ is the prefix",
        "xoxo-hugs-and-kisses",
        "the bearer of good news arrives tomorrow",
        "Bearer authentication-is-required-for-this-endpoint",
        "-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PUBLIC KEY-----",
        "the PRIVATE KEY stays at home",
        "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "toolu_01A09q90qw90lq917835lq9",
    ],
)
def test_text_that_only_resembles_a_key_is_kept(text: str) -> None:
    assert redact_text(text) == text
    assert redact(text.encode()) == text.encode()


def test_a_bearer_token_is_redacted_but_not_the_word_before_it() -> None:
    assert redact(b"Authorization: Bearer abcdefghij0123456789.xyz\r\n") == b"Authorization: Bearer [redacted]\r\n"
    assert redact_text("authorization: bearer abcdefghij0123456789") == "authorization: bearer [redacted]"


@given(st.binary())
def test_bytes_without_keys_are_the_same_object(data: bytes) -> None:
    assert redact(data) is data


@given(st.text())
def test_any_text_can_be_cleaned(text: str) -> None:
    assert redact_text(text) == text
    assert redact_text(text + "\ud83d") == text + "\ud83d"


@given(st.sampled_from(sorted(KEYS.values())), st.text(), st.text())
def test_redacting_twice_changes_nothing_more(key: str, before: str, after: str) -> None:
    once = redact_text(before + key + after)
    assert redact_text(once) == once


def test_the_name_of_a_variable_decides_whether_its_value_is_secret() -> None:
    environment = {
        "ANTHROPIC_API_KEY": "value-of-a-key",
        "my_token": "value-of-token",
        "DB_PASSWORD": 'with "quotes" in it',
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "SHORT_TOKEN": "too short",
        "HOME": "/home/somebody/else",
        "TOKENIZERS_PARALLELISM": "a long enough value",
        "GITHUB_PAT": "value-of-a-pat",
        "DATABASE_URL": "postgres://me:pass%2Fword%2Fof%2Fmine@host:5432/db",
        "HOMEPAGE_URL": "https://example.org/a:long@path",
        "GPG_PASSPHRASE": "open sesame now",
        "MYSQL_PWD": "value-of-a-pwd",
        "CACHE_DSN": "redis://:hunter2@localhost",
    }
    assert secret_values(environment) == {
        *(b"value-of-a-key", b"value-of-token", b"value-of-a-pat", b"value-of-a-pwd"),
        *(b'with "quotes" in it', rb"with \"quotes\" in it"),
        *(b"with%20%22quotes%22%20in%20it", b"with+%22quotes%22+in+it"),
        *(b"wJalrXUtnFEMI/K7MDENG", b"wJalrXUtnFEMI%2FK7MDENG"),
        *(b"open sesame now", b"open%20sesame%20now", b"open+sesame+now"),
        *(b":hunter2@localhost", b"%3Ahunter2%40localhost"),
        *(b"me:pass%2Fword%2Fof%2Fmine@host:5432", b"me%3Apass%252Fword%252Fof%252Fmine%40host%3A5432"),
        *(b"pass/word/of/mine", b"pass%2Fword%2Fof%2Fmine", b"pass%252Fword%252Fof%252Fmine"),
    }


SECRET = [
    "OPENAI_KEY",
    "API_TOKEN_2",
    "NPM_AUTH",
    "npm_config__auth",
    "DEPLOY_KEY_BASE64",
    "SLACK_WEBHOOK_URL",
    "WEBHOOK_URL",
    "KEYS_A",
]
SECRET += [
    "RAILS_MASTER_KEY",
    "DB_PASS_RO",
    "SESSION_COOKIE",
    "AZURE_CREDENTIALS",
    "GITHUB_JWT",
    "AWS_SESSION_TOKEN_OLD",
]
KNOWN_TO_ALL = ["PWD", "OLDPWD", "KEY_FILE", "SSH_AUTH_SOCK", "TOKEN_TYPE", "AWS_ACCESS_KEY_ID", "HOTKEY", "AUTH_HOST"]
KNOWN_TO_ALL += ["AUTH_URL", "TOKEN_ENDPOINT", "COOKIE_DOMAIN", "CACHE_KEY_PREFIX", "JWT_ISSUER", "AUTH_PROVIDER"]


@pytest.mark.parametrize("name", [*SECRET, *KNOWN_TO_ALL])
def test_the_words_in_a_variables_name_decide_whether_it_is_secret(name: str) -> None:
    assert (b"zQ8-fallow-bridge" in secret_values({name: "zQ8-fallow-bridge"})) == (name in SECRET)
    assert not secret_values({name: "/home/me/of-a-key.json"})


@given(st.text(min_size=12))
def test_a_secret_value_is_redacted_in_json_and_urls(value: str) -> None:
    found = secret_values({"MY_TOKEN": value})
    written = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
    assert {value.encode(), *map(str.encode, written)} <= found


def test_each_line_of_a_secret_value_is_redacted() -> None:
    found = secret_values({"MY_TOKEN": "the first of its lines\r\n  the second of its lines\n}"})
    assert {b"the first of its lines", b"the second of its lines"} <= found
    assert b"}" not in found


def test_a_known_key_next_to_another_does_not_hide_it() -> None:
    known = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
    other = known.replace("MIIEpAIBAAKCAQEA", "MIIEowIBAAKCAQEB")
    redactor = Redactor(secret_values({"SIGNING_SECRET": known}))
    assert redactor.text(f"{known} and {other}") == "[redacted] and [redacted]"


def test_known_values_are_redacted_the_longest_first() -> None:
    redactor = Redactor([b"correct horse", b"correct horse battery"])
    assert redactor(b"a correct horse battery, a correct horse") == b"a [redacted], a [redacted]"
    assert redactor.text("é correct horse é ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789") == "é [redacted] é [redacted]"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b"one\ntwo\nthr", b"one\ntwo\n"),
        (b"no newline yet", b""),
        (b"x" * 20_000, b"x" * (20_000 - 4096)),
        (b"x" * 20_000 + b' "sk-ant-ap', b"x" * (20_011 - 4096)),
        (b"x" * 20_000 + rb"\nsk-" + b"a1B2" * 10 + b" " * 4076, b"x" * (20_000 - 487)),
        (b"text\n-----BEGIN PRIVATE KEY-----\nMII\n", b"text\n"),
        (
            b"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nx",
            b"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n",
        ),
        (b"-----BEGIN PRIVATE KEY-----\n" + b"MII\n" * 9000, b"-----BEGIN PRIVATE KEY-----\n" + b"MII\n" * 9000),
    ],
)
def test_the_beginning_of_a_possible_key_is_held_back(data: bytes, expected: bytes) -> None:
    assert data[: redactable_length(data)] == expected


KNOWN = 'a value, with "quotes" and , commas'
LONG_KEYS = [b"sk-ant-api03-" + b"aB3" * 30, b"ghp_" + b"a1B2" * 9, b"Bearer " + b"x9" * 30, KNOWN.encode()]


@pytest.mark.slow
@pytest.mark.parametrize("key", LONG_KEYS, ids=repr)
@pytest.mark.parametrize("filling", [b"word ", b"x", b'{"a":1},'])
@pytest.mark.parametrize(("size", "step"), [(1 << 12, 1), (1 << 16, 17)], ids=["small", "as they are read"])
def test_a_key_across_two_chunks_of_an_endless_line_is_redacted(
    key: bytes, filling: bytes, size: int, step: int
) -> None:
    redact = Redactor(secret_values({"A_TOKEN": KNOWN}))
    for before in range(size - len(key) - 2, size + 2, step):
        line = (filling * size)[: before - 1] + b" " + key + b" " + (filling * size)[:size]
        unsettled, written = b"", b""
        for at in range(0, len(line), size):
            data = unsettled + line[at : at + size]
            end = redactable_length(data, redact)
            written, unsettled = written + redact(data[:end]), data[end:]
        assert key not in written + redact(unsettled)
        assert key[-12:] not in written + redact(unsettled)


@pytest.mark.parametrize("key", LONG_KEYS[:3], ids=repr)
def test_no_half_of_a_key_is_kept_where_a_long_line_is_cut(key: bytes) -> None:
    half = (10_000 - 64) // 2
    for at in (*range(half - len(key) - 2, half + 2), *range(20_000 - half - len(key) - 2, 20_000 - half + 14)):
        line, lines = b'{"text":"' + b"word " * 4000, Lines(10_000)
        assert lines.feed(line[:at] + b" " + key + b" " + line[at:20_000]) == []
        kept = Redactor()(b"".join(lines.close()))
        assert not [part for part in (key[:20], key[-20:]) if part in kept]


def test_a_known_value_is_redacted_in_a_url() -> None:
    from urllib.parse import quote

    value = 'FwoGZX//EJr+w=a"b c'
    strike = Redactor(secret_values({"SESSION_TOKEN": value}))
    for written in (quote(value, safe=""), quote(value)):
        assert strike.text(f"GET /x?token={written}&y=1") == "GET /x?token=[redacted]&y=1"
