"""The class :class:`Session`, which profiles, optimises, runs and serves a model, and the function :func:`optimize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from placeit.backends import Module
from placeit.backends.base import Arrays, Model
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.units import parse_quantity
from placeit.devices.clusterfile import discover
from placeit.measuring.measure import WARMUP
from placeit.optimizer.options import Budget, Candidates, Goal
from placeit.profiler.cache import Cache
from placeit.serving.server import QUEUE, Server
from placeit.workbench import Workbench
from placeit.workbench.options import Constraints, Inputs, Policy, Traffic
from placeit.workbench.prepared import PreparedCache
from placeit.workbench.setup import Setup

if TYPE_CHECKING:
    from placeit.backends.bundle.manifest import Manifest
    from placeit.measuring.run_report import RunReport
    from placeit.optimizer.result import Optimized
    from placeit.optimizer.story import OnEvent
    from placeit.placers.base import Placer
    from placeit.profiler.costs import Progress
    from placeit.profiler.recording import Recording
    from placeit.serving.load_run import RateReport
    from placeit.serving.refinement import Limits
    from placeit.serving.sequence import Sequence as OpenSequence
    from placeit.workbench.estimating import Estimate
    from placeit.workbench.serving import Watch

__all__ = ["Session", "optimize"]

_RUNS = 30  # timed runs by default


class Session(Workbench):
    """A model, its groups, a cluster, and threads and compiled segments to run it. A context manager.

    Placements that include their segments, as :meth:`optimize` finds them, run at once (:meth:`run`). To plan other placements,
    the session needs the costs of groups: call :meth:`profile`.

    Args:
        model: a model, the path of one, or a PyTorch module.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        example: positional arguments for a call of the PyTorch module, or a single tensor; they fix its sizes,
            except for ranges in ``inputs.shapes``.
        kwargs: keyword arguments for the same call.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: rules for every placement.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        expected: devices of nodes that may join later, each with the present device of another node that it is assumed to
            equal (``{"edge2/CPU": "edge1/CPU"}``). They count as lost until their node has joined. A server that places the
            model again may use them from then on (:meth:`serve`).
        graph: hash of the task graph of the placements to run; empty for any graph. It chooses between the graph of an ONNX
            file and OpenVINO's graph of it, where ONNX Runtime can run either.
        spin_s: seconds, at most 0.001, for which threads of devices spin before they sleep while they wait for the next
            segment, while cores are idle. Waking a thread takes 5 to 50 us; spinning keeps a core busy, which reports show.
        policy: guards against measurements that mislead.

    Raises:
        ModelError, FileError, DeviceError, ClusterError: the model, a file, a device or the cluster cannot be used.
        UsageError: an input is missing, unknown, or has another shape or type than the model wants; a limit is no size or names
            no device; a pin names no device, matches no op, or contradicts another one; an expected device is not on a node, or
            the device that it is assumed to equal is not present.
        PlacementError: ops that need one device are pinned to several.
    """

    def __init__(
        self,
        model: str | Path | Model | Module,
        devices: str | Sequence[str] | Path | Cluster | None = None,
        *,
        example: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        precision: str = "f32",
        inputs: Inputs | Arrays | None = None,
        constraints: Constraints = Constraints(),
        cache: Cache | Literal["default"] | None = "default",
        expected: Mapping[str, str] | None = None,
        graph: str = "",
        spin_s: float = 0.0,
        policy: Policy = Policy(),
    ) -> None:
        setup = Setup.of(
            model,
            devices,
            example=example,
            kwargs=kwargs,
            precision=precision,
            inputs=inputs,
            constraints=constraints,
            cache=cache,
            expected=expected,
            graph=graph,
            spin_s=spin_s,
            policy=policy,
        )
        super().__init__(setup)
        self._prepared = PreparedCache(self)

    def __repr__(self) -> str:
        return f"<Session of {self.model.path} on {', '.join(self.cluster.names)}, {len(self.grouping.groups)} groups>"

    def optimize(
        self,
        objective: str = "latency",
        *,
        budget: float | str | Budget = 60.0,
        candidates: Candidates | Sequence[str | Placer] = Candidates(),
        seed: int = 0,
        rate: float | None = None,
        in_flight: int | None = None,
        progress: Progress | None = None,
        on_event: OnEvent | None = None,
    ) -> Optimized:
        """Find the best placement by an objective, by measuring, as :func:`placeit.optimize` does.

        The session can be used afterwards, also for another search; without a cache, each search measures costs again.

        Raises:
            UsageError: also if a placement to start from divides groups, and something was measured or run before.
        """
        from placeit.optimizer.optimize import find

        return find(self, Goal(self.cluster, objective, budget, candidates, seed, rate, in_flight), progress, on_event)

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
        watch: Watch | None = None,
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
        watch: Watch | None = None,
    ) -> RunReport | RateReport:
        """Run a placement and measure it: single requests, or several in flight.

        Args:
            placement: a placement of the model's ops, or the path of its file. Single requests run on the first replica.
            runs: number of timed runs, at least one; None for 30.
            duration: seconds of timed runs, instead of their number; at least one run.
            warmup: number of uncounted runs before them; with ``traffic``, for each replica.
            inputs: inputs by name; None for the inputs of the session.
            traffic: how requests arrive at the placement and its replicas; None for single requests.
            watch: function that makes, of the server, a context in which requests arrive, such as ``Server.live``.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: an input is missing or has the wrong shape; there are no runs; ``traffic`` is given together with their
                number or duration; ``watch`` is given without ``traffic``; or costs are not known and the placement has no
                segments that can run (:meth:`plan_of`).
            DeviceError: a device exists in simulation only, or has no room.
            ExecutionError: a device failed, or requests did.
            KeyboardInterrupt: Ctrl-C before the first timed run had ended; afterwards it ends the runs.
        """
        from placeit.workbench import running, serving  # not at the top, so that programs that load bundles start faster

        placement = Placement.of(placement)
        if traffic is None:
            if watch is not None:
                raise UsageError("Single requests have no server to watch: give 'traffic', or leave out 'watch'.")
            count = _RUNS if runs is None else runs
            prepared = self._prepared.prepare(placement)
            return running.measure(prepared, runs=count, duration=duration, warmup=warmup, inputs=inputs)
        if runs is not None or duration is not None:
            raise UsageError("Traffic says how many requests there are: leave out 'runs' and 'duration'.")
        return serving.measure(self._prepared.every(placement), traffic, warmup=warmup, inputs=inputs, watch=watch)

    def serve(
        self,
        placement: Placement | str | Path,
        *,
        in_flight: int | None = None,
        queue: int = QUEUE,
        refine: bool | Limits = False,
        on_loss: Literal["fail", "replace"] = "fail",
        state_memory: float | str | None = None,
        max_batch: int | Literal["auto"] | None = None,
        batch_delay: float = 0.0,
        priority: int = 0,
    ) -> Server:
        """Start a server that runs each request on a placement or a replica of it, whichever has the fewest in flight.

        Use the server as a context manager, inside the context of the session.

        Args:
            placement: a placement of the model's ops, or the path of its file.
            in_flight: largest number of requests in flight on each replica; None for the placement's (:func:`placeit.tune`), or
                else as many as the highest throughput needs (:func:`placeit.planning.in_flight.in_service`) and memory allows.
            queue: largest number of requests that may wait.
            refine: whether to look for a better placement while it serves, by a small share of the requests; or the limits for
                that (:class:`placeit.serving.refinement.Limits`). ``Server.refinement`` has the results.
            on_loss: after the loss of a device, ``"fail"`` runs requests on the remaining replicas, and fails them if there are
                none. ``"replace"`` also places the model again on the remaining devices, by the costs (:attr:`costs`), and uses
                devices that come back, and leaves devices that become slow, once that is worth the move. Only with it, a device
                of this process is lost when its runtime fails on the inputs of a request and on sample inputs.
            state_memory: bytes, or text such as ``2GB``, that the states of all sequences (:meth:`Server.sequence
                <placeit.serving.server.Server.sequence>`) may take; None for half of the memory that is free now.
            max_batch: largest number of rows of waiting requests that run as one, if the model's batch size is open. 0 or 1
                runs each request alone; ``"auto"`` measures batches when the server starts, and joins requests if that takes
                less time per request. None for the placement's (:func:`placeit.tune`), or else 1.
            batch_delay: seconds that a request may wait for others to join it while a device is free.
            priority: number, at most 0; of several servers whose segments wait for a device, the lowest number goes first.

        Raises:
            PlacementError: it does not fit the model, the devices or their memory.
            UsageError: it cannot be planned (:meth:`plan_of`); ``refine`` or ``on_loss="replace"`` is given, and costs are not
                known; both are given, or one of them and ``max_batch``; ``refine`` is given for a placement with replicas;
                ``priority`` is above 0; or ``max_batch`` is above 1, and requests of the model cannot be joined.
            DeviceError: a device exists in simulation only, or has no room.
        """
        from placeit.serving.refinement import Limits
        from placeit.serving.stepping import Steps
        from placeit.workbench.serving import adapting, executors, joining, refining

        placement = Placement.of(placement)
        state_bytes = parse_quantity(state_memory, "memory") if isinstance(state_memory, str) else state_memory
        tuned = placement.serving
        in_flight = tuned.in_flight if in_flight is None and tuned is not None else in_flight
        moves = refine or on_loss == "replace"
        if max_batch is None:
            max_batch = 1 if tuned is None or moves else tuned.max_batch
        if refine and on_loss == "replace":
            raise UsageError("A server refines its placement, or replaces what was lost: leave out 'refine' or 'on_loss'.")
        join = joining(self, max_batch, batch_delay)
        if join is not None and not isinstance(join, str) and moves:
            raise UsageError(
                "A server that joins requests does not refine or replace its placement, as the times of its requests depend on "
                "their batches: leave out 'max_batch', or 'refine' and 'on_loss'."
            )
        if priority > 0:
            raise UsageError(f"'priority' is {priority}; it must be 0 or less.")
        replicas = self._prepared.every(placement)
        options: dict[str, Any] = {"queue": queue, "state_memory": state_bytes}
        if refine:
            limits = Limits() if refine is True else refine
            return refining(self, replicas, limits, in_flight=in_flight, priority=priority, **options)
        if on_loss == "replace":
            return adapting(self, replicas, in_flight=in_flight, priority=priority, **options)
        steps = Steps.of(self.model, self.tolerance)
        return Server(executors(replicas, in_flight, priority), joining=join, steps=steps, **options)

    def sequence(
        self,
        placement: Placement | str | Path,
        *,
        recompute: bool = False,
        on_loss: Literal["fail", "replace"] = "fail",
        state_memory: float | str | None = None,
    ) -> OpenSequence:
        """Open a sequence on a separate server: requests that each continue from the state that the previous one left.

        Use it as a context manager, inside the context of the session. Its forks run on the same server, which is closed with
        the last of them. For sequences that come and go, start a server (:meth:`serve`), and open sequences there.

        Args:
            placement: a placement of the model's ops, or the path of its file.
            recompute: whether to keep copies of the inputs since the last reset, and to run them again if the state is lost,
                with a device or by a request that failed.
            on_loss: whether requests fail or the model is placed again after the loss of a device (:meth:`serve`).
            state_memory: bytes, or text such as ``2GB``, that its state and the states of its forks may take; None for half of
                the memory that is free now.

        Raises:
            UsageError: devices of the placement do not keep state from one request to the next; or an error of :meth:`serve`.
            PlacementError, DeviceError: errors of :meth:`serve`.
        """
        server = self.serve(placement, in_flight=1, on_loss=on_loss, state_memory=state_memory)
        try:
            server.after_sequences = server.close
            return server.sequence(recompute=recompute)
        except BaseException:
            server.close(drain=False)
            raise

    def estimate(self) -> Estimate:
        """Predict the time of the model on each device, and on all of them together, from the times of other models there.

        The prediction uses the history of kernel times, to which every complete profile adds. The model is not run.

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
            report: report of the run; None for a recording of the model and the devices alone.
            ops: whether to measure the time of each op (:meth:`op_times`), which takes a few more runs.

        Raises:
            DeviceError: a segment cannot be compiled with counters.
            ExecutionError: a run with counters failed.
        """
        from placeit.workbench import recording_runs

        if report is None:
            return recording_runs.of_model(self)
        return recording_runs.of_run(self.home_of(report.placement), report, ops=ops)

    def planned(self, placement: Placement | str | Path) -> Recording:
        """Return a recording of a placement that has not run: its plan, and its simulated schedule if costs are known."""
        from placeit.workbench import recording_runs

        return recording_runs.of_plan(self._prepared.every(Placement.of(placement)))

    def build(self, placement: Placement | str | Path, path: str | Path, *, name: str | None = None) -> Manifest:
        """Write a bundle: all that is needed to run a placement elsewhere, with :func:`placeit.load` or ``placeit run``.

        It contains the segments as files, so that running them needs no model, no conversion and no profiling. Before the
        bundle is written to the path, it is run here and its outputs are compared with the reference.

        Args:
            placement: a placement of the model's ops, with its replicas, or the path of its file.
            path: path of the bundle: an archive if it ends in ``.placeit``, else a folder. Nothing may exist there.
            name: display name of the model; None for the name of its file.

        Returns:
            The manifest of the bundle.

        Raises:
            FileError: the path exists, or cannot be written.
            PlacementError: the placement does not fit the model, the devices or their memory.
            UsageError: the placement cannot be planned (:meth:`plan_of`).
            DeviceError: segments for a device cannot be in a bundle.
            ModelError: a segment cannot be written.
            ExecutionError: the outputs of the bundle differ from the model's, or a device failed.
        """
        from placeit.workbench.building import build, check_target

        check_target(Path(path))
        placement = Placement.of(placement)
        return build(self._prepared.every(placement), Path(path), name=name or self.model.name, serving=placement.serving)


def optimize(
    model: str | Path | Model | Module,
    devices: str | Sequence[str] | Path | Cluster | None = None,
    *,
    example: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    objective: str = "latency",
    budget: float | str | Budget = 60.0,
    candidates: Candidates | Sequence[str | Placer] = Candidates(),
    seed: int = 0,
    rate: float | None = None,
    in_flight: int | None = None,
    progress: Progress | None = None,
    on_event: OnEvent | None = None,
    precision: str = "f32",
    inputs: Inputs | Arrays | None = None,
    constraints: Constraints = Constraints(),
    cache: Cache | Literal["default"] | None = "default",
    policy: Policy = Policy(),
) -> Optimized:
    """Find the best placement of a model by an objective, by measuring.

    Args:
        model: a model, the path of one, or a PyTorch module.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        example: positional arguments for a call of the PyTorch module, or a single tensor; they fix its sizes,
            except for ranges in ``inputs.shapes``.
        kwargs: keyword arguments for the same call.
        objective: what to minimise: ``latency``; ``throughput``, seconds per request with many in flight, also of replicas and
            OpenVINO's throughput mode; ``total-cost``, seconds that devices and links are busy, in sum; or ``energy``, joules
            by meters if each device has one (:mod:`placeit.devices.energy`), else by a power model from measured times.
        budget: seconds, a text such as ``60s`` or ``2m``, or :class:`placeit.Budget`.
        candidates: which placements are compared; or the placers to ask, by name or as objects, as ``[MyPlacer()]``.
        seed: seed of all random choices.
        rate: requests per second that arrive. For ``latency``, runs are measured at that pace. For ``throughput``, the result
            has the share of them that is served, and how long they wait, in simulation (``Optimized.service``).
        in_flight: for ``throughput``, requests in flight, in all replicas; None for the fewest that reach 95 % of the highest.
        progress: function that is called with the current activity and the share of it that is done.
        on_event: function that is called with each event (:class:`placeit.optimizer.story.Event`): a candidate is proposed,
            measured or fails, or a race begins. The search waits for it; its errors end the search.
        precision: inference precision of every device.
        inputs: arrays by name, or :class:`placeit.Inputs`; None for random ones.
        constraints: rules for every placement.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        policy: guards against measurements that mislead.

    Returns:
        The result. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: a placer or objective is unknown, a rate or a number of requests in flight is not positive or has no use,
            the power of a device is unknown for ``energy``, a budget is not positive, a seed or tolerance is negative, or
            inputs do not fit the model.
        InfeasibleError: there is no placement at all, or a device cannot run an op that is pinned there.
        ExecutionError: every placement that was tried failed; the message gives the reason of each.
        PlaceitError: the model, a device or a file cannot be used.
        PlacementError: a placement to start from does not fit the model, the devices, their memory or a pin.
        KeyboardInterrupt: Ctrl-C before there was any placement; afterwards it ends the search.
    """
    from placeit.optimizer.optimize import find

    cluster = discover(devices, precision=precision)
    goal = Goal(cluster, objective, budget, candidates, seed, rate, in_flight)  # first, as checks are faster than loading
    with Session(
        model,
        cluster,
        example=example,
        kwargs=kwargs,
        precision=precision,
        inputs=inputs,
        constraints=constraints,
        cache=cache,
        policy=policy,
    ) as session:
        return find(session, goal, progress, on_event)
