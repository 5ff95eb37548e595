"""A run that optimises a number: the results of its attempts, the text for its agent, and the rules that end it.

An attempt is an iteration. It is kept if the measured gain is larger than noise; otherwise its files are restored.
"""

from collections.abc import Sequence
from statistics import median

from ralph.core.measuring import Comparison, Metric, Noise, Pairs, run_to_run_difference, visible_gain
from ralph.core.model import Iteration, Opinions, Outcome, Run, Stop, configured
from ralph.core.text import clean, one_line, plural, short

IDEA = "IDEA:"  # how the agent's line about its attempt begins
IDEA_LENGTH, FULL_ROWS = 160, 20  # characters of an idea; attempts in the prompt's table
UNCHANGED, INTERRUPTED = "nothing was changed", "interrupted"


def is_kept(iteration: Iteration) -> bool:
    return iteration.measured is not None and iteration.measured.kept and not iteration.is_refused


def is_measurable(run: Run) -> bool:
    """Return whether the last attempt passes the checks: otherwise its measurement would not count."""
    return run.last is not None and run.last.is_green and not run.last.turn.failure


def best_number(run: Run) -> int:
    """Return the number of the best attempt; 0 for the start."""
    return next((iteration.number for iteration in reversed(run.iterations) if is_kept(iteration)), 0)


def best_value(run: Run) -> float | None:
    """Return the measured value of the best version so far; None before the first measurement."""
    values = [iteration.measured.after for iteration in run.iterations if iteration.measured and is_kept(iteration)]
    return values[-1] if values else run.start.value if run.start else None


def noise_of(run: Run) -> Noise:
    if any(iteration.measured and iteration.measured.is_noisy for iteration in run.iterations):
        return "noisy"
    return run.start.noise if run.start else "noisy"


def compare_pairs(pairs: Pairs, keeps: bool, is_certain: bool = True, is_noisy: bool = False) -> Comparison:
    return Comparison(
        before=median(best for best, _ in pairs.values),
        after=median(candidate for _, candidate in pairs.values),
        gain=pairs.gain,
        pairs=len(pairs.values),
        better=pairs.better,
        kept=keeps,
        is_certain=is_certain,
        is_noisy=is_noisy,
    )


def format_value(value: float | None, metric: Metric) -> str:
    """Return a number as people read it: `0.195 s`, `12.4 ms`, `48213`."""
    if value is None:
        return "no number"
    if metric.unit == "s" and 0 < abs(value) < 0.1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"
    if metric.unit == "s":
        text = f"{value:.3g}"
    return f"{text} {short(metric.unit, 40)}".rstrip()


def format_change(gain: float, metric: Metric) -> str:
    """Return a gain as the change of the number: a gain of 10 % of a number to minimize is `−10 %`."""
    change = 100 * (gain if metric.maximize else -gain)
    digits = 2 if abs(change) < 1 else 1 if abs(change) < 100 else 0
    text = f"{change:+.{digits}f}".replace("-", "−")
    return f"{'0' if not change else text} %"


def describe_start(metric: Metric, values: Sequence[float], noise: Noise) -> str:
    """Say what the first measurements were, and how large a gain must be to be noticed."""
    if not values:
        return "no number"
    value = format_value(median(values), metric)
    if noise == "exact":
        return f"{value}, the same in {plural(len(values), 'run')}: any gain counts"
    smallest = f"{100 * visible_gain(values, noise, metric.min_gain):.2g} %"
    if noise == "nearly exact":
        return f"{value}, nearly the same in {plural(len(values), 'run')}: gains from {smallest} on count"
    differs = f"{100 * run_to_run_difference(values):.2g} %"
    return f"{value}, differs by {differs} from run to run: gains below about {smallest} may be missed"


def describe_result(measured: Comparison, metric: Metric) -> str:
    """Describe the result of an attempt: `kept: −10.2 % (better in 7 of 7 pairs)`."""
    if measured.problem:
        return f"dropped: {short(measured.problem, 300)}"
    change, details = format_change(measured.gain, metric), []
    if measured.pairs:
        details.append(f"better in {measured.better} of {plural(measured.pairs, 'pair')}")
    else:
        details.append(f"{format_value(measured.before, metric)} → {format_value(measured.after, metric)}")
    if not measured.kept and 0 < measured.gain < metric.min_gain:
        details.append(f"{100 * metric.min_gain:g} % is asked for")
    if not measured.is_certain:
        details.append("not certain: too slow for 7 pairs")
    return f"{'kept' if measured.kept else 'dropped'}: {change} ({'; '.join(details)})"


def describe_end(end: Comparison, metric: Metric) -> str:
    pairs = f" (better in {end.better} of {plural(end.pairs, 'pair')})" if end.pairs else ""
    return f"from start to end: {format_change(end.gain, metric)}{pairs}"


def read_idea(answer: str) -> str:
    """Return the idea in an answer: its last line `IDEA: …`, else the first line with text."""
    lines = [line.strip().strip("*_`#> ") for line in clean(answer).splitlines()]
    named = [line.partition(":")[2].strip(" *") for line in lines if line.upper().startswith(IDEA)]
    return one_line(next((line for line in (*reversed(named), *lines) if line), ""), IDEA_LENGTH)


