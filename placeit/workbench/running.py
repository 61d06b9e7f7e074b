"""Run and measure single requests on a prepared placement."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Sample
from placeit.backends.checking import checked_inputs
from placeit.devices.meters import Sampler
from placeit.devices.nvml import gpu_use
from placeit.measuring.check import OutputDifference
from placeit.measuring.measure import Race, check_length
from placeit.measuring.run_log import RunLog
from placeit.measuring.run_report import AtSize, RunReport
from placeit.profiler.recording import MAX_SPANS
from placeit.profiler.trace import utilization
from placeit.runtime.spans import Done, Span
from placeit.workbench.opened import Workbench
from placeit.workbench.prepared import Prepared
from placeit.workbench.sizes import at_sizes

__all__ = ["given_to", "measure"]


def given_to(session: Workbench, inputs: Arrays | None) -> Arrays:
    """Return checked inputs in the types of the model, or the session's inputs for None. Raises UsageError."""
    wanted = {spec.name: spec for spec in session.model.inputs}
    return session.model.sample_inputs() if inputs is None else checked_inputs(inputs, wanted)


def measure(prepared: Prepared, *, runs: int, duration: float | None, warmup: int, inputs: Arrays | None) -> RunReport:
    """Compile a placement, run single requests on it, one after the other, and check its outputs before and after.

    Args:
        prepared: the placement.
        runs: timed runs, at least one.
        duration: seconds of timed runs, in place of their number; None to count them.
        warmup: runs before them that do not count.
        inputs: by name; None for the session's.

    Raises:
        UsageError: an input is missing or has the wrong shape, or there are no runs.
        DeviceError: a device exists in simulation only, or has no room.
        ExecutionError: a device failed.
        KeyboardInterrupt: Ctrl-C before the first timed run had ended; afterwards it ends the runs.
    """
    check_length(runs, duration, warmup)
    session, plan = prepared.home, prepared.plan
    checked = given_to(session, inputs)
    interrupted = False
    with session.executor(plan) as executor:
        check = session.reference.output_check(None if inputs is None else checked)
        error, refused = check(executor), executor.refused
        if inputs is not None:
            executor.set_requests([Sample(checked)])
        log = RunLog(executor, MAX_SPANS)
        spun, begin = executor.spun_s, perf_counter()
        with Sampler() as sampler:
            race = Race({"placement": log.time}, warmup=warmup, watch=session.policy.watch())
            try:
                race.warm_up()
                length = runs if duration is None else None
                race.run(rounds=length, budget_s=duration, min_rounds=1)
            except KeyboardInterrupt:
                if not race.results():
                    raise
                interrupted = True
                session.hurry()
        spinning = (executor.spun_s - spun) / (perf_counter() - begin)
        latency, segment_s = race.results()["placement"], executor.segment_seconds()
        inner = [log.inner[number] for runs in race.counted("placement") for number in runs]
        outputs: dict[str, NDArray[np.generic]] = {}
        sizes: list[AtSize] = []
        spans: list[Span] = []
        traced: Done | None = None
        if not interrupted:
            error = error.worse(check(executor, after=True))
            sizes = at_sizes(session.model, executor, plan) if inputs is None else []
            outputs = executor.run(checked)
            error = error.worse(OutputDifference.between(outputs, check.expected))
            spans, traced = executor.spans(), log.last()
    return RunReport(
        model=str(session.model.path),
        placement=prepared.placement,
        cluster=session.cluster,
        warmup=warmup,
        duration_s=duration,
        latency=latency,
        utilization={} if interrupted else utilization(spans, devices=session.cluster.names),
        output_error=error,
        failed=error.wrong(session.tolerance),
        spans=spans,
        outputs=outputs,
        plan=plan,
        simulated_s=plan.schedule.makespan if session.has_costs else None,
        segment_s=segment_s,
        native=executor.native,
        host_paced=executor.host_paced,
        inner_s=float(np.median(inner)),
        disturbed=race.disturbed,
        left_out=race.left_out,
        gpus=gpu_use(sampler.gpu_samples),
        refused=refused,
        done=list(log.done)[-len(latency.samples) :],
        traced=traced,
        readings=sampler.readings,
        interrupted=interrupted,
        sizes=sizes,
        precision=session.precision,
        spinning=spinning,
    )
