"""Results as tables for other programs."""

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


def profile(found: ProfileReport) -> str:
    """A row for each group and device; what a device cannot run has no times."""
    costs, groups = found.costs, found.grouping.groups
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("group", "kind", "ops", "flops", "device", "seconds", "cut_s", "load_s"))
    for g in range(len(groups)):
        about = (groups.names[g], groups.kinds[g], len(found.grouping.members(g)), float(groups.flops[g]))
        for d, device in enumerate(costs.cluster.names):
            able = costs.core[g, d] < float("inf")
            times = [float(some[g, d]) for some in (costs.core, costs.cut, costs.load)] if able else []
            table.writerow((*about, device, *times))
    return text.getvalue()


def recording(found: Recording) -> str:
    """A row for each ``span`` (a segment that ran, a tensor that moved), and for each ``op`` and ``kernel`` that was timed.

    ``name`` is the first op of a segment, what makes a tensor, or the op or kernel itself. What was not measured is empty.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    columns = ("row", "name", "type", "device", "to", "request", "segment", "kernel", "start_s", "seconds")
    table.writerow((*columns, "flops_per_s", "bytes_per_s"))
    ops = found.graph.ops
    if found.plan is not None:
        firsts = [ops[segment.ops[0]].name if segment.ops else "" for segment in found.plan.segments]
        for one in found.spans:
            name = "" if one.tensor is None else found.plan.tensors[one.tensor].name
            name = name if one.segment is None else firsts[one.segment]
            where = (*one.where, "")[:2]
            what = (one.request, one.segment, "", one.start_s, one.finish_s - one.start_s)  # None is written as nothing
            table.writerow(("span", name, one.kind, *where, *what, "", ""))
    for timed in found.ops:
        row, what_ran = ("kernel", timed.kernel) if timed.op is None else ("op", ops[timed.op].name)
        figures = (timed.measured_s, timed.flops_per_s, timed.bytes_per_s)
        table.writerow((row, what_ran, timed.kind, timed.device, "", "", timed.segment, timed.kernel, "", *figures))
    return out.getvalue()


def run(report: RunReport, grouping: Grouping, ops: Sequence[OpTime]) -> str:
    """A row for each ``segment``, for each ``op`` in it, and for each ``kernel`` in it that stands for no op.

    ``ops`` of a row is how many ops the segment has, or the kernel that computes the op stands for. What was not measured is
    empty.

    Args:
        report: of the segments.
        grouping: ops and groups of the plan that ran.
        ops: what each op took.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("row", "segment", "device", "name", "type", "ops", "kernel", "seconds"))
    names = report.plan.problem.device_names
    for s, segment in enumerate(report.plan.segments):
        members = [op for group in segment.groups for op in grouping.members(group)]
        first = min(members, key=grouping.graph.index.__getitem__)
        took = "" if segment.passthrough else repr(float(report.segment_s[s]))
        table.writerow(("segment", s, names[segment.device], first, "", len(members), "", took))
        for one in ops:
            if one.segment == s:
                spent = "" if one.seconds is None else repr(one.seconds)
                row, name = ("kernel", one.kernel) if one.op is None else ("op", one.op)
                table.writerow((row, s, names[segment.device], name, one.kind, one.sharers or "", one.kernel or "", spent))
    return text.getvalue()
