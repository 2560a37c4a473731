"""The table of docs/reliability.md is that of the kept results."""

from __future__ import annotations

from dataclasses import replace

import fault_results
from fault_results import Cell, Outcome


def test_the_document_shows_what_was_found() -> None:
    kept = fault_results.document(list(fault_results.read().values()))
    message = "make faults, or python tests/faults/matrix/fault_results.py, writes it"
    assert fault_results.DOCUMENT.read_text(encoding="utf-8") == kept, message


def test_a_row_says_what_was_seen_without_what_differs_each_time() -> None:
    cell = Cell(what="trainer", fault="SIGKILL", when="idle")
    texts = ["it at http://127.0.0.1:4711/v1 is down (pid 12)", "it is back | well"]
    found = Outcome(texts=[*texts, texts[0]], kept=["all", "all"], seconds=2.6)
    row = found.row(cell)
    assert row.seen == "it is down (pid …); it is back / well"
    failed = replace(Outcome().row(cell, "AssertionError: lost"), fault="SIGTERM")
    table = fault_results.table([row, failed])
    assert "2 cells" in table
    assert "1 failed" in table
    assert "* failed: `trainer-SIGTERM-idle`: AssertionError: lost" in table
    assert "| trainer, idle | 3 s | – | it is down (pid …); it is back / well; " in table
