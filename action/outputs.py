"""Print the outcome of a run as outputs of a GitHub action, one per line. The argument is the file with its events."""

import json
import sys
from pathlib import Path

outcome = cost = report = request = ""
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        event = json.loads(line)
        data = event.get("data", {})
        if event.get("type") == "run_finished":
            outcome, cost = data["outcome"], data["cost_usd"]
            page = Path(".ralph", "runs", event.get("run", ""), "report.html")
            report = str(page) if page.is_file() else ""
        elif event.get("type") == "scm_finished" and data.get("task") == "pull request" and data.get("ok"):
            request = data.get("detail", "")
outputs = {"outcome": outcome, "cost": "" if cost is None else cost, "report": report, "pull-request": request}
for name, value in outputs.items():
    print(f"{name}={' '.join(str(value).split())}")
