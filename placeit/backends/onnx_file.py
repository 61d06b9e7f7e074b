"""Check and read parts of ONNX files that OpenVINO does not check or report."""

from __future__ import annotations

import contextlib
import mmap
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placeit.core.errors import FileError, ModelError
from placeit.core.files import check_regular
from placeit.core.protobuf import LENGTH_DELIMITED, message_fields

if TYPE_CHECKING:
    import onnx

__all__ = [
    "FOREIGN_OPS",
    "ROUNDING_OPS",
    "check_external_files",
    "check_inputs",
    "check_nodes",
    "external_files",
    "find_ops",
    "node_names",
    "output_names",
    "read_plain",
    "unusual_parts",
]

_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
}
"""Fields of ONNX's messages that may contain names of other files: kinds of messages, by kind and field number."""
_NODES = {
    "model": {7: "graph", 8: "operator set", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node", 9: "operator set"},
    "node": {5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}
"""Fields of ONNX's messages that may contain nodes, or the versions of their operators."""
_LISTS = frozenset((7, 8, 9))
"""Fields of an attribute that are lists of numbers or texts. An attribute has a value in one of its fields only."""
FOREIGN_OPS = ("ai.onnx.ml.", "ai.onnx.preview.")
"""Prefixes of the names of ops that OpenVINO does not know, such as tree ensembles."""
ROUNDING_OPS = (
    *("ConvInteger", "DynamicQuantizeLinear", "MatMulInteger", "QLinear"),
    *("com.microsoft.Dynamic", "com.microsoft.MatMulInteger", "com.microsoft.QAttention", "com.microsoft.QGemm"),
    *("com.microsoft.QLinear", "com.microsoft.QEmbed"),
)
"""Prefixes of the names of ops on quantised numbers that ONNX Runtime's tools write."""
_NO_TENSORS = {4: "a sequence", 5: "a map", 8: "a sparse tensor", 9: "optional"}
"""Names of types that are not tensors, by field number."""
_LOCATION = b"\n\x08location\x12"
"""First bytes of an entry of external data that names a file."""
_MAX_VERSION = 1000
"""A version far above all versions of ONNX's operators; there were 26 in 2026."""
_COUNTED = "", "ai.onnx", "com.microsoft"
"""Domains of operators whose versions OpenVINO tries, up to the version in the file. The first two are ONNX's own."""


def node_names(path: Path) -> set[str]:
    """Return the names of nodes and tensors of an ONNX file, without reading its weights."""
    with _mapped(path) as data:
        return {
            data[a:b].decode(errors="replace")
            for kind, _, _, fields in _messages(data, {"model": {7: "graph"}, "graph": {1: "node"}})
            if kind == "node"
            for number, a, b in fields
            if number in (2, 3)  # outputs, and the name
        }


def find_ops(path: Path, prefixes: tuple[str, ...]) -> list[str]:
    """Return the kinds of ops in an ONNX file whose names have one of some prefixes.

    Returns:
        Sorted names such as ``ai.onnx.ml.TreeEnsembleClassifier`` or ``LSTM``; empty for a damaged file.
    """
    found: set[str] = set()
    try:
        with _mapped(path) as data:
            for kind, _, _, fields in _messages(data, _NODES):
                if kind == "node":
                    texts = {number: data[a:b].decode(errors="replace") for number, a, b in fields if number in (4, 7)}
                    domain = texts.get(7, "")
                    name = f"{'' if domain == 'ai.onnx' else domain}.{texts.get(4, '')}".removeprefix(".")
                    if name.startswith(prefixes):
                        found.add(name)
    except (OSError, ValueError):
        return []
    return sorted(found)


def check_nodes(path: Path) -> None:
    """Check properties of an ONNX file with which OpenVINO's reader crashes or takes for ever.

    It crashes if an op lacks an input, and tries all versions of operators up to the version in the file.

    Raises:
        ModelError: an op lacks an input that it needs, or the version in the file does not exist.
    """
    from google.protobuf.message import DecodeError
    from onnx import OperatorSetIdProto, defs
    from onnx.defs import OpSchema

    needs: dict[str, list[bool]] = {}
    version = 1
    with _mapped(path) as data:
        nodes = []
        for kind, start, end, fields in _messages(data, _NODES):
            if kind == "operator set":
                with contextlib.suppress(DecodeError):  # damaged, as OpenVINO will report
                    given = OperatorSetIdProto.FromString(data[start:end])
                    if given.domain in _COUNTED and given.version > _MAX_VERSION:
                        raise ModelError(
                            f"{path} uses version {given.version} of ONNX's operators, which does not exist: it is damaged."
                        )
                    version = max(version, given.version if given.domain in _COUNTED[:2] else 1)
            elif kind == "node":
                nodes.append(fields)
        for fields in nodes:
            texts = {number: data[a:b].decode(errors="replace") for number, a, b in fields if number in (2, 4, 7)}
            op = texts.get(4, "")
            if texts.get(7, "") not in _COUNTED:  # com.microsoft has ops of the same names
                continue
            if op not in needs:
                try:
                    schema = defs.get_schema(op, version, "")
                    needed = [given.option != OpSchema.FormalParameterOption.Optional for given in schema.inputs]
                    needs[op] = (needed + needed[-1:] * schema.min_input)[: schema.min_input]
                except defs.SchemaError:
                    needs[op] = []
            has = [b > a for number, a, b in fields if number == 1]
            if len(has) < len(needs[op]) or any(need and not one for need, one in zip(needs[op], has, strict=False)):
                raise ModelError(
                    f"{path}: op '{texts.get(2, '')}' ({op}) has {sum(has)} inputs and needs at least {len(needs[op])}."
                )


def external_files(path: Path) -> list[Path]:
    """Return the external weight files that an ONNX file names; empty if it cannot be read or is damaged."""
    names: dict[str, None] = {}
    try:
        if not path.is_file():
            return []
        with _mapped(path) as data:
            for kind, start, _, fields in _messages(data, _PARTS) if data.find(_LOCATION) >= 0 else ():
                if kind == "external data" and data[start : start + len(_LOCATION)] == _LOCATION:
                    entry = {number: data[a:b] for number, a, b in fields}
                    names[os.fsdecode(entry.get(2, b""))] = None
    except (OSError, ValueError):
        return []
    return [path.parent / name for name in names if name and "\0" not in name]


def check_external_files(path: Path, *, trust: bool = False) -> None:
    """Check that the external weight files of an ONNX file can be read, and are in the folder of the ONNX file.

    Args:
        path: the ONNX file.
        trust: whether links may lead to other folders of the Hugging Face cache that the file is in.

    Raises:
        FileError: a file cannot be read.
        ModelError: a file is outside of the model's folder. ONNX readers refuse it, since a model could name any file.
    """
    for file in external_files(path):
        check_regular(file)
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            beside_target = os.path.exists(Path(os.path.realpath(path)).parent / file.name)  # noqa: PTH110 (Path.exists may raise)
            hint = f"It is beside the file that {path.name} is a link to: give placeit that one."
            raise FileError(
                f"Cannot read {file}, which holds weights of {path}: {error.strerror or error}. "
                f"{hint if beside_target else 'Put it there.'}"
            ) from error
        if Path(os.path.relpath(file, path.parent)).parts[0] == "..":
            raise ModelError(f"{path} keeps weights in {file}, outside of its folder; weights are read from that folder only.")
        folder, real = Path(os.path.realpath(path.parent)), Path(os.path.realpath(file))
        if real.is_relative_to(folder):
            continue
        what = f"{path} keeps weights in {file}, which is a link to {real}"
        snapshots = (parent for parent in folder.parents if parent.name == "snapshots")  # of the Hugging Face cache
        if not any(real.is_relative_to(parent.parent / "blobs") for parent in snapshots):
            copy = Path("copy", os.path.relpath(file, path.parent))
            steps = ("mkdir", "-p", copy.parent), ("cp", "-L", path, "copy/"), ("cp", "-L", file, copy)
            raise ModelError(
                f"{what}. Weights are not read from outside of a model's folder, since a link may lead to any file. Copy both "
                f"without links, and give placeit the copy: `{' && '.join(shlex.join(map(str, step)) for step in steps)}`."
            )
        if not trust:
            raise ModelError(
                f"{what}, as in the cache of Hugging Face. Links out of a folder are followed only for authors whom you "
                "trust, and only inside of that cache: add --trust (trust=True in Python)."
            )


def unusual_parts(path: Path) -> bool:
    """Return whether an ONNX file has local functions or sparse initializers, which OpenVINO does not read."""
    parts = {"model": {7: "graph", 25: "function"}, "graph": {1: "node", 15: "sparse tensor"}}
    parts |= {"node": {5: "attribute"}, "attribute": {6: "graph", 11: "graph"}}
    with _mapped(path) as data:
        return any(kind in ("function", "sparse tensor") for kind, *_ in _messages(data, parts))


def read_plain(path: Path, *, in_place: bool = False) -> onnx.ModelProto:
    """Read an ONNX file, inline its local functions, and replace its sparse initializers by dense ones.

    Large weights stay in files (:func:`placeit.backends.onnx_external.read_proto`).

    Args:
        path: the file.
        in_place: whether large weights that are in the file itself stay there as well.

    Raises:
        ModelError: the file cannot be parsed, or a function calls itself.
        OSError: it cannot be read.
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import inliner

    from placeit.backends.onnx_external import read_proto

    try:
        model = read_proto(path, in_place=in_place)
        if model.functions:
            model = inliner.inline_local_functions(model)
    except (DecodeError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"Cannot read {path} with its local functions inlined: {str(error).strip().splitlines()[0]}"
        ) from error
    _densify(model.graph)
    return model


def _densify(graph: onnx.GraphProto) -> None:
    """Replace the sparse initializers of a graph, and of the bodies of its nodes, by dense ones."""
    import numpy as np
    from onnx import numpy_helper

    for sparse in graph.sparse_initializer:
        values, places = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
        dense = np.zeros(tuple(sparse.dims), values.dtype)
        dense[tuple(places.T) if places.ndim == 2 else np.unravel_index(places, dense.shape)] = values
        graph.initializer.append(numpy_helper.from_array(dense, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                _densify(body)


def check_inputs(path: Path) -> None:
    """Raise ModelError if an input of an ONNX file is not a tensor, but a sequence, for example. Damage is not reported."""
    with _mapped(path) as data:
        for value in _values(data, 11):
            fields = {number: (a, b) for number, a, b in value}
            kinds = [number for number, *_ in _protobuf_fields(data, *fields[2])] if 2 in fields and 1 in fields else []
            if kinds and kinds[0] in _NO_TENSORS:
                name = data[slice(*fields[1])].decode(errors="replace")
                raise ModelError(
                    f"{path}: the input '{name}' is {_NO_TENSORS[kinds[0]]}, and only tensors of numbers can be passed."
                )


def output_names(path: Path) -> list[str]:
    """Return the names of an ONNX file's outputs, in its order."""
    with _mapped(path) as data:
        names = [[data[a:b] for number, a, b in value if number == 1] for value in _values(data, 12)]
    return [name.decode(errors="replace") for found in names for name in found[:1]]


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """Map a file into memory. Raises OSError, or ValueError if it is empty."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def _messages(
    data: mmap.mmap, parts: Mapping[str, Mapping[int, str]]
) -> Iterator[tuple[str, int, int, list[tuple[int, int, int]]]]:
    """Yield the messages of an ONNX file: kind, start and end of each, and its fields.

    The fields of an attribute end at its list of numbers or texts, since lists of trees have millions.

    Args:
        data: the file.
        parts: kinds of the messages to descend into, by kind of the outer message and field number. The file is a ``model``.
    """
    stack = [("model", 0, len(data))]
    while stack:
        kind, start, end = stack.pop()
        fields = list(_protobuf_fields(data, start, end, _LISTS if kind == "attribute" else frozenset()))
        yield kind, start, end, fields
        inner = parts.get(kind, {})
        stack += [(inner[number], a, b) for number, a, b in fields if number in inner]


def _values(data: mmap.mmap, field: int) -> list[list[tuple[int, int, int]]]:
    """Return the fields of the descriptions of an ONNX graph's inputs (field 11) or outputs (field 12), in order."""
    graphs = [(a, b) for number, a, b in _protobuf_fields(data, 0, len(data)) if number == 7]
    values = [(a, b) for graph in graphs for number, a, b in _protobuf_fields(data, *graph) if number == field]
    return [list(_protobuf_fields(data, *value)) for value in values]


def _protobuf_fields(data: mmap.mmap, at: int, end: int, last: frozenset[int] = frozenset()) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the length-delimited fields of a protobuf message.

    Stops at invalid data, and before the first field whose number is in ``last``.
    """
    for number, kind, start, stop in message_fields(data, at, end):
        if number in last:
            return
        if kind == LENGTH_DELIMITED:
            yield number, start, stop
