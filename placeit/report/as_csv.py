"""Format results as CSV tables for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeit.measuring.run_report import RunReport
    from placeit.planning.coarsen import Grouping
    from placeit.profiler.op_times import OpTime
    from placeit.profiler.profile_report import ProfileReport
    from placeit.profiler.recording import Recording

__all__ = ["profile", "recording", "run"]


def _csv(*rows: Sequence[object]) -> str:
    """Return rows as text; None becomes an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def profile(found: ProfileReport) -> str:
    """Return a table with a row for each group and device. Times are empty if the device cannot run the group."""
    costs, groups = found.costs, found.grouping.groups
    rows: list[Sequence[object]] = [("group", "kind", "ops", "flops", "device", "seconds", "cut_s", "load_s")]
    for g in range(len(groups)):
        about = (groups.names[g], groups.kinds[g], len(found.grouping.members(g)), float(groups.flops[g]))
        for d, device in enumerate(costs.cluster.names):
            supported = costs.core[g, d] < float("inf")
            times = [float(some[g, d]) for some in (costs.core, costs.cut, costs.load)] if supported else []
            rows.append((*about, device, *times))
    return _csv(*rows)


def recording(found: Recording) -> str:
    """Return a table with a row for each ``span`` (a segment or a transfer), and for each timed ``op`` and ``kernel``.

    ``name`` is the first op of a segment, the op that writes a tensor, or the op or kernel itself. Unmeasured cells are empty.
    """
    columns = ("row", "name", "type", "device", "to", "request", "segment", "kernel", "start_s", "seconds")
    rows: list[Sequence[object]] = [(*columns, "flops_per_s", "bytes_per_s")]
    ops = found.graph.ops
    if found.plan is not None:
        firsts = [ops[segment.ops[0]].name if segment.ops else "" for segment in found.plan.segments]
        for span in found.spans:
            name = "" if span.tensor is None else found.plan.tensors[span.tensor].name
            name = name if span.segment is None else firsts[span.segment]
            where = (*span.where, "")[:2]
            values = (span.request, span.segment, "", span.start_s, span.finish_s - span.start_s)
            rows.append(("span", name, span.kind, *where, *values, "", ""))
    for timed in found.ops:
        row, op = ("kernel", timed.kernel) if timed.op is None else ("op", ops[timed.op].name)
        figures = (timed.measured_s, timed.flops_per_s, timed.bytes_per_s)
        rows.append((row, op, timed.kind, timed.device, "", "", timed.segment, timed.kernel, "", *figures))
    return _csv(*rows)


def run(report: RunReport, grouping: Grouping, ops: Sequence[OpTime]) -> str:
    """Return a table with a row for each ``segment``, each of its ops, and each of its kernels that belongs to no op.

    The column ``ops`` has the number of ops of the segment, or of the kernel that computes the op. Unmeasured cells are empty.

    Args:
        report: report with the segments.
        grouping: ops and groups of the plan that ran.
        ops: measured time of each op.
    """
    rows: list[Sequence[object]] = [("row", "segment", "device", "name", "type", "ops", "kernel", "seconds")]
    names = report.plan.problem.device_names
    for s, segment in enumerate(report.plan.segments):
        members = [name for group in segment.groups for name in grouping.members(group)]
        first = min(members, key=grouping.graph.index.__getitem__)
        took = None if segment.passthrough else float(report.segment_s[s])
        rows.append(("segment", s, names[segment.device], first, "", len(members), "", took))
        for op in ops:
            if op.segment == s:
                row, name = ("kernel", op.kernel) if op.op is None else ("op", op.op)
                rows.append((row, s, names[segment.device], name, op.kind, op.sharers or "", op.kernel, op.seconds))
    return _csv(*rows)
