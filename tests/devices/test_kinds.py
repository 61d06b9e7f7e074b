"""A kind of device is one file in placeit/runtime/kinds: no other file of the product names a kind, or tells kinds apart."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import placeit
from placeit.core.cluster import Device
from placeit.core.errors import UsageError
from placeit.devices import parse_device
from placeit.devices.kinds import HARDWARE, KINDS, kind_of, kinds
from placeit.runtime.devices.kinds import DeviceKind

SOURCE = Path(placeit.__file__).parent
NAMES = KINDS.keys() | HARDWARE.keys() | {"null", "timed"}
ALLOWED = {
    "core/cluster.py: kind = 'openvino'",  # the default of Device.kind: devices are named as OpenVINO names them
    "devices/kinds.py: {'openvino', 'ort', 'torch', 'throughput', 'inductor'}",  # the table of kinds
    "devices/kinds.py: {'cuda'}",  # the table of hardware
}
"""What may name kinds, each with the reason."""
PACKAGES = {"install", "import_extra", "need", "installed"}  # functions that take names of packages and extras


def _named(node: ast.AST | None) -> list[str]:
    """Return names of kinds that are literals in an expression: a text, or a display of texts."""
    if node is None:
        return []
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text for text in texts if text in NAMES]


def _asks_for_kind(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in ("kind", "runtime") for one in ast.walk(node))


def _uses(tree: ast.AST) -> Iterator[str]:
    """Yield a text for each place that compares, sets or looks up a kind by its name."""
    packages = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PACKAGES
        for argument in node.args
    }
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(_asks_for_kind, (left, *others))):
                yield from (f"compares {name!r}" for name in _named(node))
            case ast.Match(subject=subject, cases=cases) if _asks_for_kind(subject):
                yield from (f"matches {name!r}" for case in cases for name in _named(case.pattern))
            case ast.keyword(arg="kind" | "runtime", value=value):
                yield from (f"sets {name!r}" for name in _named(value))
            case ast.AnnAssign(target=ast.Name(id="kind" | "runtime" as target), value=value):
                yield from (f"{target} = {name!r}" for name in _named(value))
            case ast.Call(func=ast.Name(id="Device"), args=[_, kind, *_]):
                yield from (f"makes {name!r}" for name in _named(kind))
            case ast.Dict(keys=keys) if keys and all(isinstance(key, ast.Constant) and key.value in NAMES for key in keys):
                yield "{" + ", ".join(repr(key.value) for key in keys if isinstance(key, ast.Constant)) + "}"
            case ast.Constant(value="ort") if id(node) not in packages:  # neither a format nor hardware is called so
                yield "writes 'ort'"


def test_no_file_but_those_of_the_kinds_names_a_kind() -> None:
    found = set[str]()
    for path in SOURCE.rglob("*.py"):
        where = path.relative_to(SOURCE).as_posix()
        if not where.startswith("runtime/kinds/"):
            found |= {f"{where}: {use}" for use in _uses(ast.parse(path.read_text(encoding="utf-8")))}
    assert found - ALLOWED - {"devices/kinds.py: writes 'ort'"} == set()
    assert found >= ALLOWED


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("if device.kind != 'ort': pass", "compares 'ort'"),
        ("if kinds == {'openvino'} or device.kind in ('cuda', 'torch'): pass", "compares 'torch'"),
        ("match device.kind:\n    case 'cuda' if ok: pass", "matches 'cuda'"),
        ("replace(device, kind='throughput')", "sets 'throughput'"),
        ("TABLE = {'openvino': 1, 'torch': 2}", "{'openvino', 'torch'}"),
        ("Device('a', 'null')", "makes 'null'"),
        ("NAMES = ['ort']", "writes 'ort'"),
    ],
)
def test_each_way_to_name_a_kind_is_found(code: str, use: str) -> None:
    assert use in set(_uses(ast.parse(code)))


def test_every_kind_of_the_table_is_one_file_that_says_what_it_is() -> None:
    for name, kind in kinds():
        assert isinstance(kind, DeviceKind)
        assert kind.label
        assert kind.formats
        assert KINDS[name].startswith("placeit.runtime.kinds.")
        assert kind.hardware is None or "{}" in kind.elsewhere


def test_an_unknown_kind_takes_no_format() -> None:
    assert kind_of(Device("a", "nothing")).formats == kind_of(Device("a", "described")).formats == ()


def test_a_plugin_whose_kind_is_no_subclass_is_told_the_page_about_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other_boards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-boards\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[placeit.device_kinds]\nother = other_boards:KIND\n", encoding="utf-8")
    (tmp_path / "other_boards.py").write_text("KIND = object()", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "other_boards", raising=False)
    with pytest.raises(UsageError) as caught:
        parse_device("other:0")
    said = str(caught.value)
    assert said.startswith("The kind of device 'other' (other_boards:KIND) is not an instance of a subclass of DeviceKind")
    assert said.endswith("(docs/plugins.md#devices).")
