"""What a process does whose cluster loses its head: ``python outlive_head.py FILE PID...``, with the processes of the head."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from placeit.backends.openvino.model import relu_chain
from placeit.core.errors import PlaceitError
from placeit.devices.host import allowed_cores
from placeit.devices.nodes import connection, local
from placeit.session import Session

FIRST, LAST = allowed_cores()[0], allowed_cores()[-1]


def main(file: str, *head: str) -> None:
    """Kill the head under load, and print what became of the requests of two servers."""
    cluster = local.running(Path(file))
    assert cluster is not None
    connection.connect(cluster.address, token=cluster.token)
    devices = [f"head/CPU@{LAST}", f"edge1/CPU@{FIRST}", f"CPU@{LAST}"]
    why, submitted = "", []
    with Session(relu_chain(1000, 6), devices, cache=None) as session:
        session.profile(budget_s=1.0)
        groups, values = len(session.grouping.groups), session.model.sample_inputs()
        alone, split = session.placement(np.full(groups, 1)), session.placement(np.arange(groups) * 2 // groups)
        with session.serve(alone) as fails, session.serve(split, on_loss="replace") as goes_on:
            for server in (fails, goes_on):
                server.submit(values).result(60)
            for pid in head:
                os.kill(int(pid), signal.SIGKILL)
            until = time.monotonic() + 120
            while not why and time.monotonic() < until:
                goes_on.submit(values).result(60)
                try:
                    submitted = [fails.submit(values) for _ in range(10)]
                    for future in submitted:
                        future.result(60)
                except PlaceitError as error:
                    why = str(error)
            for _ in range(100):
                goes_on.submit(values).result(60)
            unsettled = sum(not future.done() for future in submitted)
            replaced = [str(one) for one in goes_on.replacements]
            last = goes_on.replacements[-1].devices
    print(json.dumps({"why": why, "unsettled": unsettled, "replaced": replaced, "devices": last}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
