"""The entry point: answers what must be instant, hands everything else to the command line."""

import sys


def main() -> int:
    if sys.argv[1:] in (["--version"], ["-v"]):
        from ralph import __version__

        print(f"ralph {__version__}")
        return 0
    if sys.argv[1:3] == ["hook", "stop"] and not any(word.startswith("-") for word in sys.argv[3:]):
        from ralph.hook import main as answer

        return answer(sys.argv[2:])
    from ralph.cli.main import run_cli

    return run_cli(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
