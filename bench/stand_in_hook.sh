#!/usr/bin/env bash
# A stand-in for a stop hook as people write it by hand: bash, jq, sed, awk, grep and perl. Only for comparison.
# Usage: stand_in_hook.sh STATE < event.json     STATE: `key: value` lines, a line `---`, then the task
set -euo pipefail
state=$1
event=$(cat)
[[ -f $state ]] || exit 0
iteration=$(grep '^iteration:' "$state" | sed 's/iteration: *//')
cap=$(grep '^max_iterations:' "$state" | sed 's/max_iterations: *//')
promise=$(grep '^completion_promise:' "$state" | sed 's/completion_promise: *//')
[[ $iteration =~ ^[0-9]+$ && $cap =~ ^[0-9]+$ ]] || exit 0
if [[ $cap -gt 0 && $iteration -ge $cap ]]; then
  rm "$state"
  exit 0
fi
transcript=$(echo "$event" | jq -r '.transcript_path')
[[ -f $transcript ]] || exit 0
grep -q '"role":"assistant"' "$transcript" || exit 0
last=$(grep '"role":"assistant"' "$transcript" | tail -1)
text=$(echo "$last" | jq -r '.message.content | map(select(.type == "text")) | map(.text) | join("\n")')
said=$(echo "$text" | perl -0777 -pe 's/.*?<promise>(.*?)<\/promise>.*/$1/s; s/^\s+|\s+$//g')
if [[ -n $said && $said = "$promise" ]]; then
  rm "$state"
  exit 0
fi
next=$((iteration + 1))
task=$(awk '/^---$/{found=1; next} found' "$state")
sed "s/^iteration: .*/iteration: $next/" "$state" >"$state.tmp"
mv "$state.tmp" "$state"
jq -n --arg task "$task" --arg message "iteration $next" '{decision: "block", reason: $task, systemMessage: $message}'
