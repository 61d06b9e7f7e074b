"""Ways to damage files of each format: bytes, trees (JSON), YAML, ONNX, zip archives, NumPy arrays, safetensors.

All functions draw from the generator that they are given, so that a case can be made again from its number.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = [
    "HARM",
    "change_archive",
    "change_array",
    "change_bytes",
    "change_json",
    "change_model",
    "change_safetensors",
    "change_tree",
    "change_yaml",
    "harm_program",
    "make_archive",
    "several",
    "to_json",
]

Random = random.Random

_DEEP, _LONG = "@deep@", "@long@"
"""Placeholders for values that ``json.dumps`` does not write: nested lists, and an integer of thousands of digits."""

ODD_NUMBERS = (-1, 0, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63) - 1, 10**399, 1e308, 1e-300, -0.5)
ODD_TEXTS = (
    "",
    " ",
    "\0",
    "../outside",
    "a\nb",
    "nan",
    "x" * 5000,
    "\ud800",
    "\u202e\x1b[31mred",
    "/etc/passwd",
    "{}",
    "1e999",
)
ODD = (None, True, False, float("nan"), float("inf"), [], {}, [[]], {"": None}, _DEEP, _LONG, *ODD_NUMBERS, *ODD_TEXTS)

HARM = "__import__('os').system('touch harm')"
"""Text that would run if some part of a file were executed as code."""


def several(data: Any, change: Callable[[Any, Random], Any], rng: Random) -> Any:
    """Change data once or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = change(data, rng)
    return data


def change_bytes(content: bytes, rng: Random) -> bytes:
    """Change one thing in a file: a bit, a byte, a number, a word, or its length."""
    data = bytearray(content or b"\0")
    at = rng.randrange(len(data))
    digits = [match.span() for match in re.finditer(rb"\d+", data)]
    words = [match.span() for match in re.finditer(rb"[A-Za-z_]{3,}", data)]
    match rng.choice(("bit", "byte", "digits", "word", "cut", "repeat", "zeros", "insert", "integer", "drop")):
        case "bit":
            data[at] ^= 1 << rng.randrange(8)
        case "byte":
            data[at] = rng.randrange(256)
        case "digits" if digits:
            a, b = rng.choice(digits)
            data[a:b] = str(rng.choice(ODD_NUMBERS)).encode()
        case "word" if len(words) > 1:
            (a, b), (c, d) = rng.sample(words, 2)
            data[a:b] = data[c:d]
        case "cut":
            del data[at:]
        case "repeat":
            data[at:at] = data[at : at + rng.randrange(1, 200)] * rng.choice((1, 1, 50))
        case "zeros":
            data[at : at + 8] = bytes(len(data[at : at + 8]))
        case "integer":
            data[at : at + 8] = struct.pack("<q", rng.choice((-1, 0, 2**31, 2**40, 2**62, -(2**63))))
        case "drop":
            del data[at : at + rng.randrange(1, 100)]
        case _:
            data[at:at] = rng.randbytes(rng.randrange(1, 16))
    return bytes(data)


