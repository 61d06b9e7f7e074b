"""Screen ``.pt2`` files before PyTorch loads them, since loading can execute code from the file.

``torch.export.load`` unpickles constants, makes SymPy evaluate sizes, looks up functions by any name, and writes names from the
file into Python source. An exported program of tensors needs much less, and only that is accepted: tensors, operators of
PyTorch's own libraries, arithmetic for sizes, and plain names.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

__all__ = ["UntrustedError", "missing_operators", "registered_types", "screen"]

_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/(version|serialization_id)|models/model\.json"
    r"|data/(weights/(model_weights_config\.json|weight_\d+)|constants/(model_constants_config\.json|tensor_\d+)"
    r"|sample_inputs/model\.pt)|extra/[\w.-]+"
)
_NAME = re.compile(r"[\w.$:/+-]*")
"""Pattern of names of tensors, ops and weights: PyTorch writes them into the source of a module, in quotes or without."""
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|torchvision)\.(?!(from_file|save)\b)\w+(\.\w+)?"
    r"|torch\.ops\.higher_order\.(associative_scan|auto_functionalized|auto_functionalized_v2|cond|flex_attention|hints_wrapper"
    r"|invoke_subgraph|map_impl|out_dtype|scan|strict_mode|tag_activation_checkpoint|while_loop|while_loop_stack_output|wrap"
    r"|wrap_activation_checkpoint|wrap_with_autocast|wrap_with_set_grad_enabled)"
    r"|torch\.(sym_\w+|_sym_sqrt)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|not_|lshift|rshift|getitem)"
    r"|math\.(ceil|floor|trunc|sqrt)"
)
"""Pattern of operators that only compute, and write no file."""
_BITWISE = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
"""Operators of aten with such names; other names of this form belong to Python's objects."""
_CONTAINERS = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.deque"}
_TYPE = re.compile(r"[\w.]+")
_FREE_TEXT = {"metadata", "as_string", "as_strings", "torch_version"}
"""Fields that are kept as text, or written into source with ``repr``."""
_BY_NAME = {
    *("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "custom_obj_values", "as_string_to_argument"),
    *("config", "range_constraints", "opset_version"),
}
"""Fields that hold values by name; their keys are not fields, even if they have the name of one."""
_FUNCTIONS = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "Abs", "floor", "ceiling"),
    *("Equality", "Unequality", "LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan"),
    *("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Piecewise", "FloorDiv", "ModularIndexing", "Where", "PythonMod"),
    *("CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv"),
    *("IntTrueDiv", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity"),
    "IsNonOverlappingAndDenseIndicator",
}
_GUARD_FUNCTIONS = {"abs", "max", "min", "round"}
_GUARD_NAMES = {
    *(f"math.{name}" for name in ("acos", "asin", "atan", "cos", "cosh", "sin", "sinh", "tan", "tanh", "log2")),
    *("math.ceil", "math.floor", "math.trunc", "math.inf", "math.nan", "math.isnan", "torch.sym_float", "torch._sym_sqrt"),
}
"""Functions and constants of Python and PyTorch in guards, as ``torch.utils._sympy.printers.PythonPrinter`` writes them."""
_CONSTANTS = {"True", "False", "oo", "int_oo", "zoo", "nan", "positive", "integer", "real", "nonnegative"}
_SYMBOL = re.compile(r"[a-z]+_?\d+")
_NUMERAL = re.compile(r"-?\d{1,40}(\.\d{1,40})?(e[+-]?\d{1,3})?")
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Constant, ast.Name, ast.Load, ast.keyword),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)
_LARGEST_JSON = 1 << 28
_LONGEST_EXPRESSION = 10_000
_LARGEST_EXPONENT = 64
_CHARACTERS = re.compile(r"[\w .,()\[\]'\"<>=!&|^~+*/%-]*", re.ASCII)
"""Characters of expressions, without the ends of lines and starts of comments, which are read in several ways."""


