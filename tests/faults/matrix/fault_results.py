"""What the fault matrix found: kept in a file, cell by cell, and shown in docs/reliability.md.

``python tests/faults/matrix/fault_results.py`` writes the table from the file into the document.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "benchmarks" / "results" / "faults" / "cells.jsonl"
DOCUMENT = ROOT / "docs" / "reliability.md"
MAX_TEXTS = 4
"""Things that a table's field says at most; the file has them all."""
PRODUCT = ("hermes_tui", "services", "training")
BEGIN = "<!-- The table below is made by tests/faults/matrix/fault_results.py. -->"
END = "<!-- The end of the table. -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fault."""

    what: str
    """What is broken, such as ``trainer``."""
    fault: str
    """How, such as ``SIGSTOP``."""
    when: str = ""
    """At which moment; empty when there is but one."""

    @property
    def id(self) -> str:
        """Its name, such as ``trainer-SIGSTOP-mid-stream``."""
        return "-".join(filter(None, (self.what, self.fault, self.when)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Cell):
    """One cell's result."""

    ok: bool
    """Whether all was as promised."""
    seen: str
    """What a user saw."""
    kept: str
    """What was checked to be still there."""
    seconds: float | None
    """Until it worked again; None when nothing stopped working."""
    commit: str
    """What was tried."""
    at: str = ""
    """When, UTC."""


@dataclass(slots=True)
class Outcome:
    """What a cell's test finds."""

    texts: list[str] = field(default_factory=list)
    """What a user was told or saw."""
    kept: list[str] = field(default_factory=list)
    """What was checked to be still there."""
    seconds: float | None = None
    """As in ``Row``."""

    def row(self, cell: Cell, failure: str = "") -> Row:
        """Return the result of a cell.

        Args:
            cell: which.
            failure: why its test failed; empty when it did not.
        """
        texts = [failure] if failure else self.texts
        return Row(
            what=cell.what,
            fault=cell.fault,
            when=cell.when,
            ok=not failure,
            seen="; ".join(dict.fromkeys(map(shortened, texts))) or "nothing",
            kept=", ".join(dict.fromkeys(self.kept)),
            seconds=self.seconds,
            commit=commit(),
            at=time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
        )


def commit() -> str:
    """Return the last commit of the product; one with changes bears a plus sign."""
    head = _git("log", "-1", "--format=%h", "--", *PRODUCT)
    return head + ("+" if _git("status", "--porcelain", "--", *PRODUCT) else "")


def read() -> dict[str, Row]:
    """Return the newest result of each cell, by its name."""
    if not FILE.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]
    return {row.id: row for row in rows}


def write(row: Row) -> None:
    """Keep a result in place of the cell's last one."""
    rows = {**read(), row.id: row}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(row), ensure_ascii=False) for row in rows.values()]
    fresh = FILE.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
    fresh.replace(FILE)


# -- the table ------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return the tables of all results, as Markdown."""
    if not rows:
        return "Nothing has been tried yet."
    commits = sorted({row.commit for row in rows})
    failed = [row.id for row in rows if not row.ok]
    lines = [f"{len(rows)} cells, tried on commit {', '.join(commits)}; {len(failed)} failed."]
    lines += [f"* failed: `{row.id}`: {row.seen}" for row in rows if not row.ok]
    signals = [row for row in rows if row.when]
    others = [row for row in rows if not row.when]
    if signals:
        lines += ["", *_signal_lines(signals)]
    if others:
        lines += ["", "| fault | a user sees | kept | works again |", "|---|---|---|---|"]
        lines += [
            f"| {row.what}: {row.fault} | {_joined([row.seen])} | {row.kept} | {_seconds(row)} |"
            for row in others
        ]
    return "\n".join(lines)


def _signal_lines(rows: Sequence[Row]) -> Iterator[str]:
    faults = list(dict.fromkeys(row.fault for row in rows))
    yield f"| process, moment | {' | '.join(faults)} | a user sees | kept |"
    yield "|---|" + "---|" * (len(faults) + 2)
    for what, when in dict.fromkeys((row.what, row.when) for row in rows):
        here = {row.fault: row for row in rows if (row.what, row.when) == (what, when)}
        seconds = " | ".join(_seconds(here[f]) if f in here else "not run" for f in faults)
        seen = _joined([row.seen for row in here.values()])
        kept = _joined([row.kept for row in here.values()])
        yield f"| {what}, {when} | {seconds} | {seen} | {kept} |"


def _joined(texts: Sequence[str]) -> str:
    parts = list(dict.fromkeys(part for text in texts for part in text.split("; ") if part))
    left_out = [f"and {len(parts) - MAX_TEXTS} more"] if len(parts) > MAX_TEXTS else []
    return "; ".join(parts[:MAX_TEXTS] + left_out)


def _seconds(row: Row) -> str:
    return "–" if row.seconds is None else f"{row.seconds:.0f} s"


def shortened(text: str) -> str:
    """Return what a user was told without what differs each time, such as addresses."""
    text = re.sub(r" at https?://[\w.]+:\d+(/v1)?", "", text)
    text = re.sub(r"\bpid \d+", "pid …", text)
    text = re.sub(r" \(\w+Error\)", "", text)
    text = re.sub(r"(/[\w.-]+){3,}/", "…/", text)
    return text.replace("|", "/").replace("\n", " ").strip()[:300]


def document(rows: Sequence[Row]) -> str:
    """Return docs/reliability.md with the table of these results."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{rest.split(END)[1]}"


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Write the document."""
    DOCUMENT.write_text(document(list(read().values())), encoding="utf-8")


if __name__ == "__main__":
    main()
