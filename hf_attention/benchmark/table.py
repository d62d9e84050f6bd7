"""What was measured, as Markdown; a file keeps one section for each kind of measurement."""

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..text_files import replacing
from .profiles import ELEMENTWISE, KINDS, REST


HEAD = "# Benchmarks\n\nWritten by `training/benchmark.py`.\n"

Answers = Mapping[str, Sequence[Mapping[str, Any]]]


def training_table(answers: Answers, titles: Mapping[str, str], limits: Sequence[float], baseline: str) -> str:
    """A row for each contender: medians over the rounds, the lowest and highest speed in brackets."""
    speeds = {name: [turn["tokens"] / turn["seconds"] for turn in turns] for name, turns in answers.items()}
    rows = [
        [
            titles[name],
            _speed(speeds[name]),
            _ratio(speeds, name, baseline),
            _share([turn["flops"] / turn["seconds"] for turn in turns], limits),
            f"{_median(turn['padding'] for turn in turns):.0%}",
            _memory(turns),
        ]
        for name, turns in answers.items()
    ]
    return markdown(["", "tokens/s", "ratio", "of the limit", "padding", "peak memory"], rows)


def translation_table(
    answers: Answers, titles: Mapping[str, str], limits: Sequence[float], baseline: str, reference: str
) -> str:
    """As `training_table`; "same" is the share of translations that are those of `reference`, token by token."""
    speeds = {name: [turn["sentences"] / turn["seconds"] for turn in turns] for name, turns in answers.items()}
    paces = {name: [1 / turn["latency"] for turn in turns] for name, turns in answers.items()}
    expected = answers[reference][0]["outputs"] if reference in answers else None
    rows = [
        [
            titles[name],
            _speed(speeds[name]),
            _ratio(speeds, name, baseline),
            _share([turn["flops"] / turn["seconds"] for turn in turns], limits),
            f"{1000 * _median(turn['latency'] for turn in turns):.0f}",
            _ratio(paces, name, baseline),
            f"{_median(turn['length'] for turn in turns):.2f}",
            _same(turns[0]["outputs"], expected),
            _memory(turns),
        ]
        for name, turns in answers.items()
    ]
    head = ["", "sentences/s", "ratio", "of the limit", "ms for one alone", "ratio", "tokens written", "same"]
    return markdown([*head, "peak memory"], rows)


def profile_table(times: Mapping[str, Mapping[str, float]]) -> str:
    """A column for each contender: shares of the kinds of work that are seen in any, and all their seconds."""
    shares = {
        kind: [f"{part[kind] / sum(part.values()):.0%}" for part in times.values()]
        for kind in [*(kind for kind in KINDS if kind != REST), ELEMENTWISE, REST]
    }
    rows = [[kind, *share] for kind, share in shares.items() if set(share) != {"0%"}]
    rows.append(["seconds", *(f"{sum(part.values()):.2f}" for part in times.values())])
    return markdown(["", *times], rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    line = "| " + " | ".join(head) + " |"
    rule = "| --- |" + " ---: |" * (len(head) - 1)
    return "\n".join([line, rule, *("| " + " | ".join(row) + " |" for row in rows)])


def machine(threads: int) -> str:
    """One line: processor, cores that this process may use, threads, memory, or the GPU instead."""
    import torch  # slow to load, and loaded by now

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB"
    name = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        named = [line for line in cpus.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        name = named[0].partition(":")[2].strip() if named else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores, {threads} threads, {torch.backends.cpu.get_cpu_capability()}"


def write_section(path: Path, title: str, body: str) -> None:
    """Puts "## title" with `body` into the Markdown file, in place of the section of that title or at its end."""
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    head, *sections = text.split("\n## ")
    section = f"{title}\n\n{body}\n"
    titles = [part.partition("\n")[0] for part in sections]
    if title in titles:
        sections[titles.index(title)] = section
    else:
        sections.append(section)
    with replacing(path) as file:
        file.write("\n## ".join(part.rstrip("\n") + "\n" for part in [head, *sections]))


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def _speed(speeds: Sequence[float]) -> str:
    digits = 0 if min(speeds) >= 100 else 1
    spread = f" ({min(speeds):,.{digits}f}–{max(speeds):,.{digits}f})" if len(speeds) > 1 else ""
    return f"{_median(speeds):,.{digits}f}{spread}"


def _ratio(speeds: Mapping[str, Sequence[float]], name: str, baseline: str) -> str:
    return f"{_median(speeds[name]) / _median(speeds[baseline]):.2f}" if baseline in speeds else "–"


def _share(rates: Sequence[float], limits: Sequence[float]) -> str:
    return f"{_median(rates) / _median(limits):.0%}"


def _memory(turns: Sequence[Mapping[str, Any]]) -> str:
    peaks = [turn["peak_memory"] for turn in turns]
    return "–" if None in peaks else f"{max(peaks) / 2**30:.2f} GiB"


def _same(outputs: Sequence[Sequence[int]], expected: Sequence[Sequence[int]] | None) -> str:
    if expected is None:
        return "–"
    return f"{sum(map(list.__eq__, outputs, expected)) / len(expected):.1%}"
