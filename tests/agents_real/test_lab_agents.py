"""Every real CLI works in the lab without ralph. A failure here is due to the lab, or to a new version."""

from script import Say, shell, write


def test_an_agent_answers_with_text(room):
    with room(Say("Just text: done.")) as place:
        ran = place.alone("say something please")
        assert ran.code == 0, ran
        assert "Just text: done." in ran.stdout, ran
        assert "say something please" in place.stage.asked[0].prompt
        assert (len(place.stage.asked), place.stage.surplus) == (1, 0)


def test_an_agent_writes_a_file_and_runs_a_command(room):
    with room() as place:
        steps = write(place.workspace / "made.txt", "hello\n"), shell("echo ran-it; exit 3"), Say("All done here.")
        place.stage.steps += steps
        ran = place.alone("make the file please")
        assert ran.code == 0, ran
        assert "All done here." in ran.stdout, ran
        assert (place.workspace / "made.txt").read_text().strip() == "hello", ran
        assert "ran-it" in place.stage.asked[2].results[-1]
        assert (place.stage.steps, place.stage.surplus, place.stage.problems) == ([], 0, [])
