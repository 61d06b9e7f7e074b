"""Segments of decoders whose caches are kept in blocks, which the texts of a device share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.openvino.paged import ENDS, variable_of
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import compile_model, explaining
from placeit.runtime.devices.base import Buffer, SegmentSource
from placeit.runtime.devices.host_buffer import HostBuffer, shared_tensor
from placeit.runtime.devices.openvino_requests import OpenVinoInstance, OpenVinoProgram
from placeit.runtime.devices.state import OTHER_FORM

__all__ = ["PagedInstance", "PagedProgram", "compile_paged"]

_BLOCKS = 64  # initial number of blocks of a program
_BITS = "KV_CACHE_PRECISION"
_SEEN = "tokens of text"  # entry of a state: which columns of the attention mask are tokens of the text


class PagedProgram(OpenVinoProgram):
    """A segment compiled for caches in blocks, and the blocks of the texts of all its instances.

    Args:
        segment: the segment that was compiled.
        compiled: the compiled model.
        names: names of its inputs after the segment's inputs.

    Attributes:
        given: names of the inputs that describe the texts of a run.
        caches: blocks of each cache, by name of its input; the first dimension is the number of blocks.
        block: number of tokens of a block.
        running: lock that is held during a run, and while blocks are copied.
    """

    def __init__(self, segment: SegmentSource, compiled: Any, names: Sequence[str]) -> None:
        super().__init__(segment, compiled, is_open=True)
        self.given = [name for name in names if variable_of(name) is None]
        ports = {name: compiled.input(name) for name in names if name not in self.given}
        self._kinds = {
            name: ([size.get_length() for size in [*port.get_partial_shape()][1:]], port.get_element_type().to_dtype())
            for name, port in ports.items()
        }
        *_, values = (1, 1 << 30), *(shape for shape, _ in self._kinds.values())  # keys of 8 bits have further rows
        self.block = int(values[1])
        self.running = threading.Lock()
        self._free, self._count = list[int](), 0
        self.caches = dict[str, NDArray[Any]]()
        self.tensors = dict[str, Any]()
        self._resize(0)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of all caches."""
        return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in self._kinds.values())

    def recover(self) -> None:
        """Do nothing, since the program cannot run without texts."""

    def take(self) -> int:
        """Return a free block. Requires :attr:`running`."""
        if not self._free:
            self._resize(max(_BLOCKS, 2 * self._count))
        elif len(self._free) == self._count > _BLOCKS:  # no text has blocks
            self._free.clear()
            self._count = 0
            self._resize(_BLOCKS)
        return self._free.pop()

    def give_back(self, blocks: Sequence[int]) -> None:
        """Free blocks. Any thread may call this."""
        self._free.extend(blocks)

    def _resize(self, count: int) -> None:
        """Allocate ``count`` blocks, and copy the values of the present ones. Unused blocks take no physical memory."""
        for name, (shape, kind) in self._kinds.items():
            made = np.zeros((count, *shape), kind)
            if self._count:
                made[: self._count] = self.caches[name]
            self.caches[name] = made
        self.tensors = {name: shared_tensor(value) for name, value in self.caches.items() if count}
        self._free.extend(range(count)[self._count :][::-1])
        self._count = count