def change_tree(tree: Any, rng: Random) -> Any:
    """Change one place of a tree of lists and dictionaries in place; return its new root."""
    places = list(_places(tree))
    if not places:
        return rng.choice(ODD)
    holder, key = rng.choice(places)
    value = holder[key]
    match rng.choice(("odd", "odd", "odd", "delete", "number", "swap", "copy", "wrap", "rename", "empty", "root")):
        case "delete":
            del holder[key]
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            holder[key] = rng.choice((-value, value + 1, value - 1, value * 1000, float(value), str(value), value / 2))
        case "swap":
            other, place = rng.choice(places)
            holder[key], other[place] = other[place], value
        case "copy" if isinstance(holder, list):
            holder[key:key] = [value] * rng.choice((1, 2, 100))
        case "wrap":
            holder[key] = rng.choice(([value], {"a": value}, [value, value]))
        case "rename" if isinstance(holder, dict):
            holder[rng.choice((*ODD_TEXTS, str(key).upper()))] = holder.pop(key)
        case "empty" if isinstance(value, list | dict):
            value.clear()
        case "root" if rng.random() < 0.2:
            return rng.choice(ODD)
        case _:
            holder[key] = rng.choice(ODD)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Return every place of a tree but its root: the container, and the key or index in it. Shared parts are returned once."""
    stack, seen = [tree], set[int]()
    while stack:
        holder = stack.pop()
        if id(holder) in seen or not isinstance(holder, list | dict):
            continue
        seen.add(id(holder))
        keys = range(len(holder)) if isinstance(holder, list) else list(holder)
        for key in keys:
            yield holder, key
            stack.append(holder[key])


def to_json(tree: Any) -> bytes:
    """Write a tree as JSON, with placeholders replaced by the values that they stand for."""
    try:
        text = json.dumps(tree)
    except (ValueError, RecursionError):  # a swap has made a part contain itself
        text = "[" * 50
    return text.replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000).replace(f'"{_LONG}"', "9" * 5000).encode()


def change_json(content: bytes, rng: Random) -> bytes:
    """Change a JSON file: a few places of its content, or its bytes."""
    try:
        tree = json.loads(content) if rng.random() < 0.75 else None
    except (ValueError, RecursionError):  # it has been changed before
        tree = None
    return several(content, change_bytes, rng) if tree is None else to_json(several(tree, change_tree, rng))


_YAML_VALUES = (
    *("inf", "-inf", ".nan", "nan", "-1", "0", "1e999", "1e-400", "9" * 300, "1e308 TB/s", "1 bit/s", "1e-300 s", "5 parsecs"),
    *(
        "null",
        "~",
        "[]",
        "{}",
        "[a, b]",
        "{a: b}",
        "&a [*a]",
        "*a",
        "''",
        '"\\0"',
        "!!int 3",
        "2001-01-01",
        "on",
        "CPU",
        "auto",
    ),
    *(
        "CPU@9999",
        "CPU@0-99999999999",
        "GPU.7",
        "ort:CPU@0",
        "cuda:0",
        "../outside",
        "|\n  text",
        "[" * 3000,
        "\u202e",
        "'\x07'",
    ),
    *("% CPU", "CPU@0,0,0", "0x10", "1_000", "a" * 201, "x" * 5000, "!!python/object/apply:os.system [touch harm]"),
)


def change_yaml(content: bytes, rng: Random) -> bytes:
    """Change a YAML file: lines, keys, values, or its bytes."""
    if rng.random() < 0.2:
        return several(content, change_bytes, rng)
    lines = content.decode("utf-8", "replace").splitlines() or [""]  # it may have been changed before
    at = rng.randrange(len(lines))
    words = [match.span() for match in re.finditer(r"[\w@./-]+", lines[at])]
    match rng.choice(("value", "value", "value", "key", "drop", "repeat", "indent", "swap", "tail")):
        case "drop":
            del lines[at]
        case "repeat":
            lines[at:at] = [lines[at]] * rng.choice((1, 1, 2000))
        case "indent":
            lines[at] = rng.choice(("  ", "\t", " ")) + lines[at]
        case "swap":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case "tail":
            lines.append(rng.choice(("---", "...", "links: 3", "colour: red", "devices: {}", "default_link: {}", ": :", "\0")))
        case "key" if words:
            a, b = rng.choice(words)
            lines[at] = lines[at][:a] + rng.choice(("", "colour", "runs_on", "flops", "<<", "x" * 300, "'a,b'")) + lines[at][b:]
        case _ if words:
            a, b = words[-1] if rng.random() < 0.5 else rng.choice(words)
            lines[at] = lines[at][:a] + rng.choice(_YAML_VALUES) + lines[at][b:]
    return ("\n".join(lines) + "\n").encode()


# --- ONNX ---

_OP_TYPES = (
    *("Relu", "Conv", "Gemm", "MatMul", "Add", "Concat", "Split", "Reshape", "Gather", "Loop", "If", "Scan", "NonZero"),
    *("LSTM", "Resize", "TopK", "Cast", "Shape", "ConstantOfShape", "Range", "Tile", "Expand", "Pad", "Slice", "Identity"),
    *("SequenceAt", "QuantizeLinear", "NonMaxSuppression", "Einsum", "Dropout", "RandomNormal", "Optional", "NoSuchOp", ""),
)
_ATTRIBUTES = ("axis", "axes", "perm", "pads", "kernel_shape", "group", "to", "strides", "mode", "body", "then_branch")
_DIMS = (-1, 0, 1, 2, 3, 7, 1000, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
_LOCATIONS = (
    *("../outside", "../../../../etc/passwd", "/etc/passwd", "", ".", "a\0b", "missing.bin", "weights.bin", "model.onnx"),
    "x" * 300,
)


def change_model(model: Any, rng: Random) -> Any:
    """Change one thing of an ``onnx.ModelProto``: a node, a tensor, an input, or its metadata."""
    changes = (_change_node, _change_edge, _change_attribute, _change_tensor, _change_border, _change_head)
    change = rng.choices(changes, (4, 2, 2, 4, 2, 1))[0]
    change(model if change is _change_head else model.graph, rng)
    return model


def _change_node(graph: Any, rng: Random) -> None:
    if not graph.node:
        return
    at = rng.randrange(len(graph.node))
    node = graph.node[at]
    match rng.choice(("type", "drop", "copy", "order", "name", "domain", "swap type", "many")):
        case "type":
            node.op_type = rng.choice(_OP_TYPES)
        case "drop":
            del graph.node[at]
        case "copy":
            graph.node.add().CopyFrom(node)
        case "order":
            nodes = list(graph.node)
            rng.shuffle(nodes)
            copies = [type(node).FromString(each.SerializeToString()) for each in nodes]
            del graph.node[:]
            graph.node.extend(copies)
        case "name":
            node.name = rng.choice((rng.choice(graph.node).name, *ODD_TEXTS[:5], "x" * 5000, "\x1b[31m", "a'b\"c"))
        case "domain":
            node.domain = rng.choice(("mine", "ai.onnx.ml", "com.microsoft", "", "\n"))
        case "swap type":
            other = rng.choice(graph.node)
            node.op_type, other.op_type = other.op_type, node.op_type
        case "many":
            for i in range(300):
                copy = graph.node.add()
                copy.CopyFrom(node)
                copy.output[:] = [f"{name}{i}" for name in node.output]


def _change_edge(graph: Any, rng: Random) -> None:
    names = [name for node in graph.node for name in (*node.input, *node.output)] + [value.name for value in graph.input]
    ends = [end for node in graph.node for end in (node.input, node.output) if end]
    if not ends:
        return
    end = rng.choice(ends)
    at = rng.randrange(len(end))
    match rng.choice(("other", "other", "missing", "drop", "more")):
        case "other":
            end[at] = rng.choice(names)
        case "missing":
            end[at] = rng.choice(("", "nowhere", "a/b", "\n", "x" * 3000))
        case "drop":
            del end[at]
        case "more":
            end.extend([rng.choice(names)] * rng.choice((1, 1, 300)))


def _change_attribute(graph: Any, rng: Random) -> None:
    from onnx import AttributeProto, helper

    node = rng.choice(graph.node) if graph.node else None
    if node is None:
        return
    if not node.attribute or rng.random() < 0.2:
        name = rng.choice(_ATTRIBUTES)
        value = rng.choice((-7, 3, [1, -1], [2**40], 0.5, "text", b"\xff\xfe", [0] * 1000))
        if name in ("body", "then_branch"):
            attribute = AttributeProto(name=name, type=AttributeProto.GRAPH)
            attribute.g.CopyFrom(graph)
            node.attribute.append(attribute)
        else:
            node.attribute.append(helper.make_attribute(name, value))
        return
    at = rng.randrange(len(node.attribute))
    attribute = node.attribute[at]
    match rng.choice(("value", "value", "value", "drop", "type", "name", "twice")):
        case "drop":
            del node.attribute[at]
        case "type":
            attribute.type = rng.randrange(15)
        case "name":
            attribute.name = rng.choice(("", "axis", "colour"))
        case "twice":
            node.attribute.add().CopyFrom(attribute)
        case _:
            if attribute.ints:
                index = rng.randrange(len(attribute.ints))
                if rng.random() < 0.3:
                    attribute.ints.extend([1] * rng.choice((1, 7)))
                else:
                    attribute.ints[index] = rng.choice(_DIMS)
            elif attribute.HasField("t"):
                _damage_tensor(attribute.t, rng)
            elif attribute.HasField("s"):
                attribute.s = rng.choice((b"", b"\xff\xff", b"SAME_UPPER", b"linear", b"x" * 4000))
            elif attribute.HasField("f"):
                attribute.f = rng.choice((float("nan"), float("inf"), -1e38, 0.0))
            else:
                attribute.i = rng.choice(_DIMS)


def _change_tensor(graph: Any, rng: Random) -> None:
    if not graph.initializer:
        return
    at = rng.randrange(len(graph.initializer))
    tensor = graph.initializer[at]
    match rng.choice(("damage", "damage", "drop", "name", "twice", "output")):
        case "drop":
            del graph.initializer[at]
        case "name":
            tensor.name = rng.choice(("", "nowhere", "x", rng.choice(graph.initializer).name))
        case "twice":
            graph.initializer.add().CopyFrom(tensor)
        case "output":
            graph.output.add().name = tensor.name
        case _:
            _damage_tensor(tensor, rng)


def _damage_tensor(tensor: Any, rng: Random) -> None:
    from onnx import TensorProto

    match rng.choice(("dims", "dims", "type", "data", "external", "external", "values")):
        case "dims" if tensor.dims and rng.random() < 0.7:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_DIMS)
        case "dims":
            tensor.dims.extend([rng.choice(_DIMS)] * rng.choice((1, 1, 40)))
        case "type":
            tensor.data_type = rng.choice((0, *TensorProto.DataType.values(), 99, -1))
        case "data" if tensor.raw_data:
            tensor.raw_data = change_bytes(tensor.raw_data, rng)
        case "external":
            if not tensor.external_data:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
            del tensor.external_data[:]
            fields = {"location": rng.choice(_LOCATIONS), "offset": str(rng.choice(_DIMS)), "length": str(rng.choice(_DIMS))}
            for key in rng.sample(sorted(fields), rng.choice((1, 1, 2, 3))):
                tensor.external_data.add(key=key, value=fields[key])
        case _:
            tensor.float_data.extend([float("nan")] * rng.choice((1, 1000)))


def _change_border(graph: Any, rng: Random) -> None:
    values = graph.input if rng.random() < 0.7 else graph.output
    if not values:
        return
    value = rng.choice(values)
    kind = value.type.tensor_type
    match rng.choice(("size", "size", "size", "rank", "no shape", "type", "name", "drop", "twice", "sequence", "open")):
        case "size" if kind.shape.dim:
            rng.choice(kind.shape.dim).dim_value = rng.choice(_DIMS)
        case "rank":
            for _ in range(rng.choice((1, 1, 30))):
                kind.shape.dim.add().dim_value = rng.choice(_DIMS)
        case "no shape":
            kind.ClearField("shape")
        case "type":
            kind.elem_type = rng.randrange(30)
        case "name":
            value.name = rng.choice(("", "nowhere", rng.choice(values).name, "\n", "x" * 3000))
        case "drop":
            values.remove(value)
        case "twice":
            values.add().CopyFrom(value)
        case "sequence":
            value.type.sequence_type.elem_type.tensor_type.elem_type = 1
        case _ if kind.shape.dim:
            rng.choice(kind.shape.dim).dim_param = rng.choice(("n", "", "batch size", "-1"))


def _change_head(model: Any, rng: Random) -> None:
    match rng.choice(("opset", "opset", "ir", "no opset", "domain", "no graph", "metadata")):
        case "opset" if model.opset_import:
            rng.choice(model.opset_import).version = rng.choice((0, 1, 5, 11, 13, 22, 99, 2**40, -1))
        case "ir":
            model.ir_version = rng.choice((0, 1, 3, 9, 99, -1))
        case "no opset":
            del model.opset_import[:]
        case "domain":
            model.opset_import.add(domain=rng.choice(("", "mine", "ai.onnx.ml")), version=rng.choice((1, 99)))
        case "no graph":
            model.ClearField("graph")
        case _:
            model.metadata_props.add(key=rng.choice(ODD_TEXTS[:5]), value="x" * 10_000)


# --- archives, arrays, safetensors ---


MemberChange = Callable[[str, bytes, Random], tuple[str, bytes]]


def change_archive(content: bytes, rng: Random, harm: Sequence[MemberChange] = ()) -> bytes:
    """Change a zip archive: its members, or its bytes.

    Args:
        content: the archive.
        rng: the random number generator.
        harm: additional ways to change one member, besides changes of bytes and JSON; they may rename it.
    """
    if rng.random() < 0.2:
        return several(content, change_bytes, rng)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    packed = zipfile.ZIP_STORED
    folder = members[0][0].partition("/")[0]
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(members))
        name, data = members[at]
        match rng.choice(("change", "change", "change", "change", "drop", "rename", "twice", "more", "pack", "harm", "harm")):
            case "drop" if len(members) > 1:
                del members[at]
            case "rename":
                up = f"{folder}/../../outside"
                members[at] = rng.choice((f"../{name}", "/etc/placeit", up, name.upper(), "", "x" * 70_000, "a\\b")), data
            case "twice":
                members.append((name, change_bytes(data, rng)))
            case "more":
                members.append((f"{folder}/{rng.choice(('x', 'extra/x', 'data/constants/custom_obj_0'))}", rng.randbytes(20)))
            case "pack":
                packed = zipfile.ZIP_DEFLATED
            case "harm" if harm:
                members[at] = rng.choice(harm)(name, data, rng)
            case _:
                members[at] = name, change_json(data, rng) if name.endswith(".json") else several(data, change_bytes, rng)
    return make_archive(members, packed)


def make_archive(members: Sequence[tuple[str, bytes]], packed: int = zipfile.ZIP_STORED) -> bytes:
    """Write a zip archive; a name may come twice."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", packed) as archive, warnings.catch_warnings(action="ignore"):
        for name, data in members:
            info = zipfile.ZipInfo(name[:60_000] or " ", (2020, 1, 1, 0, 0, 0))
            info.compress_type = packed
            archive.writestr(info, data)
    return stream.getvalue()


