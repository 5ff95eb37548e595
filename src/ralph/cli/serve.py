"""`ralph serve`: how does a person see and steer all runs from a browser, also from a phone?"""

import os
import sys

import click

from ralph.cli.commands import simple
from ralph.errors import UserError

HELP = """Serve a page with all runs of this user, to see and steer them from a browser.

It prints a link that can be used once, within ten minutes; `ralph serve --link` prints another from any terminal. A
link lets a browser look, steer (tell, answer, pause, resume, stop) or start runs; --allow caps them all. The page is
served to this machine alone: from elsewhere it is reached by an ssh tunnel, a mesh VPN or a proxy (--name). Runs do not
depend on it. Each DIR is a workspace in which runs may be started, beside those that are on record."""

EXAMPLES = ("ralph serve", "ralph serve ~/src/shop --allow steer", "ralph serve --link look")
LEVELS = click.Choice(["look", "steer", "start"])


def command() -> click.Command:
    return simple(
        "serve",
        serve,
        click.Argument(["directories"], nargs=-1, metavar="[DIR]..."),
        click.Option(
            ["--port"], type=click.IntRange(0, 65535), default=None, metavar="N", help="Default: 8787; 0: any."
        ),
        click.Option(["--socket"], metavar="PATH", help="Listen on a Unix socket (mode 0600) instead of a port."),
        click.Option(
            ["--name"], multiple=True, metavar="HOST", help="A name by which a proxy or VPN is reached; repeatable."
        ),
        click.Option(
            ["--bind"], default="127.0.0.1", metavar="ADDR", help="Another address; beyond loopback with --plain."
        ),
        click.Option(["--plain"], is_flag=True, help="Accept that others on the network can read along: no TLS."),
        click.Option(["--allow"], type=LEVELS, default="start", help="The most that any link allows (default: start)."),
        click.Option(["--remember"], is_flag=True, help="Browsers stay let in when the server is started anew."),
        click.Option(
            ["--link"],
            is_flag=False,
            flag_value="",
            default=None,
            metavar="[LEVEL]",
            help="Print another link to the page that is served.",
        ),
        help=HELP,
    )


def serve(
    directories: tuple[str, ...],
    port: int | None,
    socket: str | None,
    name: tuple[str, ...],
    bind: str,
    plain: bool,
    allow: str,
    remember: bool,
    link: str | None,
) -> int:
    from ralph.web import listening

    if link is not None:
        print(listening.another_link(link, bind, port, socket))
        return 0
    places = [os.path.abspath(place) for place in directories]
    for place in places:
        if not os.path.isdir(place):
            raise UserError(f"no such folder: {place}", "name a workspace in which runs may be started")
    asked = listening.Asked(
        places=tuple(places),
        port=port,
        socket=socket,
        names=name,
        bind=bind,
        plain=plain,
        allow=allow,
        remember=remember,
    )
    return listening.serve(asked, sys.stdout)
