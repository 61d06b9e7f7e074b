"""Derive the sizes of all inputs of a decoder from the length of the longest text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from placeit.backends.openvino.inputs import OpenSizesError, Resolved, Sizes, resolve_shapes
from placeit.backends.openvino.last_logits import TOKENS
from placeit.core.errors import UsageError
from placeit.core.sizes import LARGEST, SizeRange

__all__ = ["check_positions", "resolve_sizes"]

_PER_TOKEN = frozenset((*TOKENS, "token_type_ids", "position_ids"))  # inputs with a value for each token of a step
_SUGGESTED = 1024  # tokens, in messages
_MIN_CONTEXT = 2  # tokens: a prompt of one, and one that follows
_ROWS = SizeRange(1, 64, (1,))  # texts in a step: one at a time, or the texts that a server joins
_KEEPS_VALUE = frozenset(("Convert", "Reshape", "Squeeze", "Unsqueeze"))  # ops that do not change a position
_BEAMS = "beam_idx"  # input that selects the row of the state for each row of a step


def resolve_sizes(path: Path, partial: Mapping[str, Any], sizes: Sizes, states: Sequence[Any]) -> Resolved:
    """Return the shape of every input. The context of a decoder determines all shapes that are not given.

    Args:
        path: the file, for messages.
        partial: shapes in the file, by input name.
        sizes: sizes from the user.
        states: shapes of the model's states in the file.

    Raises:
        OpenSizesError: a size is left open.
        ModelError, UsageError: an option does not fit the model.
    """
    is_decoder = bool(states) and not partial.keys().isdisjoint(TOKENS)
    if sizes.context is not None:
        if not is_decoder:
            raise UsageError(
                f"{path} is not a decoder, which has state and takes tokens ({', '.join(TOKENS[:2])}), so a context does "
                f"not determine its inputs ({', '.join(partial)}): give --input-shape instead of --context."
            )
        rows = sizes.batch or (_ROWS if all(map(_has_rows, states)) and not sizes.shapes else 1)
        sizes = replace(sizes, shapes={**_shapes(partial, sizes.context, rows), **sizes.shapes})
    try:
        return resolve_shapes(path, partial, sizes)
    except OpenSizesError as error:
        if is_decoder and _shapes(error.partial, _SUGGESTED, 1).keys() == error.partial.keys():
            message = f"{error}: give the tokens of the longest text, as in `--context {_SUGGESTED}`."
            raise OpenSizesError(message, error.partial, error.known, advised=True) from None
        raise


def check_positions(path: Path, model: Any) -> None:
    """Raise UsageError if texts may have more tokens than a decoder has positions in its table.

    Without this check, the decoder would read memory behind the table.

    Args:
        path: the file, for messages.
        model: an ``openvino.Model`` whose inputs have their final shapes.
    """
    inputs = {name: port for port in model.inputs for name in port.get_names()}
    if not inputs.keys() >= {"attention_mask", "position_ids"}:
        return
    longest = inputs["attention_mask"].get_partial_shape()[-1].get_max_length()
    ports = [(inputs["position_ids"], 0)]
    for port, offset in ports:
        for reader in port.get_target_inputs():
            node, kind = reader.get_node(), reader.get_node().get_type_name()
            if kind in _KEEPS_VALUE and reader.get_index() == 0:
                ports.append((node.output(0), offset))
            elif kind == "Add" and (other := node.input_value(1 - reader.get_index()).get_node()).get_type_name() == "Constant":
                if other.data.size == 1:
                    ports.append((node.output(0), offset + int(other.data.item())))
            elif kind == "Gather" and reader.get_index() == 1 and node.get_input_partial_shape(0).is_static:
                axis = node.input_value(2).get_node()
                rows = node.get_input_shape(0)[int(axis.data.item())] if axis.get_type_name() == "Constant" else longest
                if longest > rows - offset:
                    raise UsageError(
                        f"{path} knows {rows - offset} positions, and texts may have {longest} tokens: give at most "
                        f"--context {rows - offset}."
                    )


def _shapes(partial: Mapping[str, Any], context: int, batch: int | SizeRange) -> dict[str, tuple[int | SizeRange, ...]]:
    """Return the shapes of the inputs that exporters' names identify.

    The typical text is half prompt and half answer: a step with the prompt, then as many steps of one token as it has tokens.
    A range for the batch is used only if the model leaves the batch of all inputs open; else the batch is 1.
    """
    if not _MIN_CONTEXT <= context <= LARGEST:
        raise UsageError(
            f"A context has at least {_MIN_CONTEXT} tokens, one of a prompt and one that follows, and at most {LARGEST}; got "
            f"{context}."
        )
    prompt = context // 2
    times = (1, context - prompt)
    step, text = SizeRange(1, context, (prompt, 1), times), SizeRange(1, context, (prompt, prompt + 1), times)
    found: dict[str, tuple[int | SizeRange, ...]] = {}
    ranks = {name: len(shape) if shape.rank.is_static else 0 for name, shape in partial.items()}
    batches = [shape[int(name == "position_ids" and ranks[name] == 3)] for name, shape in partial.items() if ranks[name]]
    if not isinstance(batch, int) and any(size.is_static for size in batches):
        batch = 1
    for name, shape in partial.items():
        rank = ranks[name]
        if name in _PER_TOKEN and rank == len(("batch", "tokens")):
            found[name] = (batch, step)
        elif name.endswith("inputs_embeds") and rank == len(("batch", "tokens", "width")) and shape[2].is_static:
            found[name] = (batch, step, shape[2].get_length())
        elif name == "position_ids" and rank == len(("kinds", "batch", "tokens")) and shape[0].is_static:
            found[name] = (shape[0].get_length(), batch, step)
        elif name == "attention_mask" and rank == len(("batch", "text")):
            found[name] = (batch, text)
        elif name == _BEAMS and rank == 1:
            found[name] = (batch,)
    return found


def _has_rows(state: Any) -> bool:
    """Return whether a state can have a row for each text, and a size that grows with the text."""
    open_sizes = [size.is_dynamic for size in state] if state.rank.is_static else []
    return open_sizes[:1] == [True] and any(open_sizes[1:])