_TYPES = ("'<f4'", "'|O'", "[('a', '<f4')]", "'<U1000000000'", "'<c16'", "'<M8[s]'", "'>f8'", "'?'", "'V0'", "3", HARM)
_SHAPES = (
    *("(1, 3, 16, 16)", "(3,)", "(-1,)", "(1000000000000,)", "(500000000,)", "(0, 2147483648)", "[1]", "()", "(1,) * 99999999"),
    *("None", "(True, 3, 16, 16)", "(1.5,)", "(" * 3000, "(" + "1, " * 70 + ")", "(2**62, 4)", HARM),
)


def change_array(name: str, data: bytes, rng: Random) -> tuple[str, bytes]:
    """Change a member of an ``.npz`` file: the head of the array, its size, or its name."""
    size = int.from_bytes(data[8:10], "little")
    match rng.choice(("head", "head", "head", "version", "size", "name")):
        case "head":
            fields = f"'descr': {rng.choice(_TYPES)}, 'fortran_order': {rng.choice(('False', 'True', '3'))}"
            text = (
                f"{{{fields}, 'shape': {rng.choice(_SHAPES)}, }}" if rng.random() < 0.9 else rng.choice(("{}", "(", HARM, "\0"))
            )
            return name, data[:8] + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n" + data[10 + size :]
        case "version":
            return name, data[:6] + bytes((rng.choice((0, 2, 3, 9)), 0)) + data[8:]
        case "size":
            return name, data[:8] + rng.choice((0, 1, 65535)).to_bytes(2, "little") + data[10:]
    return rng.choice(("file.npy", "y.npy", name.removesuffix(".npy"), "x/../x.npy", "\n.npy")), data


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harm",)


