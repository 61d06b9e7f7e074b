"""ONNX's own test cases of its ops in placeit: no crash, no hang, clear errors, and the plain runtime's outputs.

Each case runs on two one-core devices of OpenVINO and of ONNX Runtime: uncut on one of them, and cut between all of its ops;
with the case's own inputs, and with inputs that placeit generates. The plain runtime is OpenVINO or ONNX Runtime without
placeit. If it refuses a case, or crashes on it, placeit may refuse the case, too. If it draws random numbers, only shapes are
compared. If only the plain runtime makes NaN, the outputs in ONNX's case count; with generated inputs there are none.

The cases run in child processes, many in one. A process that crashes, or takes longer than a minute for a case, is replaced.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks._child import Child, Ended
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, two_cores
from benchmarks._node_cases import FORMS, PLAIN, Outcome, serve

RUNTIMES = {"openvino": "", "onnxruntime": "ort:"}
STATUSES = ("passed", "refused", "unclear", "wrong", "crashed", "hung")
_FINE = ("passed", "refused")


def run(args: Args, report: Report) -> None:
    first, second = two_cores()
    found: dict[tuple[str, str], dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder, Child(Path(folder), serve) as child:
        names = args.cases or child.greeting[args.first : args.last][:: 10 if args.quick else 1]
        for number, name in enumerate(names):
            for runtime, prefix in RUNTIMES.items():
                if args.backend in (runtime, "both", ""):
                    progress(f"{number} of {len(names)} cases: {name}")
                    found[runtime, name] = ask(child, name, (f"{prefix}CPU@{first}", f"{prefix}CPU@{second}"))
    _report(report, found, len(names))


def _report(report: Report, found: dict[tuple[str, str], dict[str, Outcome]], cases: int) -> None:
    for runtime in dict.fromkeys(runtime for runtime, _ in found):
        for form in FORMS:
            count = Counter(outcomes[form].status for (where, _), outcomes in found.items() if where == runtime)
            report.row(runtime=runtime, form=form, **{status: count[status] for status in STATUSES})
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for (runtime, name), outcomes in found.items():
        for form, outcome in outcomes.items():
            if outcome.status not in _FINE:
                report.row(
                    runtime=runtime, form=form, case=name, status=outcome.status, reason=outcome.reason, plain=outcome.plain
                )
        if outcomes[FORMS[0]].status == "refused":
            plain = "refuses it, too" if outcomes[FORMS[0]].plain else "runs it"
            reasons.setdefault((runtime, _class(outcomes[FORMS[0]].reason), plain), []).append(name)
    for (runtime, reason, plain), names in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]))):
        report.row(runtime=runtime, refused=len(names), reason=reason, plain_runtime=plain, for_example=names[0])
    for status in STATUSES[2:]:
        bad = sum(any(outcome.status == status for outcome in outcomes.values()) for outcomes in found.values())
        report.claim(f"{status}, of {cases} cases on each runtime", bad, "cases", at_most=0)


def _class(reason: str) -> str:
    """Return a reason without the details of one case."""
    reason = re.sub(r"/\S*case\.onnx(: )?", "", reason)
    reason = re.sub(r"\((Range|\w+)\)|'[^']*'|\[[^\]]*\]", "...", reason)
    return re.sub(r"\d+", "N", reason)[:160]


def ask(child: Child, name: str, devices: tuple[str, str]) -> dict[str, Outcome]:
    """Run a case on two devices, and return the outcome by form."""
    try:
        found: dict[str, Outcome] = child.ask((name, devices))
    except Ended as end:
        if end.doing == PLAIN:
            return dict.fromkeys(FORMS, Outcome("refused", "The plain runtime crashes or hangs.", str(end)))
        return dict.fromkeys(FORMS, Outcome(end.status, str(end)))
    return found


if __name__ == "__main__":
    main("onnx_nodes", run, backends=("both", *RUNTIMES), judge=True, cases=True)
