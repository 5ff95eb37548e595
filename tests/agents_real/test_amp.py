"""ralph with Amp, as far as Amp gets without its own server. Its loop runs there, so not even a scripted model can
replace it; what can be tested offline is the login."""

import pytest
from modelserver import ModelServer

pytestmark = pytest.mark.parametrize("agent", ["amp"], indirect=True)


@pytest.fixture
def server():
    with ModelServer(elsewhere=401) as refusing:
        yield refusing


def test_a_refused_key_ends_the_run_at_once(room):
    with room() as place:
        ran = place.ralph("do it please")
        assert (ran.code, ran.outcome) == (2, "fatal"), str(ran)
        assert "key" in ran.of("run_finished")[0]["reason"]


def test_without_a_key_ralph_does_not_wait_for_a_login(room):
    with room() as place:
        del place.env["AMP_API_KEY"]
        ran = place.ralph("--idle-timeout", "3s", "do it please")
        assert (ran.code, ran.outcome) == (2, "fatal"), str(ran)
        assert "AMP_API_KEY" in ran.of("run_finished")[0]["reason"]
        assert ran.left == {}
