"""Open bundles of ``placeit build`` on the devices of this machine, to run and to serve them."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from placeit import backends
from placeit.backends.base import Arrays, Model, TensorSpec
from placeit.backends.bundle.files import is_bundle
from placeit.backends.bundle.model import BundleModel, open_bundle
from placeit.core.errors import ExecutionError
from placeit.measuring.check import OutputDifference
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.bundled import check_samples, prepare_bundle, renamed
from placeit.workbench.matching import Devices, Rematch, differences, matched
from placeit.workbench.options import Constraints, Inputs

__all__ = ["Application", "load"]


class Application:
    """A bundled model on the devices of this machine. A context manager; :meth:`load` opens one.

    Attributes:
        manifest: the manifest of the bundle.
        placement: placement of the bundle's segments on the devices of this machine.
        session: the session that runs it. Its model is cut into segments already, and cannot be placed differently.
        differences: how devices and versions differ from those that it was built with, a line for each difference.
    """

    def __init__(
        self,
        model: BundleModel,
        *,
        rematch: Rematch = None,
        devices: Devices = None,
        inputs: Inputs | Arrays | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.manifest = model.manifest
        try:
            names, cluster = matched(model.manifest, model.path, rematch, devices)
            self.session = Session(
                model,
                cluster,
                precision=model.manifest.precision,
                inputs=inputs,
                constraints=Constraints(tolerance=model.manifest.tolerance if tolerance is None else tolerance),
                cache=None,
            )
            with contextlib.ExitStack() as stack:
                stack.callback(self.session.close)
                self.differences = tuple(differences(model.manifest, self.session.cluster, names))
                self.placement = renamed(model.manifest.placement, names)
                self._prepared = prepare_bundle(self.session, self.placement, model.manifest, names)
                self._programs = [one.home.runtime.compiler.compile(one.plan.programs) for one in self._prepared]
                model.files.wait()
                stack.pop_all()
        finally:
            model.files.wait()
        self._executor: PlanExecutor | None = None
        self._lock, self._closed = threading.Lock(), False

    def __repr__(self) -> str:
        return f"<Application {self.name}: {self.placement!r}>"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        rematch: Rematch = None,
        devices: Devices = None,
        inputs: Inputs | Arrays | None = None,
        tolerance: float | None = None,
    ) -> Self:
        """Open a bundle: check its files, find its devices on this machine, and compile its segments.

        Args:
            path: an archive or a folder that ``placeit build`` has written.
            rematch: devices of this machine that replace the devices of the placement: new names by old names, or ``auto`` to
                replace each missing device by another one of its kind. None to use devices with the names of the placement.
            devices: where to look for devices: a cluster file, a cluster, or device names. None for this machine and connected
                nodes.
            inputs: inputs by name on which :attr:`session` is measured; None for the inputs of the first sample.
            tolerance: largest relative error of right outputs; None for the tolerance of the session that built the bundle.

        Raises:
            FileError: it is damaged, was edited, is of a newer version, or is no bundle.
            DeviceError: a device is missing (the message lists the devices that are needed), or a segment cannot be compiled.
            UsageError: ``rematch`` names a device that the bundle does not have, gives two of its devices the same new one, or
                a device of another runtime.
            PlacementError: a device has not enough memory for its segments.
        """
        return cls(open_bundle(Path(path)), rematch=rematch, devices=devices, inputs=inputs, tolerance=tolerance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End running requests, stop every thread, and release the compiled segments."""
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
        if executor is not None:
            executor.close()
        self.session.close()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.manifest.name

    @property
    def versions(self) -> dict[str, str]:
        """Versions of placeit and of the runtimes that it was built with, by package."""
        return dict(self.manifest.versions)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, in its order."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs, in its order."""
        return self.manifest.outputs

    @property
    def tolerance(self) -> float:
        """Largest relative error of right outputs."""
        return self.session.tolerance

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run once and return the outputs by name.

        Calls from several threads take turns; a :meth:`server` runs them concurrently. Of a placement with replicas, the first
        replica runs.

        Args:
            inputs: an array for each input, by name.

        Raises:
            UsageError: an input is missing, unknown, or has another shape or type than the model wants.
            DeviceError: there is no room for buffers.
            ExecutionError: a device failed, or the application is closed.
        """
        with self._lock:
            if self._executor is None:
                self._executor = self.executor()
            executor = self._executor
        return executor.run(inputs)

    def executor(self, *, in_flight: int = 1) -> PlanExecutor:
        """Return a new executor of the placement, or of its first replica; the caller closes it.

        Raises:
            DeviceError: there is no room for its buffers.
            ExecutionError: the application is closed.
        """
        self._check_open()
        first = self._prepared[0]
        return first.home.executor(first.plan, in_flight=in_flight)

    def server(self, **options: Any) -> Server:
        """Start a server, with the options of :meth:`placeit.Session.serve`. The server is a context manager."""
        self._check_open()
        return self.session.serve(self.placement, **options)

    def _check_open(self) -> None:
        if self._closed:
            raise ExecutionError(f"{self.session.model.path} is closed, and nothing more can run there: load it again.")

    def check(self) -> OutputDifference:
        """Run the samples of the bundle on all replicas, and return the difference from the outputs of the uncut model.

        Raises:
            ExecutionError: the outputs differ by more than :attr:`tolerance`, or a device failed.
        """
        self._check_open()
        return check_samples(self._prepared)


@overload
def load(path: backends.Module, **options: Any) -> Model: ...
@overload
def load(path: str | Path, **options: Any) -> Application | Model: ...
def load(path: str | Path | backends.Module, **options: Any) -> Application | Model:
    """Open a bundle, read a model file, or export a PyTorch module.

    For static typing, :meth:`placeit.Application.load` only opens bundles, and so has one result type.

    Args:
        path: a bundle (``.placeit``, or a folder), for which the result is a :class:`placeit.Application`, ready to run; or a
            model, for which the result is a :class:`placeit.Model`, to be profiled and placed.
        options: options of :meth:`placeit.Application.load`, such as ``rematch``, or of :func:`placeit.backends.load`, such as
            ``example`` and ``kwargs`` for a PyTorch module.

    Raises:
        PlaceitError: an error of one of these two functions.
    """
    if isinstance(path, str | Path) and is_bundle(path):
        return Application.load(path, **options)
    return backends.load(path, **options)
