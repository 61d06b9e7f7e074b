"""No modules import each other, be it through others, inside a function or for a type annotation alone.

A package's ``__init__`` is a module like any other: it imports the modules whose names it exports, and a module that takes a
name from it imports it. That Python runs it before the modules of its package does not count. Nor do modules that are named in
a string: tables of plug-ins, and the lazy exports of ``placeit/__init__.py``; but the imports that it has for type checkers do.
The compiled extension, which modules take by ``from placeit import _core``, is not the package.
"""

from __future__ import annotations

import grimp

EXTENSION = "from placeit import _core"


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """Return the sets of two and more modules each of which imports all others of its set, directly or not."""
    found = set()
    for module in graph.modules:
        found.add(frozenset({module} | (graph.find_upstream_modules(module) & graph.find_downstream_modules(module))))
    return {circle for circle in found if len(circle) > 1}


def imports_of_placeit() -> grimp.ImportGraph:
    """Return all imports among placeit's modules, except for imports of the extension."""
    graph = grimp.build_graph("placeit", exclude_type_checking_imports=False, cache_dir=None)
    for importer in graph.find_modules_that_directly_import("placeit"):
        details = graph.get_import_details(importer=importer, imported="placeit")
        if all(detail["line_contents"].strip().startswith(EXTENSION) for detail in details):
            graph.remove_import(importer=importer, imported="placeit")
    return graph


def test_no_modules_import_each_other() -> None:
    assert not [sorted(circle) for circle in circles(imports_of_placeit())]


def test_imports_inside_functions_and_for_annotations_count() -> None:
    graph = imports_of_placeit()
    found = graph.find_modules_directly_imported_by("placeit.backends")
    for_annotations, in_a_function = "placeit.backends.base", "placeit.backends.onnx_file"
    assert {for_annotations, in_a_function} <= found
    graph.add_import(importer=in_a_function, imported="placeit.backends")
    assert any({"placeit.backends", in_a_function} <= circle for circle in circles(graph))