class _Text:
    """The caches of a text in a program.

    Attributes:
        blocks: numbers of its blocks.
        length: number of its tokens.
        seen: whether the text has the token of each column of its attention mask, ``bool[N]``.
    """

    def __init__(self, program: PagedProgram) -> None:
        self._program, self.blocks, self.length, self.seen = program, list[int](), 0, np.zeros(0, bool)

    def __del__(self) -> None:
        self._program.give_back(self.blocks)

    def cut(self, mask: NDArray[np.bool_]) -> None:
        """Drop the last tokens if a mask hides them. Raises DeviceError if it hides others, or shows a hidden token."""
        if len(mask) != len(self.seen):
            raise DeviceError(
                f"The attention mask shows {len(mask)} earlier tokens, but the text has {len(self.seen)}: it needs a column "
                "for each of them, and one for each new token."
            )
        tokens, hidden = np.flatnonzero(self.seen), np.flatnonzero(self.seen & ~mask)
        if np.any(mask & ~self.seen) or not np.array_equal(hidden, tokens[len(tokens) - len(hidden) :]):
            raise DeviceError(
                "The attention mask hides a token that later ones have seen, or shows a hidden one: place the model for one "
                "text in a step (--batch 1), which allows such masks."
            )
        self.seen, self.length = mask, self.length - len(hidden)

    def copy(self) -> _Text:
        """Return a copy. Requires the program's ``running``."""
        made = _Text(self._program)
        made.make_room(self.length)
        made.length, made.seen = self.length, self.seen
        for value in self._program.caches.values():
            value[made.blocks] = value[self.blocks_of(self.length)]
        return made

    def make_room(self, tokens: int) -> None:
        """Add blocks for ``tokens`` more tokens. Requires the program's ``running``."""
        while len(self.blocks) * self._program.block < self.length + tokens:
            self.blocks.append(self._program.take())

    def blocks_of(self, length: int) -> list[int]:
        """Return the blocks of the first tokens."""
        return self.blocks[: -(-length // self._program.block)]


class PagedInstance(OpenVinoInstance):
    """An infer request that computes tokens of its texts, one for each row of the inputs, or of other instances' texts.

    Args:
        program: the program.
        texts: texts of an instance of the same sequence, which this instance shares; None to start without texts.
    """

    alternates = True

    def __init__(self, program: PagedProgram, texts: list[_Text] | None = None) -> None:
        super().__init__(program)
        self._paged, self._texts = program, list[_Text]() if texts is None else texts
        self._parts: Sequence[tuple[PagedInstance | None, NDArray[Any], int]] = ()
        self._beams: NDArray[Any] = np.zeros(0, np.int32)
        self._tensors = dict[str, Any]()  # blocks of all texts that its request reads and writes

    def beside(self, outputs: Sequence[Buffer]) -> PagedInstance:
        """Return an instance for another slot of the sequence, with the same texts and other output buffers."""
        made = PagedInstance(self._paged, self._texts)
        made.keep_state(keep=True)
        for index, buffer in enumerate(outputs):
            made.write_to(index, buffer)
        return made

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` from now on, unless its shape is fixed since nothing uses its value."""
        fixed = self.program.compiled.outputs[index].get_partial_shape().is_static
        if fixed and self.program.outputs[index].limits is not None:
            self._outputs[index] = narrowed(HostBuffer, buffer)
        else:
            super().write_to(index, buffer)

    def read_texts(self, parts: Sequence[tuple[PagedInstance | None, NDArray[Any], int]], beams: NDArray[Any]) -> None:
        """See :class:`placeit.runtime.devices.state.ReadsTexts`."""
        self._parts, self._beams = parts, beams

    def run(self) -> None:
        """Run in the calling thread. Raises RuntimeError or DeviceError."""
        with self._paged.running:
            if not self._keep:
                self.reset_state()  # a run that kept its state may have left one
            try:
                if len(self._beams):
                    texts = [self._text(int(beam)) for beam in self._beams]
                    self._texts[:] = [one.copy() if one in texts[:place] else one for place, one in enumerate(texts)]
                rows = [row for owner, masks, new in self._parts for row in (owner or self)._rows(masks.astype(bool), new)]
                self._set_texts(rows)
                super().run()
                for text, new, tokens in rows:
                    text.seen = np.concatenate([text.seen, new])
                    text.length += tokens
            finally:
                if not self._keep:
                    self.reset_state()
                if any(owner is not None for owner, _, _ in self._parts):
                    self._parts = ()  # so that texts that have ended are freed

    def _rows(self, masks: NDArray[np.bool_], tokens: int) -> Iterator[tuple[_Text, NDArray[np.bool_], int]]:
        """Yield the text of each row of a mask, with the mask and the number of its new tokens.

        Padding (new tokens that the mask hides) is computed as a separate text, which is dropped.
        """
        for row, mask in enumerate(masks):
            text, past, new = self._text(row), mask[: mask.size - tokens], mask[mask.size - tokens :]
            if len(past) != len(text.seen) or not (past.all() and text.seen.all()):
                text.cut(past)
            shown = np.flatnonzero(new)
            if not len(shown) or shown[-1] - shown[0] >= len(shown):
                raise DeviceError("The attention mask hides all new tokens of a text, or one between others.")
            before, behind = int(shown[0]), tokens - 1 - int(shown[-1])
            for part in ((_Text(self._paged), new[:0], before), (text, new, len(shown)), (_Text(self._paged), new[:0], behind)):
                if part[-1]:
                    yield part

    def _text(self, row: int) -> _Text:
        while len(self._texts) <= row:
            self._texts.append(_Text(self._paged))
        return self._texts[row]

    def _set_texts(self, rows: Sequence[tuple[_Text, NDArray[np.bool_], int]]) -> None:
        """Set the inputs that describe the texts of a run."""
        for text, _, tokens in rows:
            text.make_room(tokens)
        blocks = [text.blocks_of(text.length + tokens) for text, _, tokens in rows]
        ends = np.cumsum([tokens for _, _, tokens in rows])
        values: dict[str, Any] = {
            "past_lens": [text.length for text, _, _ in rows],
            "subsequence_begins": [0, *ends],
            "block_indices": [block for of_text in blocks for block in of_text],
            "block_indices_begins": np.cumsum([0, *map(len, blocks)]),
            "max_context_len": max(text.length + tokens for text, _, tokens in rows),
            ENDS: [end - 1 for (_, new, _), end in zip(rows, ends, strict=True) if len(new)],
        }
        tensor = import_openvino().Tensor
        for name in self._paged.given:
            self.request.set_tensor(name, tensor(np.array(values[name], np.int32)))
        if self._tensors is not self._paged.tensors:
            self._tensors = self._paged.tensors
            for name, value in self._tensors.items():
                self.request.set_tensor(name, value)

    def reset_state(self) -> None:
        """Return to the initial state."""
        self._texts.clear()

    def states(self) -> dict[str, Any]:
        """Return copies of the blocks of its texts by variable, and which columns of their masks are tokens."""
        tensor, found = import_openvino().Tensor, dict[str, Any]()
        with self._paged.running:
            for row, text in enumerate(self._texts):
                found[f"{_SEEN} {row}"] = tensor(text.seen.astype(np.uint8)[None])
                for name, value in self._paged.caches.items():
                    found[f"{name} of text {row}"] = tensor(value[text.blocks_of(text.length)])
        return found

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set its texts to values from ``states``. Raises DeviceError."""
        program, texts = self._paged, list[_Text]()
        with program.running, explaining("A segment cannot take over the state of another one"):
            if any(f"{name} of text 0" not in states for name in program.caches):
                raise DeviceError(OTHER_FORM)
            while (seen := states.get(f"{_SEEN} {len(texts)}")) is not None:
                text = _Text(program)
                text.seen = np.array(seen.data[0], bool)
                text.make_room(int(np.count_nonzero(text.seen)))
                text.length = int(np.count_nonzero(text.seen))
                for name, value in program.caches.items():
                    value[text.blocks] = states[f"{name} of text {len(texts)}"].data
                texts.append(text)
            self._texts[:] = texts

    def state_bytes(self) -> int:
        """Return the bytes of the tokens of its texts."""
        return self._paged.block_bytes * sum(text.length for text in self._texts) // self._paged.block


def compile_paged(
    segment: SegmentSource, model: Any, device: Device, precision: str, properties: Mapping[str, Any]
) -> PagedProgram:
    """Compile a segment with caches in blocks, in float32 unless the precision or the model requests fewer bits.

    A request for float16 is ignored with the precision f32: optimum-intel makes it in all models with plain weights, and this
    attention would also round new keys and values, unlike the attention of the original model.

    Args:
        segment: the segment.
        model: the segment, as :class:`placeit.backends.openvino.paged.Paging` writes it.
        device: a CPU.
        precision: inference precision.
        properties: further properties to compile with.

    Raises:
        RuntimeError: OpenVINO cannot compile it.
    """
    option = ["runtime_options", _BITS]
    fewer = precision != "f32" or (model.has_rt_info(option) and model.get_rt_info(option).value != "f16")
    asked = ({} if fewer else {_BITS: "f32"}) | dict(properties)
    compiled = compile_model(model, device, precision, identity=segment.identity, **asked)
    return PagedProgram(segment, compiled, [port.get_any_name() for port in model.inputs[len(segment.inputs) :]])
