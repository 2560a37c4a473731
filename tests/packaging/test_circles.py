"""No file imports in a circle: each can be read, and tested, after those that it imports."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = ("hermes_tui", "hermes_tui_training", "hermes_tui_services", "hermes_tui_common")


def test_no_module_imports_in_a_circle() -> None:
    """Imports inside functions and those for type checking alone count, too."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    assert len(graph.modules) > 100
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError("imports in a circle: " + " <- ".join(error.args[1])) from None
