"""Slots of an executor on lanes: the instances, buffers and copies of each request in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, UsageError
from placeit.core.narrowing import narrowed
from placeit.planning.segments import Plan
from placeit.runtime.alternating import Alternating, SharesState, alternating
from placeit.runtime.blank import is_blank
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import (
    Buffer,
    BufferSpec,
    Delivers,
    Instance,
    Program,
    ReadsInPlace,
    Rebinds,
    RuntimeDevice,
    ServesSlots,
    SharesMemory,
    WritesTo,
)
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.state import KeepsState, ReadsTexts
from placeit.runtime.lending import MAX_COPIED_BYTES, Bind, InputPort, OutputPort, is_lendable
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.spans import Moved, Ran

__all__ = ["Continuing", "RunsAhead", "Slot", "States", "check_keeping", "queue_memory"]

States = Mapping[str, Any]
"""Values of the variables of a model, by name."""


@runtime_checkable
class RunsAhead(Protocol):
    """A device that gets the work of a slot in advance, and starts it without being asked by the scheduler."""

    def run_ahead(self, book: SegmentBook, pool: DevicePool, plan: Plan, slot: Slot) -> Callable[[], None] | None:
        """Send a slot's work to all such devices of a pool.

        Returns:
            A function to call before each request in the slot; None if the plan uses no such device.
        """
        ...


class Slot:
    """The instances of a plan's segments for one request in flight, with their buffers connected in advance.

    Args:
        book: names, shapes and buffers of the plan's segments.
        pool: devices and links.
        plan: the plan to run.
        programs: programs of its segments; None for a segment that computes nothing.
        number: number of the slot.
        keep_state: whether each request continues from the state that the previous request left.
        beside: another slot of the same sequence, whose state this one shares; its :attr:`at_once` is greater than 1.

    Attributes:
        inputs: inputs of the model, by name.
        outputs: outputs of the model, by name.
        instances: instance of each segment; None for a segment that computes nothing.
        copies: source device, source buffer and destination buffer of each transfer (tensor, destination device).
        writes: buffers that each segment (s,) and each transfer (tensor, destination device) writes.
        written: in a checked run, the values of these buffers when the end of their writer was reported; else None.
        at_once: maximum number of requests of a sequence in flight, each in another slot that shares the state: the number of
            devices, or 1 if an instance cannot run with the buffers of several slots.
        texts: slots whose texts the next run continues, with attention mask, ``[texts, tokens]``, and number of new tokens in
            each; empty for its own texts.
    """

    def __init__(
        self,
        book: SegmentBook,
        pool: DevicePool,
        plan: Plan,
        programs: Sequence[Program | None],
        number: int,
        *,
        keep_state: bool = False,
        beside: Slot | None = None,
    ) -> None:
        self.number = number
        self._stateful: list[tuple[str, KeepsState]] = []
        inputs: dict[str, Buffer] = {}
        outputs: dict[str, Buffer] = {}
        bound: dict[int, dict[int, Buffer]] = {}  # buffers that a segment reads, by the index of its input
        self.instances: list[Instance | None] = []
        self.copies: dict[tuple[int, int], tuple[int, Buffer, Buffer]] = {}
        self.writes: dict[tuple[int, ...], list[Buffer]] = {}
        self.written: dict[tuple[int, ...], list[NDArray[np.generic]]] | None = None
        self.blanked: int | None = None  # the sentinel, if the buffers are blank
        buffer_of: dict[tuple[int, int], Buffer] = {}  # by (tensor, device that reads or writes it)
        number_of = {t: i for i, t in enumerate(plan.tensors)}  # numbers in ``plan.problem``
        readers: dict[int, set[int]] = {t: set() for t in plan.tensors}
        for segment in plan.segments:
            for t in segment.inputs:
                readers[t].add(segment.device)
        input_readers: dict[str, set[int]] = {name: set() for name in book.inputs}
        for segment in plan.segments:
            # inputs that a segment only passes on are read by the readers of its tensors
            devices = set().union(*(readers[t] for t in segment.outputs)) if segment.passthrough else {segment.device}
            for name in book.inputs_of(segment):
                input_readers[name] |= devices
        for name, spec in book.inputs.items():
            inputs[name] = _shared(pool, spec, input_readers[name], "host") or HostBuffer(spec)
        for s, (segment, program) in enumerate(zip(plan.segments, programs, strict=True)):
            d = segment.device
            entering = {t: buffer_of[t, d] for t in segment.inputs}
            if program is None:
                leaving = book.hand_through(segment, entering, inputs)
                self.instances.append(None)
            else:
                with pool.on(d):
                    instance = self._instance(
                        pool.devices[d], program, keep_state, None if beside is None else beside.instances[s]
                    )
                if isinstance(instance, WritesTo) and not _shares(pool.devices[d]):
                    for i, t in enumerate(segment.outputs):
                        shared = _shared(pool, book.spec(t), readers[t], pool.devices[d].space)
                        far_devices = [pool.devices[far] for far in readers[t]]
                        in_place = any(isinstance(far, ReadsInPlace) and far.reads_in_place for far in far_devices)
                        if shared is None and in_place and not isinstance(instance.output(i), HostBuffer):
                            shared = HostBuffer(book.spec(t))
                        if shared is not None:
                            instance.write_to(i, shared)
                bound[s] = dict(enumerate([*entering.values(), *(inputs[name] for name in book.inputs_of(segment))]))
                for i, buffer in bound[s].items():
                    instance.bind(i, buffer)
                leaving = self.writes[s,] = [instance.output(i) for i in range(len(program.outputs))]
                self.instances.append(instance)
            outputs |= zip(book.outputs_of(segment), leaving[len(segment.outputs) :], strict=True)
            for t, buffer in zip(segment.outputs, leaving, strict=False):
                buffer_of[t, d] = buffer
                for far in readers[t] - {d}:
                    buffer_of[t, far] = buffer
                    if buffer.space != pool.devices[far].space:
                        if (d, far) not in pool.transports:
                            names = pool.devices[d].name, pool.devices[far].name
                            raise DeviceError(
                                f"Nothing moves tensors from '{names[0]}' to '{names[1]}', whose memories differ: give the "
                                "runtime a transport from one to the other."
                            )
                        buffer_of[t, far] = pool.devices[far].allocate(book.spec(t))
                        self.writes[number_of[t], far] = [buffer_of[t, far]]
                    if (d, far) in pool.transports:
                        self.copies[number_of[t], far] = (d, buffer, buffer_of[t, far])

        self._reading: dict[int, Any] = {
            s: instance for s, instance in enumerate(self.instances) if isinstance(instance, ReadsTexts)
        }
        self.texts: Sequence[tuple[Slot, NDArray[Any], int]] = ()
        for name, buffer in outputs.items():
            if isinstance(buffer, Delivers):
                outputs[name] = buffer.deliver()
                for written in self.writes.values():
                    if buffer in written:
                        written.append(outputs[name])
        self._sharing = {s for s, segment in enumerate(plan.segments) if _shares(pool.devices[segment.device])}
        fixed = {id(end) for _, source, destination in self.copies.values() for end in (source, destination)}
        self.inputs = {
            name: InputPort(buffer, self._input_binder(bound, buffer, fixed | {id(end) for end in outputs.values()}))
            for name, buffer in inputs.items()
        }
        self.outputs = {name: OutputPort(buffer, self._output_binder(bound, buffer, fixed)) for name, buffer in outputs.items()}
        run_ahead = next((device.run_ahead for device in pool.devices if isinstance(device, RunsAhead)), None)
        self.renew: Callable[[], None] | None = None if run_ahead is None else run_ahead(book, pool, plan, self)
        used = {segment.device for segment in plan.programs}
        parallel = any(isinstance(pool.devices[d], ServesSlots) for d in used)
        stateful = [instance for instance in self.instances if isinstance(instance, KeepsState)]
        alternate = all(isinstance(instance, SharesState) and instance.alternates for instance in stateful)
        self.at_once = len(used) if alternate and not parallel else 1

    def _instance(self, device: RuntimeDevice, program: Program, keep: bool, beside: Instance | None) -> Instance:
        """Make the instance of a segment, with the state of ``beside``, an instance in another slot, if that can be shared."""
        if isinstance(beside, SharesState):
            return beside.beside([device.allocate(spec) for spec in program.outputs])
        made = device.instance(program)
        if isinstance(made, KeepsState):
            made.keep_state(keep=keep)
            self._stateful.append((device.name, made))
            return alternating(made, len(program.outputs)) if keep else made
        return made

    def _input_binder(self, bound: Mapping[int, dict[int, Buffer]], buffer: Buffer, fixed: set[int]) -> Bind | None:
        """Return a function that binds the readers of a model input to another buffer; None if a reader cannot be rebound.

        The function does not refer to this slot: programs of such a cycle would stay until the garbage collector finds it.
        """
        readers = [(s, i) for s, of_segment in bound.items() for i, read in of_segment.items() if read is buffer]
        instances = [instance for s, _ in readers if (instance := self.instances[s]) is not None]
        is_fixed = not is_lendable(buffer) or id(buffer) in fixed or narrowed(HostBuffer, buffer).native is not None
        if is_fixed or not all(isinstance(instance, Rebinds) for instance in instances):
            return None

        def bind(other: HostBuffer) -> None:
            for (s, i), instance in zip(readers, instances, strict=True):
                instance.bind(i, other)
                bound[s][i] = other

        return bind

    def _output_binder(self, bound: Mapping[int, Mapping[int, Buffer]], buffer: Buffer, fixed: set[int]) -> Bind | None:
        """Return a function that binds the writer of a model output to another buffer; None if it cannot be rebound."""
        writers = [(s, i) for s in bound for i, written in enumerate(self.writes[s,]) if written is buffer]
        read = {id(other) for of_segment in bound.values() for other in of_segment.values()}
        if not is_lendable(buffer) or id(buffer) in fixed | read or len(writers) != 1:
            return None
        ((s, index),) = writers
        instance = self.instances[s]
        if instance is None or not isinstance(instance, Rebinds) or s in self._sharing:
            return None
        inputs, outputs = bound[s], self.writes[s,]

        def bind(other: HostBuffer) -> None:
            instance.write_to(index, other)
            for i, source in inputs.items():  # or an input that is passed on as an output stays in its old place
                instance.bind(i, source)
            outputs[index] = other

        return bind

    def begin(self) -> bool:
        """Prepare the slot for a request; return whether the request's writes are to be checked."""
        checked = self.blanked is not None
        self.written, self.blanked = ({} if checked else None), None
        if self.renew is not None:
            self.renew()
        if self._reading:
            mask, tokens = (self.inputs[name].value for name in ("attention_mask", "input_ids"))
            beams = np.array(self.inputs["beam_idx"].value) if "beam_idx" in self.inputs else np.arange(len(mask))
            own = (None, np.array(mask), tokens.shape[1])
            for s, instance in self._reading.items():
                parts = [(slot._reading[s], *part) for slot, *part in self.texts]
                instance.read_texts(parts or [own], beams[: 0 if parts else None])
        return checked

    @property
    def keeps_blocks(self) -> bool:
        """True if its instances can compute tokens of texts in other slots."""
        return bool(self._reading)

    def record_values(self, key: tuple[int, ...]) -> None:
        """Record the values that a segment or a transfer has written, given its key in :attr:`writes`, in a checked run."""
        if self.written is not None and key in self.writes:
            self.written[key] = [np.array(buffer.array()) for buffer in self.writes[key]]

    def record(self, ran: Sequence[Ran], moved: Sequence[Moved]) -> None:
        """Record the values that segments and transfers have written, unless they were recorded at their end."""
        for key in [*((s,) for s, _, _ in ran), *((tensor, dst) for tensor, _, dst, _, _ in moved)]:
            if key not in (self.written or {}):
                self.record_values(key)

    def blank(self, sentinel: int) -> tuple[int, ...] | None:
        """Blank all buffers of :attr:`writes`; return the key of one that was written at a wrong time, or None."""
        found = None
        for key, buffers in self.writes.items():
            # checked just before they are filled, so that no write between is missed; together, as some may share memory
            values = [buffer.array() for buffer in buffers]
            undisturbed = True
            if self.blanked is not None:
                undisturbed = all(is_blank(value, self.blanked) for value in values)
            elif self.written is not None and key in self.written:
                pairs = zip(values, self.written[key], strict=True)
                undisturbed = all(np.array(now).tobytes() == then.tobytes() for now, then in pairs)
            for buffer in buffers:
                buffer.blank(sentinel)
            if not undisturbed:
                found = key
        self.blanked, self.written = sentinel, None
        return found

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether requests continue from the current state or start from the initial one; nothing may be running."""
        for _, instance in self._stateful:
            instance.keep_state(keep=keep)

    def reset_state(self) -> None:
        """Return to the model's initial state; nothing may be running."""
        for _, instance in self._stateful:
            instance.reset_state()

    def states(self) -> dict[str, Any]:
        """Return copies of the values of the model's variables, by name; nothing may be running."""
        return {name: value for _, instance in self._stateful for name, value in instance.states().items()}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Continue from the state of another slot, of this or another executor of the model. Raises DeviceError."""
        for _, instance in self._stateful:
            instance.set_states(states)

    def state_bytes(self) -> Counter[str]:
        """Return the bytes of state by device name; nothing may be running."""
        found = Counter[str]()
        for device, instance in self._stateful:
            found[device] += instance.state_bytes()
        return found


def _shares(device: RuntimeDevice) -> bool:
    return isinstance(device, SharesMemory) and device.shares_memory


def _shared(pool: DevicePool, spec: BufferSpec, readers: Collection[int], space: str) -> Buffer | None:
    """Allocate memory that a reader in ``space`` uses without a copy; None if no reader there shares memory."""
    for d in sorted(readers):
        device = pool.devices[d]
        if _shares(device) and device.space == space:
            with pool.on(d):
                return device.allocate(spec)
    return None


def queue_memory(
    slots: Sequence[Slot], inputs: Iterable[str], outputs: Iterable[str]
) -> list[tuple[list[Any], list[Any]]] | None:
    """Return the memory of the inputs and outputs of each slot; None if a compiled queue cannot use it.

    Args:
        slots: the slots.
        inputs: names of inputs, in the order of the result.
        outputs: names of outputs, in the order of the result.
    """
    ports: list[InputPort | OutputPort] = [port for slot in slots for port in slot.inputs.values()]
    ports += [port for slot in slots for port in slot.outputs.values()]
    if not all(port.plain for port in ports):
        return None
    if any(port.lends for port in ports) and sum(port.memory.nbytes for port in ports) > MAX_COPIED_BYTES * len(slots):
        return None
    for port in ports:
        port.stop_lending()
    return [([slot.inputs[n].memory for n in inputs], [slot.outputs[n].memory for n in outputs]) for slot in slots]


def check_keeping(slot: Slot, book: SegmentBook, plan: Plan, pool: DevicePool) -> None:
    """Raise UsageError if a device cannot keep the state of a segment in a slot."""
    stateful = book.model.stateful
    for segment, instance in zip(plan.segments, slot.instances, strict=True):
        held = sorted(stateful.intersection(book.op_names(segment)))
        if held and not isinstance(instance, KeepsState | Alternating):
            raise UsageError(
                f"{pool.devices[segment.device].name} does not keep the state of op '{held[0]}' from one request to the "
                "next: place it on a device that OpenVINO drives, or on a core set of ONNX Runtime or PyTorch."
            )


class Continuing:
    """Slots in which each request continues from the state that the previous request left there, in a ``with`` block.

    Args:
        slots: the slots; empty if the model keeps no state.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots

    def __enter__(self) -> Self:
        for slot in self._slots:
            slot.reset_state()
            slot.keep_state(keep=True)
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._slots:
            slot.keep_state(keep=False)

    def states(self) -> list[States]:
        """Return copies of the states of each slot."""
        return [slot.states() for slot in self._slots]

    def set_states(self, states: Sequence[States | None]) -> None:
        """Set the states of each slot; None for the initial states. Raises DeviceError."""
        for slot, state in zip(self._slots, states, strict=False):
            if state is None:
                slot.reset_state()
            else:
                slot.set_states(state)
