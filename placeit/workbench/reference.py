"""Run the uncut model as a reference, and check the outputs of executors against it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Model
from placeit.core.cluster import Device
from placeit.core.memory import trim_memory
from placeit.core.threads import run_in_thread
from placeit.measuring.check import Checkable, OutputCheck, OutputDifference, other_inputs

__all__ = ["Reference"]

_HALF = {"f16": "float16"}  # type of tensors by precision, for precisions in which numbers overflow early
_log = logging.getLogger("placeit")


class Reference:
    """Runs the uncut model as its framework does in float32, without placeit's executor, and checks executors by its outputs.

    Args:
        model: the model.
        device: returns the first device that can run the whole model; None if no device can.
        precision: inference precision of the executors that are checked.
        tolerance: largest relative error of right outputs.
    """

    def __init__(self, model: Model, device: Callable[[], Device | None], precision: str, tolerance: float) -> None:
        self._model, self._device = model, device
        self._precision, self._tolerance = precision, tolerance
        self._run: Callable[[Arrays], dict[str, NDArray[np.generic]]] | None = None
        self._check: OutputCheck | None = None

    def __call__(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
        """Return the outputs of the model by name.

        Raises:
            DeviceError: the framework cannot run it.
        """
        if self._run is None:
            device = self._device() if self._precision == "f32" else None  # other devices may lack float32; the CPU has it
            self._run = self._model.reference(device, "f32")
        return run_in_thread(functools.partial(self._run, inputs))  # on another thread, so that Ctrl-C ends the wait

    def varies(self) -> bool:
        """Return whether two runs of the model on the same inputs have different outputs. Raises DeviceError."""
        inputs = self._model.sample_inputs()
        return OutputDifference.between(self(inputs), self(inputs)).max_rel > self._tolerance

    def check(self, executor: Checkable, *, after: bool = False) -> OutputDifference:
        """Compare the outputs of an executor with the model's, on two inputs (:class:`placeit.measuring.check.OutputCheck`).

        An executor is checked before and after it is measured, and the worse error counts.

        Args:
            executor: the executor that is measured; it must be idle, and has the model's inputs in place afterwards.
            after: whether this is the check after the measurement.

        Raises:
            ExecutionError: a device failed.
        """
        return self.output_check()(executor, after=after)

    def output_check(self, given: Arrays | None = None) -> OutputCheck:
        """Return a new output check on the given inputs, or the check on the model's inputs, which is prepared once."""
        if given is not None:
            return self._new_check(given, chosen=True)
        if self._check is None:
            chosen = self._model.given is not None
            if not chosen and "float16" in {*self._model.graph.tensor_dtypes, _HALF.get(self._precision)}:
                _log.warning(
                    "Numbers above 65504 overflow in float16 between segments, even where the whole model computes them in "
                    "float32. Outputs are checked on random inputs: give --inputs to check them on yours."
                )
            self._check = self._new_check(self._model.sample_inputs(), chosen=chosen)
            self._run = None  # a compiled copy of the whole model, which has done its work
            trim_memory()
        return self._check

    def _new_check(self, inputs: Arrays, *, chosen: bool) -> OutputCheck:
        """Return a new output check on inputs; ``chosen`` tells whether the user chose them."""
        others = other_inputs(self._model, inputs, given=chosen)
        return OutputCheck(inputs, others, self, self._tolerance, self._in_precision())

    def _in_precision(self) -> Callable[[Arrays], Arrays] | None:
        """Return a function that runs the model in the precision of the executors; None if that is float32."""
        if self._precision == "f32":
            return None
        run = self._model.reference(self._device(), self._precision)
        return lambda inputs: run_in_thread(functools.partial(run, inputs))
