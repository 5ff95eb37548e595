"""The entry point: answers what must be instant, hands everything else to the command line."""

import sys


def main() -> int:
    if sys.argv[1:] in (["--version"], ["-v"]):
        from ralph import __version__

        print(f"ralph {__version__}")
        return 0
    from ralph.cli.main import run_cli

    return run_cli(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
