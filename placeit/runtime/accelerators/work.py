"""The work of a plan for the stream executor: tasks on devices, and the values passed between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from placeit.planning.segments import Plan
from placeit.runtime.accelerators.accelerator import StreamProgram
from placeit.runtime.devices.base import Buffer, BufferSpec

if TYPE_CHECKING:
    from placeit.runtime.runtime import Runtime

__all__ = ["PlanTasks", "Task"]


@dataclass(frozen=True)
class Task:
    """One segment of a plan.

    Attributes:
        ops: names of its ops.
        device: device number.
        reads: values that its program reads, in the program's order.
        writes: values that its program makes.
        program: None if it only hands model inputs or outputs through.
    """

    ops: tuple[str, ...]
    device: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    program: StreamProgram | None

    @property
    def name(self) -> str:
        """Name in errors and traces: its first op."""
        return self.ops[0]


@dataclass(frozen=True, eq=False)
class PlanTasks:
    """The tasks of a plan and the values between them.

    Attributes:
        plan: where it comes from; a task per segment.
        tasks: in the order of the segments, which is topological.
        values: what each value looks like. Each is made by one task, or is an input of the model.
        value_of: the value that each tensor of ``plan.problem`` is.
        inputs: values that the host provides, by name.
        outputs: values that the host wants, by name.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    values: tuple[BufferSpec, ...]
    value_of: tuple[int, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    @classmethod
    def of(cls, runtime: Runtime, plan: Plan, programs: Iterable[StreamProgram] | None = None) -> PlanTasks:
        """Describe a plan of a runtime's model.

        Args:
            runtime: says which inputs and outputs of the model lie in which segment.
            plan: its segments.
            programs: one for each segment that runs something; the runtime compiles them if there are none. A program reads the
                segment's tensors from other segments, then the model's inputs that lie in it, and makes tensors for others,
                then the model's outputs.

        Raises:
            DeviceError: a segment cannot be compiled.
        """
        if programs is None:
            programs = cast("list[StreamProgram]", runtime.compile(plan.programs))
        given = iter(programs)
        values = list(runtime.inputs.values())
        inputs = {name: i for i, name in enumerate(runtime.inputs)}
        outputs: dict[str, int] = {}
        value: dict[int, int] = {}  # by tensor of the group graph
        tasks = []
        for segment in plan.segments:
            program = None if segment.passthrough else next(given)
            entering = {t: value[t] for t in segment.inputs}
            reads: tuple[int, ...] = ()
            if program is None:
                # it hands buffers through whatever they are, so also their numbers
                handed = runtime.hand_through(
                    segment, cast("Mapping[int, Buffer]", entering), cast("Mapping[str, Buffer]", inputs)
                )
                made = cast("list[int]", handed)
            else:
                reads = (*entering.values(), *(inputs[name] for name in runtime.inputs_of(segment)))
                ends = (runtime.model_outputs[name] for name in runtime.outputs_of(segment))
                specs = (*map(runtime.spec, segment.outputs), *ends)
                made = list(range(len(values), len(values) + len(specs)))
                values.extend(specs)
            value |= zip(segment.outputs, made, strict=False)
            outputs |= zip(runtime.outputs_of(segment), made[len(segment.outputs) :], strict=True)
            ops = tuple(runtime.op_names(segment))
            tasks.append(Task(ops, segment.device, reads, tuple(made) if program is not None else (), program))
        return cls(plan, tuple(tasks), tuple(values), tuple(value[t] for t in plan.tensors), inputs, outputs)
