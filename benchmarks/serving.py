"""A server under load for 20 minutes: whether memory and threads stay what they are, and every request is accounted for.

Inception-V3 is served on two one-core devices, cut in the middle by work, with three requests in flight and a few waiting all
the time. Some requests are cancelled, some come with a deadline that is soon over. What counts is what the process takes in the
end over what it took after the first tenth of the time.

The exit code is 1 if a bound is exceeded.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from concurrent.futures import CancelledError

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, load_model, progress, two_cores
from placeit.core.errors import DeadlineError
from placeit.core.memory import Use, own_use
from placeit.devices import discover
from placeit.runtime.serving import Answer
from placeit.session import Session

_SECONDS, _QUICK, _ROWS = 1200.0, 5.0, 10
_MOST = Use(50e6, 0)


def run(args: Args, report: Report) -> None:
    seconds = _QUICK if args.quick else _SECONDS
    name = (args.models or ("inception_v3",))[0]
    choose, ended = random.Random(args.seed), Counter[str]()
    with Session(load_model(name), discover([f"CPU@{core}" for core in two_cores()]), cache=None) as session:
        session.profile(budget_s=2.0 if args.quick else 10.0)
        core = session.costs.core[:, 0]
        split = session.placement((np.cumsum(core) > core.sum() / 2).astype(np.int32))
        inputs = session.model.sample_inputs()
        with session.serve(split, requests=3, queue=8) as server:
            begin, submitted, waiting = time.perf_counter(), 0, deque[Answer]()
            first: Use | None = None
            for row in range(1, _ROWS + 1):
                while time.perf_counter() - begin < seconds * row / _ROWS:
                    submitted += 1
                    try:
                        waiting.append(server.submit(inputs, deadline=choose.choice([None, None, 1e-3])))
                    except DeadlineError:
                        ended["late"] += 1
                        continue
                    if choose.random() < 0.1:
                        waiting[-1].cancel()
                    if len(waiting) > 16:
                        ended[_outcome(waiting.popleft())] += 1
                now = own_use()
                first = first or now
                report.row(
                    seconds=time.perf_counter() - begin,
                    requests=submitted,
                    done=ended["done"],
                    cancelled=ended["cancelled"],
                    late=ended["late"],
                    failed=ended["failed"],
                    grown_mb=(now.bytes - first.bytes) / 1e6,
                    threads=now.threads - first.threads,
                )
                progress(f"{submitted} requests: {(now.bytes - first.bytes) / 1e6:.0f} MB over the first tenth")
            for answer in waiting:
                ended[_outcome(answer)] += 1
            busy = {device: taken / (time.perf_counter() - begin) for device, taken in server.busy.items()}
    assert first is not None
    report.row(**{f"busy_{device}": share for device, share in busy.items()})
    report.claim(f"{name}: requests that are not accounted for", submitted - ended.total(), "", at_most=0)
    report.claim(f"{name}: requests that failed", ended["failed"], "", at_most=0)
    report.claim(f"{name}: memory over that after a tenth", (now.bytes - first.bytes) / 1e6, "MB", at_most=_MOST.bytes / 1e6)
    report.claim(f"{name}: threads over those after a tenth", now.threads - first.threads, "", at_most=_MOST.threads)


def _outcome(answer: Answer) -> str:
    try:
        answer.result(60)
    except CancelledError:
        return "cancelled"
    except DeadlineError:
        return "late"
    except Exception:  # noqa: BLE001 (it is counted)
        return "failed"
    return "done"


if __name__ == "__main__":
    main("serving", run, models=MODELS, judge=True)
