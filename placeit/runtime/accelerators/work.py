"""A plan as tasks on devices and the values that are passed between them, for the stream executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from placeit.planning.segments import Plan
from placeit.runtime.devices.accelerator import StreamProgram
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.segment_book import SegmentBook

__all__ = ["PlanTasks", "Task"]


@dataclass(frozen=True)
class Task:
    """One segment of a plan.

    Attributes:
        ops: names of its ops.
        device: device number.
        reads: values that its program reads, in the program's order.
        writes: values that its program makes.
        program: its program; None if it only passes on inputs or outputs of the model.
    """

    ops: tuple[str, ...]
    device: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    program: StreamProgram | None

    @property
    def name(self) -> str:
        """Its name in errors and traces: the name of its first op."""
        return self.ops[0]


@dataclass(frozen=True, eq=False)
class PlanTasks:
    """The tasks of a plan and the values between them.

    Attributes:
        plan: the plan; there is a task for each of its segments.
        tasks: tasks, in the topological order of the segments.
        values: shape and type of each value. A value is made by one task, or is an input of the model.
        value_of: for each tensor of ``plan.problem``, the number of its value.
        inputs: values that the host provides, by name of the input.
        outputs: values that the host reads, by name of the output.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    values: tuple[BufferSpec, ...]
    value_of: tuple[int, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    @classmethod
    def of(cls, book: SegmentBook, plan: Plan, programs: Iterable[StreamProgram]) -> PlanTasks:
        """Describe a plan.

        Args:
            book: names, shapes and buffers of the plan's segments.
            plan: the plan.
            programs: one for each segment that is not passed through.
        """
        given = iter(programs)
        values = list(book.inputs.values())
        inputs = {name: i for i, name in enumerate(book.inputs)}
        outputs: dict[str, int] = {}
        value: dict[int, int] = {}  # by tensor of the group graph
        tasks = []
        for segment in plan.segments:
            program = None if segment.passthrough else next(given)
            entering = {t: value[t] for t in segment.inputs}
            reads: tuple[int, ...] = ()
            if program is None:
                made = book.hand_through(segment, entering, inputs)
            else:
                reads = (*entering.values(), *(inputs[name] for name in book.inputs_of(segment)))
                ends = (book.outputs[name] for name in book.outputs_of(segment))
                specs = (*map(book.spec, segment.outputs), *ends)
                made = list(range(len(values), len(values) + len(specs)))
                values.extend(specs)
            value |= zip(segment.outputs, made, strict=False)
            outputs |= zip(book.outputs_of(segment), made[len(segment.outputs) :], strict=True)
            ops = tuple(book.op_names(segment))
            tasks.append(Task(ops, segment.device, reads, tuple(made) if program is not None else (), program))
        return cls(plan, tuple(tasks), tuple(values), tuple(value[t] for t in plan.tensors), inputs, outputs)
