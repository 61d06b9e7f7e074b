"""Determine the shapes of a model's inputs from the file and the user's options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from placeit.core import clock
from placeit.core.errors import ModelError, UsageError
from placeit.core.sizes import LARGEST, SizeRange, fits, parsed_size
from placeit.core.telemetry import import_openvino

__all__ = ["NO_RULE", "OpenSizesError", "Resolved", "Sizes", "resolve_shapes", "with_suggestion"]

openvino = import_openvino()

_SIZES = ((224, 128), (640, 512), (256, 64), (512, 256), (96, 32), (64, 16), (32, 8), (1, 1))
"""Sizes to try for open dimensions, in pairs: for the edges of images (most can be halved five times), and for the others."""
_CHANNELS = (1, 3, 4)  # numbers of channels by which a shape counts as an image
NO_RULE = "No conversion rule found"
"""OpenVINO's text in errors about ops that it does not know."""
_TIMEOUT_S = 20.0  # seconds after which no more sizes are tried


class OpenSizesError(ModelError):
    """A model has inputs with open sizes that no option gives.

    Attributes:
        partial: ``PartialShape`` of these inputs, by name.
        known: ``PartialShape`` of every input, by name.
        advised: whether the message says which option to give.
        guess: shapes of these inputs with which the model can be read, by name; empty if unknown.
    """

    guess: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def __init__(
        self, message: str, partial: Mapping[str, Any] = {}, known: Mapping[str, Any] = {}, *, advised: bool = False
    ) -> None:
        super().__init__(message)
        self.partial, self.known, self.advised = partial, known, advised


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model's inputs that a user gives.

    Attributes:
        shapes: requested shapes, by input name; a range for a size that stays open.
        batch: the first size of every input that leaves it open; None if not given.
        samples: shapes of the inputs that the model is to run on, by name; used for sizes that nothing else gives.
        context: tokens of the longest text of a decoder, for the shapes of its inputs that are not given; None if not given.
    """

    shapes: Mapping[str, tuple[int | SizeRange, ...]] = field(default_factory=dict)
    batch: int | None = None
    samples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    context: int | None = None

    @classmethod
    def of(
        cls,
        input_shapes: Mapping[str, Sequence[int | str | SizeRange]] | None,
        batch: int | None,
        sample_shapes: Mapping[str, Sequence[int]] | None,
        context: int | None = None,
    ) -> Self:
        """Return the sizes that the options of a loader give. Raises UsageError for a text that is not a range."""
        shapes = {name: tuple(map(parsed_size, shape)) for name, shape in (input_shapes or {}).items()}
        samples = {name: tuple(map(int, shape)) for name, shape in (sample_shapes or {}).items()}
        return cls(shapes, batch, samples, context)


@dataclass(frozen=True)
class Resolved:
    """Shapes of a model's inputs.

    Attributes:
        partial: a ``PartialShape`` for each input, by name, with bounds where a size stays open.
        typical: the typical shapes of each input with open sizes, by name; the same number for each.
        times: how often each typical shape occurs, in proportion.
    """

    partial: dict[str, Any]
    typical: dict[str, tuple[tuple[int, ...], ...]]
    times: tuple[int, ...] = (1,)


def resolve_shapes(path: Path, partial: Mapping[str, Any], sizes: Sizes) -> Resolved:
    """Return the shape of every input, which is static unless a range of sizes was requested.

    Args:
        path: the file, for messages.
        partial: shapes in the file, by input name.
        sizes: sizes from the user.

    Raises:
        OpenSizesError: a size is left open.
        ModelError: an option does not fit the model.
        UsageError: an input that the model is to run on does not fit it.
    """
    shapes, batch, samples = sizes.shapes, sizes.batch, sizes.samples
    if batch is not None and not 1 <= batch <= LARGEST:
        raise ModelError(f"{path}: a batch of {batch} is not possible; it is the number of samples in one inference.")
    for name in shapes:
        if name not in partial:
            raise ModelError(f"{path} has no input '{name}', for which a shape is given; its inputs are {', '.join(partial)}.")
    resolved: dict[str, Any] = {}
    typical: dict[str, tuple[tuple[int, ...], ...]] = {}
    times: tuple[int, ...] = (1,)
    takes_batch = False
    for name, shape in partial.items():
        if name in shapes:
            spelled = f"{path}: the shape given for input '{name}', [{', '.join(map(str, shapes[name]))}]"
            if any(not 1 <= size <= LARGEST for size in shapes[name] if isinstance(size, int)):
                raise ModelError(f"{spelled}, contains a size that is not from 1 to {LARGEST}.")
            if not shape.compatible(openvino.PartialShape([-1] * len(shapes[name]))):
                raise ModelError(f"{spelled}, has {len(shapes[name])} dimensions where the model has {shape}.")
            ends = [(size, size) if isinstance(size, int) else (size.least, size.most) for size in shapes[name]]
            resolved[name] = openvino.PartialShape([openvino.Dimension(*end) for end in ends])
            if resolved[name].is_dynamic:
                typical[name], times_here = _typical_shapes(name, shapes[name], samples.get(name))
                times = _common_times(f"The typical sizes of the input '{name}' and of other inputs", times, times_here)
            continue
        if batch is not None and shape.rank.is_static and len(shape) > 0:
            takes_batch = takes_batch or shape[0].compatible(openvino.Dimension(batch))
            if shape[0].is_dynamic:
                shape = openvino.PartialShape([openvino.Dimension(batch), *list(shape)[1:]])
        if shape.is_dynamic and name in samples:
            if not shape.compatible(openvino.PartialShape(list(samples[name]))) or 0 in samples[name]:
                raise UsageError(f"The input '{name}' has the shape {list(samples[name])}; the model expects {shape}.")
            shape = openvino.PartialShape(list(samples[name]))
        resolved[name] = shape
    unresolved = {name: shape for name, shape in resolved.items() if shape.is_dynamic and name not in typical}
    if unresolved:
        listing = ", ".join(f"input '{name}' has the open shape {shape}" for name, shape in unresolved.items())
        raise OpenSizesError(f"{path}: {listing}, and a placement is for one shape", unresolved, resolved)
    if batch is not None and not takes_batch and not shapes:
        listing = ", ".join(f"'{name}' {shape}" for name, shape in partial.items())
        raise ModelError(f"{path}: no input takes a batch of {batch} (inputs: {listing}); give shapes with --input-shape.")
    return Resolved(resolved, {name: found * (len(times) // len(found)) for name, found in typical.items()}, times)


def _typical_shapes(
    name: str, shape: Sequence[int | SizeRange], sample: Sequence[int] | None
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the typical shapes of an input, and how often each occurs.

    An open dimension without typical sizes has the size of the sample, or its largest size if there is no sample.

    Raises:
        UsageError: the sample is out of range, or several dimensions have different numbers of typical sizes.
    """
    limits = tuple((size, size) if isinstance(size, int) else (size.least, size.most) for size in shape)
    spelled = ", ".join(map(str, shape))
    if sample is not None and not fits(sample, (), limits):
        raise UsageError(f"The input '{name}' has the shape {list(sample)}, which is not within [{spelled}].")
    columns: list[tuple[int, ...]] = []
    times: tuple[int, ...] = (1,)
    for i, size in enumerate(shape):
        if isinstance(size, int):
            columns.append((size,))
        elif size.typical:
            columns.append(size.typical)
            times = _common_times(f"The sizes [{spelled}] of the input '{name}'", times, size.times)
        else:
            columns.append((size.most if sample is None else sample[i],))
    return tuple(zip(*(sizes * (len(times) // len(sizes)) for sizes in columns), strict=True)), times


def _common_times(what: str, one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Merge the frequencies of the typical sizes of two inputs or dimensions. Raises UsageError if they do not agree."""
    if len(one) == 1:
        return other
    if len(other) == 1 or other == one:
        return one
    if len(one) != len(other) or len({*other}) > 1 < len({*one}):
        raise UsageError(f"{what} do not go together: give the same number of typical sizes everywhere, each as often.")
    return one if len({*one}) > 1 else other


def with_suggestion(
    error: OpenSizesError, load: Callable[[Mapping[str, tuple[int, ...]]], object], explain: Callable[[str], str]
) -> ModelError:
    """Return an error about open sizes that suggests sizes with which the model can be read.

    If there are none, it lists the sizes that were tried, and is a plain ModelError. An error of ``load`` about ops that
    OpenVINO does not know is raised, since no sizes help.

    Args:
        error: the original error.
        load: reads the model with shapes of the inputs with open sizes, by name; raises if they do not fit.
        explain: returns a sentence for the message of an error of ``load``.
    """
    start = clock.now()
    tried: list[dict[str, tuple[int, ...]]] = []
    why = ""
    for image, other in _SIZES:
        shapes = {name: _guessed(shape, image, other) for name, shape in error.partial.items()}
        if shapes in tried:
            continue
        if tried and clock.now() - start > _TIMEOUT_S:
            break
        tried.append(shapes)
        try:
            load(shapes)
        except Exception as failed:
            if NO_RULE in str(failed):
                raise
            why = why or explain(str(failed))
            continue
        known = (shape.rank.is_static and all(size.is_static for size in list(shape)[1:]) for shape in error.partial.values())
        batch = " (or --batch 1)" if all(known) else ""
        message = f"{error}: give all sizes. With these it can be read: {_options(shapes)}{batch}."
        suggestion = OpenSizesError(message, error.partial, error.known)
        suggestion.guess = shapes
        return suggestion
    return ModelError(
        f"{error}: give all sizes with --input-shape NAME:SIZES. It could be read with none of those that were tried: "
        f"{' or '.join(map(_options, tried))}. With the first of them: {why}"
    )


def _options(shapes: Mapping[str, tuple[int, ...]]) -> str:
    options = (("--input-shape", f"{name}:{','.join(map(str, sizes))}") for name, sizes in shapes.items())
    return f"`{' '.join(map(shlex.join, options))}`"


def _guessed(shape: Any, image: int, other: int) -> tuple[int, ...]:
    """Return a shape with guesses for open sizes: a batch of 1, images of 3 channels with edges ``image``, else ``other``."""
    if shape.rank.is_dynamic:
        return (1, other)
    sizes = [None if size.is_dynamic else size.get_length() for size in shape]
    guesses = [1, *[other] * (len(sizes) - 1)]
    if sizes.count(None) == 1 and sizes[0] is not None and sizes[0] > 1:
        guesses = [1] * len(sizes)  # as for the state of a recurrent network: layers, samples, units
    if len(sizes) == 4:
        last = sizes[3] in _CHANNELS and sizes[1] not in _CHANNELS
        if last or sizes[1] is None or sizes[1] in _CHANNELS:
            guesses = [1, image, image, 3] if last else [1, 3, image, image]
    return tuple(
        min(max(guess, bounds.get_min_length()), bounds.get_max_length() if bounds.get_max_length() > 0 else LARGEST)
        if size is None
        else size
        for size, guess, bounds in zip(sizes, guesses, shape, strict=True)
    )
