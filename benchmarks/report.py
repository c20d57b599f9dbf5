"""From values to a page: medians with their range, ratios, and the machine in words that name nobody."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from measure import Series

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from workloads import Scale


@dataclass(slots=True)
class Results:
    """All values of one run, by scenario, measurement and target, in the order in which they were first added.

    Attributes:
        scale: how much work was done.
        versions: what each target is, by its name; the order of the columns.
        promises: what each target's close and fsync mean.
        private: paths of this machine, which no note shows.
        scenario: what is being measured now.
        table: scenario → measurement → target → values.
        notes: what the reader of the numbers needs to know.
    """

    scale: Scale
    versions: dict[str, str]
    promises: dict[str, str]
    private: tuple[str, ...] = ()
    scenario: str = ""
    table: dict[str, dict[str, dict[str, Series]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, target: str, value: float, unit: str, *, better: str = "more") -> None:
        """Keep one value and show it."""
        row = self.table.setdefault(self.scenario, {}).setdefault(what, {})
        row.setdefault(target, Series(unit, better)).values.append(value)
        print(f"  {self.scenario:<10} {what:<42} {target:<13} {_number(value):>9} {unit}", flush=True)

    def note(self, text: str) -> None:
        """Keep a remark that the reader of the numbers needs."""
        for path in self.private:
            text = text.replace(path, "…")
        self.notes.append(text)
        print(f"  note: {text}", flush=True)

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write the page and the raw values; gives both paths."""
        directory.mkdir(parents=True, exist_ok=True)
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%MZ")
        page, raw = directory / f"{stamp}.md", directory / f"{stamp}.json"
        page.write_text("\n".join(self._page(stamp)) + "\n", encoding="utf-8")
        raw.write_text(json.dumps(self._raw(stamp), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return page, raw

    def _raw(self, stamp: str) -> dict[str, Any]:
        return {
            "when": stamp,
            "machine": machine(),
            "versions": self.versions,
            "scale": asdict(self.scale),
            "notes": self.notes,
            "results": {
                scenario: {what: {name: asdict(series) for name, series in row.items()} for what, row in rows.items()}
                for scenario, rows in self.table.items()
            },
        }

    def _page(self, stamp: str) -> Iterator[str]:
        yield f"# Benchmark of {stamp}"
        yield ""
        yield f"Machine: {machine()}. All targets on the same disk, in one run, repetitions taken in turn."
        yield "Cells: median (lowest–highest). Ratios are of medians; above 1 the ckptfs column is the better one."
        yield ""
        yield from (f"- **{name}**: {text}; {self.promises[name]}." for name, text in self.versions.items())
        for scenario, rows in self.table.items():
            yield ""
            yield f"## {scenario}"
            yield ""
            yield from self._table(rows)
        if self.notes:
            yield ""
            yield "## Notes"
            yield ""
            yield from (f"- {text}" for text in self.notes)

    def _table(self, rows: dict[str, dict[str, Series]]) -> Iterator[str]:
        targets = [name for name in self.versions if any(name in row for row in rows.values())]
        ours = [name for name in targets if name.startswith("ckptfs")]
        others = [name for name in targets if name not in ours]
        ratios = [(mine, other) for mine in ours for other in reversed(others)]
        heads = ["", "unit", *targets, *(f"{mine} : {other}" for mine, other in ratios)]
        yield "| " + " | ".join(heads) + " |"
        yield "| --- | --- |" + " ---: |" * (len(heads) - 2)
        for what, row in rows.items():
            unit = next(iter(row.values())).unit
            cells = [_cell(row.get(name)) for name in targets]
            cells += [_ratio(row.get(mine), row.get(other)) for mine, other in ratios]
            yield "| " + " | ".join([what, unit, *cells]) + " |"


def machine() -> str:
    """The machine, generically: cores, memory, kernel, Python."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    python = ".".join(map(str, sys.version_info[:3]))
    kernel = ".".join(platform.release().split("-", maxsplit=1)[0].split(".")[:3])
    return f"{cores} cores, {memory_gib:.0f} GiB of memory, Linux {kernel}, Python {python}"


def _cell(series: Series | None) -> str:
    if series is None:
        return "–"
    if len(series.values) == 1:
        return _number(series.values[0])
    return f"{_number(series.median())} ({_number(min(series.values))}–{_number(max(series.values))})"


def _ratio(mine: Series | None, other: Series | None) -> str:
    if mine is None or other is None or not mine.median() or not other.median():
        return "–"
    ratio = mine.median() / other.median() if mine.better == "more" else other.median() / mine.median()
    return f"{_number(ratio)}×"


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
