"""A model on a cluster, opened to measure, serve and record placements.

May import ``profiler`` and all below it. Read :class:`~placeit.workbench.opened.OpenSession` first.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from placeit.backends.base import Arrays
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.measuring.measure import WARMUP
from placeit.serving.server import QUEUE, Server
from placeit.workbench.opened import OpenSession
from placeit.workbench.options import Traffic

if TYPE_CHECKING:
    from placeit.measuring.run_report import RunReport
    from placeit.profiler.recording import Recording
    from placeit.serving.load import RateReport
    from placeit.serving.refining import Limits
    from placeit.serving.sequences import Sequence
    from placeit.workbench import serving
    from placeit.workbench.estimating import Estimate

__all__ = ["Workbench"]

_RUNS = 30  # timed runs, by default


class Workbench(OpenSession):
    """All of a :class:`placeit.Session` but the search: an open session that measures, serves and records placements."""

    @overload
    def run(
        self,
        placement: Placement | str | Path,
        *,
        runs: int | None = None,
        duration: float | None = None,
        warmup: int = WARMUP,
        inputs: Arrays | None = None,
        traffic: None = None,
        watch: None = None,
    ) -> RunReport: ...

    @overload
    def run(
        self,
        placement: Placement | str | Path,
        *,
        warmup: int = WARMUP,
        inputs: Arrays | None = None,
        traffic: Traffic,
        watch: serving.Watch | None = None,
    ) -> RateReport: ...

    def run(
        self,
        placement: Placement | str | Path,
        *,
        runs: int | None = None,
        duration: float | None = None,
        warmup: int = WARMUP,
        inputs: Arrays | None = None,
        traffic: Traffic | None = None,
        watch: serving.Watch | None = None,
    ) -> RunReport | RateReport:
        """Run a placement and measure it: single requests, or several in flight.

        Args:
            placement: of the model's ops, or a file of one. Single requests run on the first replica.
            runs: timed runs, at least one; None for 30.
            duration: seconds of timed runs, in place of their number: as many as fit, and one in any case.
            warmup: runs before them that do not count; with ``traffic``, for each replica.
            inputs: by name; None for the session's.
            traffic: how requests arrive at the placement and its replicas; None for single ones.
            watch: given the server, makes a context in which requests arrive, such as ``Server.live``; None for no context.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: an input is missing or has the wrong shape; there are no runs; ``traffic`` is given together with their
                number or duration; ``watch`` is given without ``traffic``; or costs are not known and the placement has no
                segments that can run (:meth:`plan_of`).
            DeviceError: a device exists in simulation only, or has no room.
            ExecutionError: a device failed, or requests did.
            KeyboardInterrupt: Ctrl-C before the first timed run had ended; afterwards it ends the runs.
        """
        from placeit.workbench import running, serving  # late, as below: these imports take as long as all others of a server

        placement = placement if isinstance(placement, Placement) else Placement.load(placement)
        if traffic is None:
            if watch is not None:
                raise UsageError("Single requests have no server to watch: give 'traffic', or leave out 'watch'.")
            length = _RUNS if runs is None else runs
            prepared = self.prepare(placement)
            return running.measure(prepared, runs=length, duration=duration, warmup=warmup, inputs=inputs)
        if runs is not None or duration is not None:
            raise UsageError("Traffic says how many requests there are: leave out 'runs' and 'duration'.")
        replicas = [self.prepare(one) for one in placement.every]
        return serving.measure(replicas, traffic, warmup=warmup, inputs=inputs, watch=watch)

    def serve(
        self,
        placement: Placement,
        *,
        in_flight: int | None = None,
        queue: int = QUEUE,
        refine: bool | Limits = False,
        on_loss: Literal["fail", "replace"] = "fail",
        state_memory: float | str | None = None,
    ) -> Server:
        """Start a server that runs requests on a placement and its replicas, each of which serves whole requests.

        Use the server as a context manager, inside the context of the session.

        Args:
            placement: of the model's ops; the replica with the fewest requests in flight takes the next one.
            in_flight: most requests in flight at once on each replica; None for as many as it needs for its highest throughput
                (:func:`placeit.planning.in_flight.in_service`), or has room for.
            queue: most requests that may wait.
            refine: whether to look for a better placement while it serves, by a small share of the requests; or the limits for
                that (:class:`placeit.serving.refining.Limits`). ``Server.refinement`` has the results.
            on_loss: after the loss of a device of another node, ``"fail"`` runs requests on the replicas that are left, and
                fails them if there are no replicas left. ``"replace"`` also places the model anew on the devices that are left,
                by the costs (:attr:`costs`). The server then also uses devices that come back, and leaves devices that become
                slow, once that is worth the move.
            state_memory: bytes, or text such as ``2GB``, that the states of all sequences (:meth:`Server.sequence
                <placeit.serving.server.Server.sequence>`) may take; None for half of the memory that is free now.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: it cannot be planned (:meth:`plan_of`); ``refine`` or ``on_loss="replace"`` is given, and costs are not
                known; both are given; or ``refine`` is given for a placement with replicas.
            DeviceError: a device exists in simulation only, or has no room.
        """
        from placeit.workbench import serving

        return serving.serve(
            self, placement, in_flight=in_flight, queue=queue, refine=refine, on_loss=on_loss, state_memory=state_memory
        )

    def sequence(
        self,
        placement: Placement,
        *,
        recompute: bool = False,
        on_loss: Literal["fail", "replace"] = "fail",
        state_memory: float | str | None = None,
    ) -> Sequence:
        """Open a sequence of requests, each of which continues from the state that the previous one left, on a separate server.

        Use it as a context manager, inside the context of the session. Its forks run on the same server, which is closed with
        the last of them. For sequences that come and go, start a server (:meth:`serve`), and open sequences there.

        Args:
            placement: of the model's ops.
            recompute: whether to keep copies of the inputs since the last reset, and to run them again if the state is lost,
                with a device or by a request that failed.
            on_loss: whether requests fail or the model is placed anew after the loss of a device of another node
                (:meth:`serve`).
            state_memory: bytes, or text such as ``2GB``, that its state and the states of its forks may take; None for half of
                the memory that is free now.

        Raises:
            UsageError: devices of the placement do not keep state from one request to the next; or as by :meth:`serve`.
            PlacementError, DeviceError: as by :meth:`serve`.
        """
        from placeit.workbench import serving

        return serving.sequence(self, placement, recompute=recompute, on_loss=on_loss, state_memory=state_memory)

    def estimate(self) -> Estimate:
        """Predict the time of the model on each device, and on all of them, from the times of other models there.

        Every profile that is complete adds to the history of kernel times, beside the cost cache. The model is not run.

        Raises:
            DeviceError: no model was profiled on some device, or the device exists in simulation only.
            UsageError: the session has no cost cache.
            InfeasibleError: the model runs on no device, or fits nowhere.
        """
        from placeit.workbench import estimating

        return estimating.estimate(self.model, self.placing, self.cluster, self.cache, self.precision, self.compiling)

    def recording(self, report: RunReport | RateReport | None = None, *, ops: bool = True) -> Recording:
        """Return a recording of a run of :meth:`run`: its requests, segments and transfers, with their times and devices.

        Args:
            report: of the run; None for a recording of the model and the devices alone.
            ops: whether to measure the time of each op (:meth:`op_times`), which takes a few more runs.

        Raises:
            DeviceError: a segment cannot be compiled with counters.
            ExecutionError: a run with counters failed.
        """
        from placeit.workbench import recording

        return recording.of_model(self) if report is None else recording.of_run(self, report, ops=ops)

    def planned(self, placement: Placement) -> Recording:
        """Return a recording of a placement that has not run: its plan, and its simulated schedule if costs are known."""
        from placeit.workbench import recording

        return recording.of_plan(self, [self.prepare(one) for one in placement.every])
