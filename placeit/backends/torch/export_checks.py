"""Checks of modules and examples before they are exported, since PyTorch's errors do not say what to do."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from placeit.core.errors import ModelError, UsageError

__all__ = ["call_arguments", "check_dense", "check_device", "check_exportable", "not_a_model"]

_log = logging.getLogger("placeit")

_CONVERTED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def call_arguments(example: Any, kwargs: Any) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
    """Return the positional and the keyword arguments of a call; None for the former if there are neither.

    Raises:
        UsageError: they are no arguments of a call.
    """
    if not isinstance(kwargs, Mapping | None):
        raise UsageError(f"'kwargs' maps names of arguments to their values, and is of type {type(kwargs).__name__}.")
    if isinstance(example, torch.Tensor):
        example = (example,)
    elif isinstance(example, Mapping):
        example, kwargs = (), {**example, **(kwargs or {})}
    elif isinstance(example, str | np.ndarray) or not isinstance(example, Iterable | None):
        raise UsageError(
            f"'example' is of type {type(example).__name__}, and not the arguments of a call: give a tensor, or a tuple of the "
            "arguments (example=(x,))."
        )
    return (None if kwargs is None else ()) if example is None else tuple(example), dict(kwargs or {})


def not_a_model(given: object) -> UsageError:
    """Return the error for an object that is not a model."""
    kind = type(given).__name__
    if isinstance(given, type):
        return UsageError(f"{given.__name__} is a class: give an instance of it, {given.__name__}(...).")
    if callable(given):
        return UsageError(f"A {kind} is no module: give a torch.nn.Module that calls it in forward.")
    if isinstance(given, Mapping):
        return UsageError("Weights are no program: read them into their module (module.load_state_dict), and give the module.")
    return UsageError(f"A {kind} is no model: give the path of a file, or a PyTorch module.")


def check_exportable(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> None:
    """Check that a module can be exported with the arguments of a call. A hook of the module is logged.

    Raises:
        ModelError: the arguments do not fit; or a weight or an argument is quantised, without values, or not on the CPU.
    """
    for where, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            what = f"{name}: the module '{where}'" if where else name
            raise ModelError(
                f"{what} is a TorchScript module, which PyTorch does not export: give the module that it was made of."
            )
        if isinstance(part, torch.nn.DataParallel) and part.device_ids:
            raise ModelError(
                f"{name}: DataParallel divides batches among GPUs, and what runs where is what a placement decides: give the "
                "module inside (module.module)."
            )
        if type(part).__module__.startswith(_CONVERTED):
            raise ModelError(
                f"{name}: torch.ao.quantization has converted the module '{where}' to {type(part).__name__}, which PyTorch "
                "does not export: give the module before that, or quantise the ONNX file that placeit export writes."
            )
    parts = ((f"{where}." if where else "", vars(part).items()) for where, part in module.named_modules())
    plain = ((where + key, value) for where, items in parts for key, value in items if isinstance(value, torch.Tensor))
    for where, tensor in (*module.named_parameters(), *module.named_buffers(), *plain):
        _check_tensor(f"{name}: the weight '{where}'", tensor)
    try:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise ModelError(
            f"{name} cannot be called with the example: {error}. Give the arguments of a call (example=(x,), kwargs={{...}})."
        ) from error
    for where, value in given.items():
        for leaf in pytree.tree_leaves(value):
            _check_tensor(f"{name}: the input '{where}'", leaf)
    _log_hook(module, name)


def _check_tensor(what: str, value: Any) -> None:
    if is_lazy(value):
        raise ModelError(f"{what} is made by the first call of the module: call it once before it is exported.")
    if isinstance(value, np.ndarray):
        raise ModelError(f"{what} is a NumPy array, and modules take tensors: give torch.from_numpy(x).")
    if isinstance(value, np.generic):
        raise ModelError(f"{what} is a NumPy {value.dtype}, and modules take tensors and Python's numbers: give float(x).")
    if isinstance(value, torch.dtype | torch.device | torch.layout):
        raise ModelError(
            f"{what} is a torch.{type(value).__name__}, which is fixed in a program: have it in an attribute of the module."
        )
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise ModelError(
            f"{what} is a nested tensor, which has no fixed size: pad it (torch.nested.to_padded_tensor), with a mask."
        )
    if isinstance(value, torch.Tensor) and value.is_quantized:
        raise ModelError(f"{what} has the quantised type {value.dtype}, which PyTorch does not export: give x.dequantize().")
    check_dense(what, value)
    check_device(what, value)


def check_dense(what: str, value: Any) -> None:
    """Raise ModelError if a value is a sparse tensor."""
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        raise ModelError(
            f"{what} has the layout {value.layout}, which cannot be moved between devices: make it dense (to_dense())."
        )


def check_device(what: str, value: Any) -> None:
    """Raise ModelError if a value is not on the CPU."""
    for leaf in pytree.tree_leaves(value):
        if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
            continue
        if leaf.is_meta:
            raise ModelError(
                f"{what} is on meta, where tensors have no values: fill weights on the CPU by module.to_empty(device='cpu') "
                "and load_state_dict (module.cpu() cannot), and make inputs on the CPU."
            )
        raise ModelError(
            f"{what} is on {leaf.device}. Which device works with it is what a placement decides: have everything on the "
            "CPU (module.cpu()) when the module is exported or loaded."
        )


def _log_hook(module: torch.nn.Module, name: str) -> None:
    """Log the first hook that is not PyTorch's own."""
    for where, part in module.named_modules():
        for hook in (*part._forward_pre_hooks.values(), *part._forward_hooks.values()):
            code = getattr(hook, "__code__", None)
            if code is not None and not code.co_filename.startswith(tuple(torch.__path__)):
                _log.warning(
                    "%s has a hook%s (%s, line %d): what it computes is part of the program, and its other effects happen "
                    "once, when the module is exported. Remove it (handle.remove()) if it only observes.",
                    name,
                    f" at '{where}'" if where else "",
                    code.co_filename,
                    code.co_firstlineno,
                )
                return