class UntrustedError(Exception):
    """A file might execute code."""


def screen(path: Path) -> None:
    """Search a ``.pt2`` file for anything that could execute code while the file is loaded or described.

    Raises:
        UntrustedError: the file has content that an exported program of tensors does not need; the message says which.
        ValueError, OSError, zipfile.BadZipFile, RuntimeError: the file cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        reader = torch._C.PyTorchFileReader(str(path))
        # two readers have to agree, as a file could show one of them other content than the one that loads it
        folders = {name.partition("/")[0] for name in archive.namelist()}
        names = sorted(name.partition("/")[2] for name in archive.namelist())
        if not any(name.endswith(("models/model.json", "serialized_exported_program.json")) for name in archive.namelist()):
            raise ValueError("it holds no program")
        if len(folders) != 1 or names != sorted(reader.get_all_records()) or len(set(names)) != len(names):
            raise UntrustedError("it is not an archive of PyTorch 2.8 or later, or it can be read in several ways")
        for name in names:
            if not _MEMBERS.fullmatch(name):
                raise UntrustedError(f"it holds '{name[:80]}', which is not part of a program of tensors")
        folder = folders.pop()
        for name in names:
            if name.endswith(".json"):
                if archive.getinfo(f"{folder}/{name}").file_size > _LARGEST_JSON:
                    raise UntrustedError(f"its '{name}' is larger than {_LARGEST_JSON >> 20} MiB")
                text = archive.read(f"{folder}/{name}")
                if text != reader.get_record(name):
                    raise UntrustedError(f"its '{name}' is read in several ways")
                for field, value in _strings(json.loads(text), ""):
                    _check(field, value)


def missing_operators(path: Path) -> list[str]:
    """Return the names of operators that a trusted ``.pt2`` file calls but that are not defined in this process.

    Raises:
        ValueError, OSError, zipfile.BadZipFile, RuntimeError: the file cannot be read.
    """
    called = {value for field, value in _model_strings(path) if field == "target"}
    return sorted(name for name in called if name.startswith("torch.ops.") and not _is_defined(name))


def registered_types(path: Path) -> set[str]:
    """Return the names of types of inputs and outputs in a ``.pt2`` file that are no containers of Python.

    Raises:
        ValueError, OSError, zipfile.BadZipFile, RuntimeError: the file cannot be read.
    """
    specs = [value for field, value in _model_strings(path) if field in ("in_spec", "out_spec") and value]
    types = {kind for spec in specs for what, kind in _typed(json.loads(spec)) if what == "type" and kind is not None}
    return types - _CONTAINERS


def _model_strings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield every string in the descriptions of a file's programs, with the field that it is in."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("models/model.json"):
                yield from _strings(json.loads(archive.read(name)), "")


def _is_defined(operator: str) -> bool:
    found: Any = torch
    for part in operator.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def _strings(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yield every string in JSON data, including keys, with the field that it is in."""
    stack = [(value, field)]
    while stack:
        value, field = stack.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, list):
            stack += [(each, field) for each in value]
        elif isinstance(value, dict):
            for key, each in value.items():
                yield ("expr_str" if field == "range_constraints" else "key"), key
                if field in _BY_NAME:
                    stack.append((each, ""))
                elif key not in _FREE_TEXT:
                    stack.append((each, key))


def _check(field: str, value: str) -> None:
    if field in ("target", "as_operator"):
        if not _is_operator(value):
            raise UntrustedError(f"it calls '{value[:80]}', which is not one of PyTorch's own operators on tensors")
    elif field in ("expr_str", "guards_code"):
        _check_expression(value, guard=field == "guards_code")
    elif field in ("in_spec", "out_spec"):
        _check_containers(value)
    elif field == "path_name":
        if not re.fullmatch(r"(weight|tensor)_\d+", value):
            raise UntrustedError(f"it unpickles '{value[:80]}'")
    elif not _NAME.fullmatch(value):
        raise UntrustedError(f"it has the name {value[:80]!r}, with characters that no name contains")


