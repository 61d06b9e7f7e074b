"""Expressions of whole tensors: ops whose dimensions are named by indices, like Einstein sums.

The kinds of ops are taken from the DOPPLER paper (Appendix E.1): ``matmul``, ``input_elemwise``, ``straight_elemwise``,
``bcast_elemwise``, ``max_reduction`` and the other reductions, ``complexer``, ``fill``. Sharding adds ``formation`` and
``select``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.learning.workloads.tensors.nodes import Crop, IndexRange, Input, Kernel, Op, Reduction, TensorNode

__all__ = [
    "causal",
    "crop",
    "einsum",
    "elementwise",
    "reduction",
    "softmax",
    "tensor",
    "to_complex",
    "to_real",
]


def _product(block: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted(dims, reverse=True):  # torch.prod takes one dimension at a time
        block = block.prod(dim)
    return block


_REDUCE: Mapping[Reduction, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "product": _product,
}


def tensor(
    name: str,
    *shape: int,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    sample: Callable[[torch.Generator], Tensor] | None = None,
) -> TensorNode:
    """Declare an input.

    Args:
        name: name of the input.
        shape: its dimensions.
        dtype: its element type.
        scale: standard deviation of random test values.
        sample: draws test values in place of normally distributed ones.

    Raises:
        UsageError: a dimension is less than 1.
    """
    if any(size < 1 for size in shape):
        raise UsageError(f"Tensor '{name}' has shape {shape}; every dimension must be at least 1.")
    draw = sample or (lambda generator: torch.randn(shape, generator=generator, dtype=dtype) * scale)
    return Input(name, shape, dtype, sample=draw)


def einsum(name: str, equation: str, *operands: TensorNode) -> TensorNode:
    """Multiply operands and sum over the indices that are not in the result: ``"ik,kj->ij"`` is a matrix product.

    Raises:
        UsageError: the equation does not fit the operands, or there is only one.
    """
    if len(operands) < 2:
        raise UsageError(f"Op '{name}' multiplies {len(operands)} tensor; it takes two or more, and reduction() takes one.")
    return _op(name, "matmul", equation, operands, _contraction(equation), combine="sum", flops=2.0 * (len(operands) - 1))


def elementwise(name: str, equation: str, function: Kernel, *operands: TensorNode, flops: float = 1.0) -> TensorNode:
    """Apply a function element by element; operands without an index of the result are broadcast along it.

    Args:
        name: name of the op.
        equation: the indices, such as ``"ij,j->ij"``; the result has every index.
        function: function of tensors that broadcast against each other, such as ``torch.add``. It returns a new tensor of the
            first operand's type.
        operands: operands of the function.
        flops: floating-point operations per element of the result.

    Raises:
        UsageError: the equation does not fit the operands, or an index is not in the result.
    """
    terms, output = _terms(equation)
    missing = set("".join(terms)) - set(output)
    if missing:
        raise UsageError(f"Op '{name}' is element-wise, but the result of '{equation}' lacks index '{min(missing)}'.")
    if len(operands) == 1:
        kind = "input_elemwise"
    else:
        kind = "straight_elemwise" if set(terms) == {output} else "bcast_elemwise"
    return _op(name, kind, equation, operands, _broadcast(function, terms, output), flops=flops)


def reduction(name: str, equation: str, how: Reduction, operand: TensorNode) -> TensorNode:
    """Reduce the indices that are not in the result: ``"ij->i"``.

    Raises:
        UsageError: the equation does not fit the operand, leaves out no index, or changes the order of indices.
    """
    terms, output = _terms(equation)
    dims = tuple(dim for dim, index in enumerate(terms[0]) if index not in output)
    if not dims or output != "".join(index for index in terms[0] if index in output):
        raise UsageError(f"Op '{name}' reduces, so '{equation}' must leave out an index and keep the order of the others.")
    reduce = _REDUCE[how]
    return _op(name, f"{how}_reduction", equation, (operand,), lambda block: reduce(block, dims), combine=how, flops=1.0)


def to_complex(name: str, equation: str, operand: TensorNode) -> TensorNode:
    """Combine real and imaginary parts along the last dimension, of size two, into complex numbers: ``"scr->sc"``.

    Raises:
        UsageError: the equation does not fit the operand, or does not remove a last index of size two.
    """
    terms, output = _terms(equation)
    if not terms[0] or terms[0][:-1] != output or operand.shape[-1:] != (2,):
        raise UsageError(f"Op '{name}' makes complex numbers by '{equation}': the last index must be of size 2 and go away.")
    return _op(
        name,
        "complexer",
        equation,
        (operand,),
        lambda block: torch.view_as_complex(block).clone(),  # a view would keep its input alive and change with it
        dtype=operand.dtype.to_complex(),
        whole=terms[0][-1],
    )


def to_real(name: str, equation: str, operand: TensorNode) -> TensorNode:
    """Split complex numbers into real and imaginary parts along a new last dimension of size two: ``"sc->scr"``.

    Raises:
        UsageError: the equation does not fit the operand, adds no last index, or the operand is not complex.
    """
    terms, output = _terms(equation)
    if output[:-1] != terms[0] or not operand.dtype.is_complex:
        raise UsageError(f"Op '{name}' takes complex numbers apart: '{equation}' must add one last index to a complex tensor.")
    return _op(
        name,
        "complexer",
        equation,
        (operand,),
        lambda block: torch.view_as_real(block).clone(),
        dtype=operand.dtype.to_real(),
        whole=output[-1],
        new={output[-1]: 2},
    )


def causal(name: str, indices: str, operand: TensorNode) -> TensorNode:
    """Mask attention to later tokens: set elements to minus infinity where the last index exceeds the second to last.

    Raises:
        UsageError: the indices do not fit the operand, or are fewer than two.
    """
    if len(indices) < 2:
        raise UsageError(f"Op '{name}' compares the last two indices of '{indices}', which has {len(indices)}.")

    def kernel(ranges: Mapping[str, IndexRange]) -> Kernel:
        first = ranges[indices[-2]][0] - ranges[indices[-1]][0] + 1
        return lambda block: torch.full_like(block, -math.inf).triu(first).add_(block)

    equation = f"{indices}->{indices}"
    return replace(_op(name, "fill", equation, (operand,), torch.clone, flops=1.0), kernel=kernel)


def crop(name: str, operand: TensorNode, *ranges: IndexRange) -> TensorNode:
    """Return a part of a tensor, one range per dimension; it is cut into blocks as its reader requires.

    Raises:
        UsageError: a range is empty or outside of the tensor, or there is not one range per dimension.
    """
    if len(ranges) != len(operand.shape) or any(
        not 0 <= first < last <= size for (first, last), size in zip(ranges, operand.shape, strict=False)
    ):
        raise UsageError(f"Op '{name}' takes {ranges} of '{operand.name}', whose shape is {operand.shape}.")
    shape = tuple(last - first for first, last in ranges)
    return Crop(name, shape, operand.dtype, (operand,), starts=tuple(first for first, _ in ranges))


def softmax(name: str, indices: str, index: str, operand: TensorNode) -> TensorNode:
    """Compute the softmax along one index, in five ops: maximum, difference, exponential, sum, quotient."""
    others = indices.replace(index, "")
    maximum = reduction(f"{name}.max", f"{indices}->{others}", "max", operand)
    shifted = elementwise(f"{name}.sub", f"{indices},{others}->{indices}", torch.sub, operand, maximum)
    exponential = elementwise(f"{name}.exp", f"{indices}->{indices}", torch.exp, shifted)
    total = reduction(f"{name}.sum", f"{indices}->{others}", "sum", exponential)
    return elementwise(f"{name}.div", f"{indices},{others}->{indices}", torch.div, exponential, total)


def _op(
    name: str,
    kind: str,
    equation: str,
    operands: tuple[TensorNode, ...],
    kernel: Kernel,
    *,
    combine: Reduction = "sum",
    flops: float = 0.0,
    dtype: torch.dtype | None = None,
    whole: str = "",
    new: Mapping[str, int] = MappingProxyType({}),
) -> Op:
    """Make an op with the same kernel for every block; ``new`` holds the sizes of indices that are in no operand."""
    terms, output = _terms(equation)
    for term in (*terms, output):
        if "->" not in equation or re.fullmatch("[a-zA-Z]*", term) is None or len(set(term)) < len(term):
            raise UsageError(
                f"Op '{name}': '{equation}' is no equation; one is written like 'ik,kj->ij', with no letter twice in a term."
            )
    if len(terms) != len(operands):
        raise UsageError(f"Op '{name}': '{equation}' has {len(terms)} operands, and {len(operands)} were given.")
    sizes = dict(new)
    for term, operand in zip(terms, operands, strict=True):
        if len(term) != len(operand.shape):
            raise UsageError(f"Op '{name}': '{term}' stands for '{operand.name}', whose shape is {operand.shape}.")
        for index, size in zip(term, operand.shape, strict=True):
            if sizes.setdefault(index, size) != size:
                raise UsageError(
                    f"Op '{name}': index '{index}' of '{equation}' is {sizes[index]} in one operand and {size} in another."
                )
    unknown = set(output) - sizes.keys()
    if unknown:
        raise UsageError(f"Op '{name}': index '{min(unknown)}' of the result of '{equation}' is in no operand.")
    return Op(
        name,
        tuple(sizes[index] for index in output),
        dtype or operands[0].dtype,
        operands,
        kind=kind,
        terms=terms,
        output=output,
        sizes=sizes,
        kernel=lambda _ranges: kernel,
        combine=combine,
        flops=flops,
        whole=whole,
    )


def _terms(equation: str) -> tuple[tuple[str, ...], str]:
    """Return the indices of each operand and of the result."""
    left, _, output = equation.partition("->")
    return tuple(left.split(",")), output


def _contraction(equation: str) -> Kernel:
    if re.fullmatch(r"(.)(.),\2(.)->\1\3", equation):
        return torch.mm  # einsum calls it as well, with more overhead
    return lambda *blocks: torch.einsum(equation, *blocks).contiguous()


def _broadcast(function: Kernel, terms: Sequence[str], output: str) -> Kernel:
    """Return the kernel that applies a function to operands whose dimensions are aligned with the result's."""
    if all(output.endswith(term) for term in terms):
        return function  # torch aligns the last dimensions
    orders = [tuple(term.index(index) for index in output if index in term) for term in terms]
    where = [tuple(slice(None) if index in term else None for index in output) for term in terms]

    def run(*blocks: Tensor) -> Tensor:
        aligned = (block.permute(order)[index] for block, order, index in zip(blocks, orders, where, strict=True))
        return function(*aligned).contiguous()

    return run
