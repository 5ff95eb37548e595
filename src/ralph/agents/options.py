"""What has the user already said in flags of his own? What he says wins, and some CLIs refuse to be told twice."""

from ralph.agents.protocol import Request


def given(request: Request, *names: str) -> bool:
    """Whether one of the options `names` stands in the user's flags."""
    return any(flag.partition("=")[0] in names for flag in request.flags)


def model(request: Request, *names: str) -> list[str]:
    """The words that choose the model, by the first of the option's `names`."""
    return [names[0], request.model] if request.model and not given(request, *names) else []


def extra(request: Request, *own: str) -> tuple[str, ...]:
    """The user's flags without the words that are said anyway: he may call his agent `codex exec --json`."""
    return tuple(flag for flag in request.flags if flag not in own)


def knows(request: Request, name: str) -> bool:
    """Whether the installed version takes the option `name`, as far as anyone has asked it."""
    return request.understands is None or name in request.understands


def optional(request: Request, name: str, *values: str) -> list[str]:
    """An option and its values, unless the installed version does not take it: the turn can do without."""
    return [name, *values] if knows(request, name) else []
