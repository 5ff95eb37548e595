#!/usr/bin/env bash
# Put ralph on the PATH of the following steps, unless it is installed.
set -euo pipefail
if command -v ralph > /dev/null; then exit 0; fi
python3 -m venv "$RUNNER_TEMP/ralph"
"$RUNNER_TEMP/ralph/bin/pip" install --quiet --disable-pip-version-check "$GITHUB_ACTION_PATH"
echo "$RUNNER_TEMP/ralph/bin" >> "$GITHUB_PATH"
