"""What does the agent want the commit to say?"""

from ralph.core.text import clean, head

LONGEST = 20_000


def commit_message(answer: str) -> str | None:
    """What stands in the first `<response>` tag, else the first line that says something; None if nothing does."""
    import re

    text = clean(answer)
    tagged = re.search(r"<response>(.*?)</response>", text, re.IGNORECASE | re.DOTALL)
    if tagged:
        found = tagged[1].strip()
    else:
        lines = (line.strip() for line in text.splitlines())
        found = next((line for line in lines if line.strip("`~")), "")
    return head(found, LONGEST) or None
