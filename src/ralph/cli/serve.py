"""`ralph serve`: how does a person see and steer all runs from a browser, also from a phone?"""

import os
import sys

from ralph.cli.table import DB, CliCommand, Values
from ralph.errors import UserError
from ralph.run.options import Option

HELP = """Serve a page with all runs of this user, to see and steer them from a browser.

It prints a link that can be used once, within ten minutes; `ralph serve --link` prints another from any terminal. A
link lets a browser look, steer (tell, answer, pause, resume, stop) or start runs; --allow caps them all. The page is
served to this machine alone: from elsewhere it is reached by an ssh tunnel, a mesh VPN or a proxy (--name). Runs do not
depend on it. Each DIR is a workspace in which runs may be started, beside those that are on record. With --db the works
of a fleet are there too."""


def serve(values: Values, words: list[str]) -> int:
    from ralph.web import listening

    port, socket, bind = values.get("port"), values.get("socket"), values.get("bind", "127.0.0.1")
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port", "give a number from 0 (any) to 65535")
    if "link" in values:
        level = values["link"] or "".join(words[:1])
        print(listening.another_link(level, bind, port, socket))
        return 0
    places = [os.path.abspath(place) for place in words]
    for place in places:
        if not os.path.isdir(place):
            raise UserError(f"no such folder: {place}", "name a workspace in which runs may be started")
    asked = listening.Asked(
        places=tuple(places),
        port=port,
        socket=socket,
        names=tuple(values.get("name", ())),
        bind=bind,
        plain=bool(values.get("plain")),
        allow=values.get("allow", "start"),
        remember=bool(values.get("remember")),
    )
    if "db" not in values:
        return listening.serve(asked, sys.stdout)
    from ralph.cli.worker import mirrored

    with mirrored(values["db"], follows=True):
        return listening.serve(asked, sys.stdout)


SERVE = CliCommand(
    "serve",
    HELP,
    serve,
    (
        Option("--port N", "Default: 8787; 0: any."),
        Option("--socket PATH", "Listen on a Unix socket (mode 0600) instead of a port."),
        Option("--name HOST ...", "A name by which a proxy or VPN is reached; repeatable."),
        Option("--bind ADDR", "Another address; beyond loopback with --plain."),
        Option("--plain", "Accept that others on the network can read along: no TLS."),
        Option("--allow look|steer|start", "The most that any link allows (default: start)."),
        Option("--remember", "Browsers stay let in when the server is started anew."),
        DB,
        Option("--link[=WORD]", "Print another link to the page that is served."),
    ),
    words="[DIR]...",
    examples=("ralph serve", "ralph serve ~/src/shop --allow steer", "ralph serve --link look"),
)