def _is_operator(name: str) -> bool:
    """Return whether a name is an operator on tensors, including overloads that are written as Python's own."""
    *parts, last = name.split(".")
    return (
        _OPERATOR.fullmatch(name) is not None
        and "__" not in last
        and all(_BITWISE.fullmatch(part) for part in parts if "__" in part)
    )


def _check_expression(text: str, *, guard: bool) -> None:
    what = f"the expression {text[:80]!r}"
    if len(text) > _LONGEST_EXPRESSION:
        raise UntrustedError(f"{what}... is {len(text)} characters long")
    if not _CHARACTERS.fullmatch(text):
        raise UntrustedError(f"{what} is more than arithmetic with names and numbers")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UntrustedError(f"{what} is not a valid expression") from error
    allowed = (*_ARITHMETIC, ast.Subscript, ast.Attribute) if guard else _ARITHMETIC
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    first = {id(node.args[0]): node.func.id for node in calls if isinstance(node.func, ast.Name) and node.args}
    quoted = {argument for argument, function in first.items() if function == "Symbol"}
    numerals = {argument for argument, function in first.items() if function == "Float"}  # Float('0.5', precision=53)
    library: set[int] = set()
    if guard:  # L['x'].size()[0] <= 64 * math.trunc(torch.sym_float(L['y'].size()[0]))
        quoted |= {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                library |= {id(node), id(node.value)} if f"{node.value.id}.{node.attr}" in _GUARD_NAMES else set()
    for node in ast.walk(tree):
        ok = isinstance(node, allowed)
        if id(node) in library:
            continue
        if isinstance(node, ast.Name):
            if id(node) in called:
                ok = node.id in _FUNCTIONS or (guard and node.id in _GUARD_FUNCTIONS)
            else:
                ok = node.id in _CONSTANTS or (guard and node.id == "L") or _SYMBOL.fullmatch(node.id) is not None
        elif isinstance(node, ast.Attribute):
            ok = guard and node.attr in ("size", "stride", "storage_offset", "ndim", "shape", "dtype")
        elif isinstance(node, ast.Call):
            ok = isinstance(node.func, ast.Name) or (guard and isinstance(node.func, ast.Attribute))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            ok = id(node) in quoted and node.value.isidentifier() and "__" not in node.value
            ok = ok or (id(node) in numerals and _NUMERAL.fullmatch(node.value) is not None)
        elif isinstance(node, ast.Constant):
            ok = isinstance(node.value, int | float | bool) and abs(node.value) < 2**64
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            ok = isinstance(node.right, ast.Constant) and node.right.value in range(_LARGEST_EXPONENT)
        if not ok:
            raise UntrustedError(f"{what} is more than arithmetic with names and numbers")


def _check_containers(text: str) -> None:
    """Check the nesting of inputs and outputs, whose types are read as tuples (:func:`registered_types`)."""
    if not text:
        return
    for field, value in _typed(json.loads(text)):
        if field == "type":
            if value is not None and not _TYPE.fullmatch(value):
                raise UntrustedError(f"its inputs or outputs are in a '{str(value)[:80]}', which is no name of a type")
        elif value is not None and not all(
            field != "key" and _NAME.fullmatch(name) for field, name in _strings(json.loads(value), "")
        ):  # an object in JSON is made by importing the name in it
            raise UntrustedError(f"its inputs or outputs are in containers with {value[:80]}, which is more than names")


def _typed(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the type and the context of each node in the nested description of inputs or outputs. Raises UntrustedError."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            if value.keys() != {"type", "context", "children_spec"}:
                raise UntrustedError("its inputs or outputs are nested in an unknown way")
            yield "type", value["type"]
            yield "context", value["context"]
            stack.append(value["children_spec"])