def harm_program(name: str, data: bytes, rng: Random) -> tuple[str, bytes]:
    """Put code into a member of a ``.pt2`` archive at a place where it would run without a check."""
    if not name.endswith(".json"):
        return rng.choice((name, f"{name.partition('/')[0]}/data/constants/opaque_obj_0")), pickle.dumps(_Harm())
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):  # it has been changed before
        return name, HARM.encode()
    if not isinstance(tree, dict):
        return name, to_json([HARM])
    places = [(holder, key) for holder, key in _places(tree) if isinstance(holder[key], str)]
    wanted = [place for place in places if place[1] in ("target", "expr_str", "name", "path_name", "in_spec", "out_spec")]
    if isinstance(tree.get("guards_code"), list) and rng.random() < 0.3:
        tree["guards_code"] = [HARM]
    elif places:
        holder, key = rng.choice(wanted or places)
        holder[key] = rng.choice((HARM, "os.system", "x): pass\nimport os #", "opaque_obj_0", "torch.ops.aten.add.__class__"))
    return name, to_json(tree)


def change_safetensors(content: bytes, rng: Random) -> bytes:
    """Change a safetensors file: its header, the length of that, or its bytes."""
    size = int.from_bytes(content[:8], "little")
    head, rest = content[8 : 8 + size], content[8 + size :]
    match rng.choice(("head", "head", "length", "bytes", "rest")):
        case "head":
            head = change_json(head, rng)
        case "length":
            return struct.pack("<Q", rng.choice((0, 1, size + 1, size - 1, 2**40, 2**64 - 1))) + content[8:]
        case "rest":
            rest = several(rest, change_bytes, rng)
        case _:
            return several(content, change_bytes, rng)
    return struct.pack("<Q", len(head)) + head + rest
