"""A placed PyTorch program as a module: it is called as the original module is, and returns the same structure of tensors."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from placeit.backends.base import Arrays
from placeit.backends.torch.border import as_array
from placeit.backends.torch.structure import arranged, shown
from placeit.core.errors import UsageError, first_line

__all__ = ["PlacedModule"]

_PLAIN = bool | int | float | complex | str | None
_OF_THE_PROGRAM = ("_inputs", "_results", "_types", "_takes", "_gives", "_run", "_outputs", "_pickled", "_original", "_kinds")
"""Attributes of a placed module that are made again from its program."""


class PlacedModule(torch.nn.Module):
    """A module whose calls run a placement. Other attributes are the original module's.

    Args:
        program: the program that was placed.
        original: the module that it was exported from; None if it came from a file.
        run: runs the placement once, on inputs by name.
        outputs: names of the program's tensors among its results, in their order.
        pickled: returns a function and its arguments, by which a pickle makes it again; None if it cannot be pickled.
    """

    def __init__(
        self,
        program: ExportedProgram,
        original: torch.nn.Module | None,
        run: Callable[[Arrays], Mapping[str, NDArray[np.generic]]],
        outputs: tuple[str, ...],
        pickled: Callable[[], tuple[Any, ...]] | None = None,
    ) -> None:
        super().__init__()
        signature, spec = program.graph_signature, program.call_spec
        self._inputs = [one.arg for one in signature.input_specs if one.kind is InputKind.USER_INPUT]
        self._results = [one.arg for one in signature.output_specs if one.kind is OutputKind.USER_OUTPUT]
        types = {node.name: node.meta["val"].dtype for node in program.graph.nodes if _is_tensor(node.meta.get("val"))}
        self._types = types
        self._takes, self._gives = spec.in_spec, spec.out_spec
        self._run, self._outputs, self._pickled = run, outputs, pickled
        positional, by_name = spec.in_spec.children()
        self._flat = all(child.is_leaf() for group in (positional, by_name) for child in group.children())
        count, self._names = len(positional.children()), list(by_name.context)
        known = {} if original is None else inspect.signature(original.forward).parameters
        order = [name for name, one in known.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        rest = next((name for name, one in known.items() if one.kind is one.VAR_POSITIONAL), "args")
        order += [f"{rest}[{number}]" for number in range(count - len(order))]
        self._positional, self._order = order[:count], order
        self._defaults = {name: one.default for name, one in known.items() if one.default is not one.empty}
        self._original = [original]  # in a list: its parts and weights are not this module's
        self._kinds = list(
            {one.dtype: one.new_empty(0) for one in program.state_dict.values() if one.is_floating_point()}.values()
        )
        self.training = False

    def __getattr__(self, name: str) -> Any:
        original = self.__dict__.get("_original", [None])[0]
        return super().__getattr__(name) if original is None else getattr(original, name)

    def train(self, mode: bool = True) -> PlacedModule:
        """Stay in evaluation mode. Raises UsageError if training mode is requested."""
        if mode:
            raise UsageError("A placed module is for inference only: train the original one, and place it again.")
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PlacedModule:  # noqa: ARG002
        """Stay as it is, for ``to`` and its kin. Raises UsageError if weights would get another type or device."""
        if any((one.dtype, one.device) != (made.dtype, made.device) for one in self._kinds for made in (fn(one),)):
            raise UsageError(
                "A placed module runs where its placement says, in its own types, with inputs and outputs in host memory: "
                "convert the original one, and place it again."
            )
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacedModule:
        """Return a module with its own hooks and attributes that runs the same placement."""
        made = PlacedModule.__new__(PlacedModule)
        made.__dict__ |= {name: copy.copy(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        return made

    __copy__ = functools.partialmethod(__deepcopy__, {})

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Return the placement, a reference to a file with the program, and hooks and attributes that were set here.

        Raises:
            UsageError: the module is not the result of a search, or reading the program could execute code.
            FileError, ModelError: the program cannot be written to placeit's cache folder.
        """
        if self._pickled is None:
            raise UsageError("Only the module of a result of placeit.optimize can be pickled: pickle found.module.")
        own = {name: value for name, value in vars(self).items() if name not in _OF_THE_PROGRAM}
        own["_defaults"] = {name: value for name, value in self._defaults.items() if isinstance(value, _PLAIN)}
        return (*self._pickled(), {**own, "_gives": pytree.treespec_dumps(self._gives)})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take hooks and attributes, and the types of results, if they are registered in this process."""
        with contextlib.suppress(NotImplementedError):
            self._gives = pytree.treespec_loads(state["_gives"])
        self.__dict__ |= {name: value for name, value in state.items() if name != "_gives"}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the placement; takes and returns what the original module does, with tensors in host memory and no gradients.

        Raises:
            UsageError: an argument is missing, unknown or given twice, is nested in another way than in the example, has
                another element type, is no dense tensor, or is a number, text or truth value that differs from the example's;
                or torch.jit traces the call, which would record its results as constants.
            ExecutionError: a device failed.
        """
        if torch.compiler.is_compiling():  # torch.compile would trace the executor
            return torch.compiler.disable(self._called)(*args, **kwargs)  # type: ignore[no-untyped-call]
        if torch.jit._trace.is_tracing():  # type: ignore[no-untyped-call]
            raise UsageError("A placed module cannot be traced, as its results would be constants: trace the original module.")
        return self._called(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._in_order(args, kwargs)
        leaves = [*args, *kwargs.values()] if self._flat else self._leaves((args, kwargs))
        inputs: dict[str, NDArray[np.generic]] = {}
        for arg, value in zip(self._inputs, leaves, strict=True):
            wanted = "a tensor" if isinstance(arg, TensorArgument) else repr(arg.value)
            if isinstance(arg, TensorArgument) and isinstance(value, torch.Tensor):
                inputs[arg.name] = self._array(arg.name, value)
            elif isinstance(arg, TensorArgument) or not _same(value, arg.value):
                raise UsageError(f"The argument '{arg.name}' is {_described(value)}, and the module was placed for {wanted}.")
        made = self._run(inputs)
        names, results = iter(self._outputs), list[Any]()
        for arg in self._results:
            value = torch.from_numpy(np.asarray(made[next(names)])) if isinstance(arg, TensorArgument) else arg.value
            if isinstance(arg, TensorArgument) and value.dtype is not (wanted := self._types[arg.name]):
                value = value.to(wanted)
            results.append(value)
        return pytree.tree_unflatten(results, self._gives)

    def _leaves(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> list[Any]:
        leaves, spec = pytree.tree_flatten(call)
        if spec != self._takes:
            leaves, spec = pytree.tree_flatten(arranged(call, self._takes))
        if spec != self._takes:
            raise UsageError(
                f"The arguments are nested as {_shown(spec)}, and in the example they were nested as {_shown(self._takes)}: "
                "place the module with an example of this kind."
            )
        return leaves

    def _array(self, name: str, value: torch.Tensor) -> NDArray[np.generic]:
        if value.dtype is not (wanted := self._types[name]):
            raise UsageError(
                f"The argument '{name}' is {value.dtype}, and the module was placed for {wanted}: convert it (x.to)."
            )
        try:
            return as_array(value)
        except (RuntimeError, TypeError) as error:
            raise UsageError(
                f"The argument '{name}' is no dense tensor with values. Where a module is exported, traced or transformed by "
                f"torch.func, use the original module. PyTorch says: {first_line(error)}"
            ) from error

    def _in_order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments as in the example: the same ones by position, the others by name, with the module's defaults."""
        if len(args) == len(self._positional) and list(kwargs) == self._names:
            return args, kwargs
        if len(args) > len(self._order):
            raise UsageError(
                f"The call has {len(args)} arguments by position, and the module was placed with {len(self._positional)}."
            )
        given = dict(zip(self._order, args, strict=False))
        for name in kwargs.keys() & given.keys():
            raise UsageError(f"The argument '{name}' is given twice, by position and by name: leave one out.")
        given |= kwargs
        wanted = [*self._positional, *self._names]
        for name, value in given.items():
            if name not in wanted and not _same(value, self._defaults.get(name)):
                raise UsageError(f"The argument '{name}' was not in the example, which has {', '.join(wanted)}.")
        given = self._defaults | given
        for name in wanted:
            if name not in given:
                raise UsageError(f"The argument '{name}' is missing; the module was placed with {', '.join(wanted)}.")
        return tuple(given[name] for name in self._positional), {name: given[name] for name in self._names}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _same(value: Any, constant: Any) -> bool:
    """Return whether an argument equals a constant of the program; tensors and arrays do not."""
    return value is constant or (not isinstance(value, torch.Tensor | np.ndarray) and bool(value == constant))


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return repr(value) if isinstance(value, _PLAIN) else f"of type {type(value).__name__}"


def _shown(spec: pytree.TreeSpec) -> str:
    """Return the structure of the arguments of a call, as they are written in a call, with ``*`` for each value."""
    positional, by_name = spec.children()
    named = zip(by_name.context, map(shown, by_name.children()), strict=True)
    return f"({', '.join([*map(shown, positional.children()), *(f'{name}={value}' for name, value in named)])})"