def attempt_result(iteration: Iteration, metric: Metric) -> str:
    if iteration.measured and not all(exam.passed for exam in iteration.exams):
        return f"dropped: the hidden exam does not pass ({format_change(iteration.measured.gain, metric)})"
    if iteration.measured:
        return describe_result(iteration.measured, metric)
    if iteration.turn.failure:
        return f"dropped: the turn failed: {one_line(iteration.turn.failure.reason, 100)}"
    failed = [check for check in iteration.checks if not check.passed]
    if failed:
        return f"dropped: {short(failed[0].name, 80)}: {short(failed[0].ending, 200)}"
    return "dropped: it was not measured"


def describe_metric(run: Run, command: str) -> str:
    if run.start is None:
        return ""
    metric, start = run.start.metric, describe_start(run.start.metric, run.start.values, noise_of(run))
    lines = [
        f"The number to {'maximize' if metric.maximize else 'minimize'} is measured by: {command}",
        f"- at the start: {start}",
        f"- best so far: {format_value(best_value(run), metric)} (your files are in this state)",
    ]
    if metric.target is not None:
        lines.append(f"- target: {format_value(metric.target, metric)}")
    return "\n".join(lines)


def attempts_table(run: Run) -> str:
    """Return a table of the attempts for the prompt: one row for each of the latest, and a count of the older ones."""
    if not run.iterations:
        return ""
    metric = run.start.metric if run.start else Metric()
    older, latest = run.iterations[:-FULL_ROWS], run.iterations[-FULL_ROWS:]
    lines = ["| attempt | idea | result |", "|---|---|---|"]
    for iteration in (*filter(is_kept, older), *latest):
        cells = (text.replace("|", "¦") for text in (read_idea(iteration.turn.text), attempt_result(iteration, metric)))
        lines.append(f"| {iteration.number} | {' | '.join(cells)} |")
    if dropped := sum(not is_kept(iteration) for iteration in older):
        lines.append(f"\n{plural(dropped, 'older attempt')} dropped and not shown.")
    return "\n".join(lines)


def target_reached(run: Run) -> Opinions:
    best, metric = best_value(run), run.start.metric if run.start else Metric()
    if best is not None and metric.has_reached_target(best):
        text = format_value(metric.target, metric)
        yield Stop(Outcome.DONE, f"the target of {text} is reached", claim="target")


@configured
def no_gain(run: Run, attempts: int) -> Opinions:
    recent = run.recent[-attempts:] if attempts else ()
    if len(recent) == attempts > 0 and not any(map(is_kept, recent)):
        yield Stop(Outcome.STALLED, f"{plural(attempts, 'attempt')} in a row brought no gain")


@configured
def exams_refused(run: Run, times: int) -> Opinions:
    """End the run after the exams refused this many attempts: each refusal tells the agent something about them."""
    refused = sum(not all(exam.passed for exam in iteration.exams) for iteration in run.recent)
    if 0 < times <= refused:
        yield Stop(Outcome.BLOCKED, f"the exam refused {plural(refused, 'attempt')}: a person should look")


def conclude_tuning(run: Run, stop: Stop, end: Comparison | None) -> Stop:
    """Return the end of a run that optimised a number: done if the best version is better than the start."""
    attempts, count = len(run.iterations), sum(map(is_kept, run.iterations))
    if run.start is None or stop.outcome in (Outcome.FATAL, Outcome.INTERRUPTED):
        return stop
    if not count:
        outcome = Outcome.STALLED if stop.outcome is Outcome.DONE else stop.outcome
        why = "" if stop.outcome is Outcome.EXHAUSTED else f": {stop.reason}"
        return Stop(outcome, f"none of {plural(attempts, 'attempt')} was kept{why}")
    metric, share = run.start.metric, f"{count} of {plural(attempts, 'attempt')} kept"
    if end is None:
        values = f"{format_value(run.start.value, metric)} → {format_value(best_value(run), metric)}"
        return Stop(Outcome.DONE, f"{values} ({share}; the end was not compared with the start)", claim="gain")
    # Such as `0.195 s → 0.168 s (−14 %, better in 21 of 21 pairs; 3 of 9 attempts kept)`.
    values = f"{format_value(end.before, metric)} → {format_value(end.after, metric)}"
    pairs = f", better in {end.better} of {plural(end.pairs, 'pair')}" if end.pairs else ""
    summary = f"{values} ({format_change(end.gain, metric)}{pairs}; {share})"
    if end.kept:
        return Stop(Outcome.DONE, summary, claim="gain")
    return Stop(Outcome.STALLED, f"no gain from start to end: {summary}")


def commit_subject(iteration: Iteration, metric: Metric) -> str:
    measured = iteration.measured
    assert measured
    values = f"{format_value(measured.before, metric)} → {format_value(measured.after, metric)}"
    subject = f"tune: {values} ({format_change(measured.gain, metric)})"
    idea = read_idea(iteration.turn.text)
    return f"{subject}: {one_line(idea, max(20, 100 - len(subject)))}" if idea else subject
