"""Damaged files of every kind that placeit reads: no crash, no hang, no unrequested file, and clear errors.

Each case changes a small file (an ONNX model, OpenVINO IR, ``.pt2`` archive, placement, cluster file, policy, training state or
problem, entry of the cost cache, archive of inputs) and gives it to a command that reads it. These outcomes are wrong: a crash,
a hang, a traceback, an error that is not one clear paragraph, an exit code besides 0, 1 and 2, a file written besides the named
outputs, code executed from the file, and the use of a gigabyte of memory.

Cases run in child processes, many in one. A process that crashes, or takes longer than a minute for a case, is replaced. A case
that went wrong is kept in a folder, to be run again with ``--replay FILE``, or with ``--seed`` and ``--cases NUMBER``.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._child import Child, Ended
from benchmarks._fuzz_cases import KINDS, Case, make_case, pack, unpack
from benchmarks._fuzz_child import STATUSES, Main, Outcome, serve
from benchmarks._fuzz_seeds import make_seeds
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, two_cores

CASES, QUICK_CASES = 10_000, 1_000
CASE_S = 60.0
CHILDREN = 2
_SAID_EVERY = 500
FINE = STATUSES[:2]


def run(args: Args, report: Report) -> None:
    first, second = two_cores()
    devices = f"CPU@{first}", f"CPU@{second}"
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder) / "seeds"
        progress("making seeds")
        maker = multiprocessing.get_context("spawn").Process(target=make_seeds, args=(seeds, devices))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError("The seeds could not be made.")
        requests: list[int | Path] = [Path(name) for name in args.replay]
        if not requests:
            most = QUICK_CASES if args.quick else CASES
            numbers = range(args.first, most if args.last is None else args.last)
            requests = [int(name) for name in args.cases] if args.cases else list(numbers)
        begin = time.perf_counter()
        found = dict(try_all(requests, seeds, devices, args.seed))
        seconds = time.perf_counter() - begin

        def case_of(request: int | Path) -> Case:
            return unpack(request.read_bytes()) if isinstance(request, Path) else make_case(seeds, devices, args.seed, request)

        _report(report, {request: (case_of(request), found[request]) for request in requests}, args)
        report.row(cases=len(found), seconds=round(seconds), cases_per_second=len(found) / seconds)


def try_all(
    requests: Iterable[int | Path],
    seeds: Path,
    devices: tuple[str, str],
    seed: int,
    *,
    case_s: float = CASE_S,
    command: Main | None = None,
) -> Iterator[tuple[int | Path, Outcome]]:
    """Run cases in child processes; yield the outcome of each.

    Args:
        requests: numbers of cases, and files of cases that were kept.
        seeds: folder of the seeds, made with these devices.
        devices: the devices.
        seed: of the run.
        case_s: seconds after which a case counts as hung.
        command: the function to run instead of placeit.
    """
    wanted = list(requests)
    todo, lock = iter(wanted), threading.Lock()
    children = min(CHILDREN, 1 + len(wanted) // 100)
    done = itertools.count(1)

    def work(folder: Path) -> list[tuple[int | Path, Outcome]]:
        outcomes: list[tuple[int | Path, Outcome]] = []
        folder.mkdir()
        with Child(folder, serve, (str(seeds), devices, seed, case_s, command), case_s=case_s) as child:
            while True:
                with lock:
                    request = next(todo, None)
                if request is None:
                    return outcomes
                outcomes.append((request, ask(child, request, folder)))
                number = next(done)
                if number % _SAID_EVERY == 0:
                    progress(f"{number} of {len(wanted)} cases")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(children) as threads:
        for outcomes in threads.map(work, [Path(folder) / str(i) for i in range(children)]):
            yield from outcomes


def ask(child: Child, request: int | Path, folder: Path) -> Outcome:
    """Run one case, and return its outcome, including a crash or a hang."""
    try:
        outcome: Outcome = child.ask(request.read_bytes() if isinstance(request, Path) else request)
    except Ended as end:
        said = ""
        with contextlib.suppress(OSError):
            said = " ".join((folder / "err.txt").read_text(encoding="utf-8", errors="replace").split())[:300]
        return Outcome(end.status, f"{end}; {said}")
    return outcome


def _report(report: Report, found: dict[int | Path, tuple[Case, Outcome]], args: Args) -> None:
    for kind in KINDS:
        count = Counter(outcome.status for case, outcome in found.values() if case.kind == kind)
        if count:
            report.row(kind=kind, **{status: count[status] for status in STATUSES})
    alike: dict[tuple[str, str, str], list[tuple[int | Path, Outcome, str]]] = {}
    for request, (case, outcome) in found.items():
        if outcome.status in FINE:
            continue
        kept = str(request)
        if not isinstance(request, Path):
            folder = Path(args.keep)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{case.kind}-{args.seed}-{request}.zip"
            path.write_bytes(pack(case, status=outcome.status, reason=outcome.reason))
            kept = str(path)
        alike.setdefault((case.kind, outcome.status, _class(outcome.reason)), []).append((request, outcome, kept))
    for (kind, status, _), cases in sorted(alike.items(), key=lambda item: -len(item[1])):
        report.row(
            wrong=len(cases),
            kind=kind,
            status=status,
            for_example=str(cases[0][0]),
            reason=cases[0][1].reason,
            file=cases[0][2],
        )
    for status in STATUSES[2:]:
        bad = sum(outcome.status == status for _, outcome in found.values())
        report.claim(f"{status}, of {len(found)} cases", bad, "cases", at_most=0)


def _class(reason: str) -> str:
    """Return a reason without the details of one case."""
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'|\[[^\]]*\]|\S*/\S*", "...", reason))[:120]


if __name__ == "__main__":
    main("fuzz", run, judge=True, cases=True, replay=True)
