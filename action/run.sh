#!/usr/bin/env bash
# Run ralph as the inputs say. The outcome becomes the outputs, the exit code that of the step.
set -euo pipefail

words=(loop --json --yolo)
if [ -n "$ISSUE" ]; then words+=(--issue "$ISSUE"); fi
if [ -n "$GOAL" ]; then words+=(--prompt "$GOAL"); fi
while IFS= read -r check; do
  if [ -n "$check" ]; then words+=(--check "$check"); fi
done <<< "$CHECKS"
while IFS= read -r pattern; do
  if [ -n "$pattern" ]; then words+=(--protect "$pattern"); fi
done <<< "$PROTECT"
if [ -n "$AGENT" ]; then words+=(--agent "$AGENT"); fi
if [ -n "$MODEL" ]; then words+=(--model "$MODEL"); fi
if [ -n "$MAX_COST" ]; then words+=(--max-cost "$MAX_COST"); fi
if [ -n "$MAX_TIME" ]; then words+=(--max-time "$MAX_TIME"); fi
case "$PR" in
  none | "") ;;
  open) words+=(--pr) ;;
  *) words+=("--pr=$PR") ;;
esac

# git asks gh for the token when it pushes, so no file that an agent could read contains it.
git config --global credential.https://github.com.helper '!gh auth git-credential'
git config --global user.name > /dev/null || git config --global user.name ralph
git config --global user.email > /dev/null || git config --global user.email ralph@localhost

events="$RUNNER_TEMP/ralph.ndjson"
code=0
ralph "${words[@]}" > "$events" || code=$?
python3 "$GITHUB_ACTION_PATH/action/outputs.py" "$events" >> "$GITHUB_OUTPUT"
exit "$code"
