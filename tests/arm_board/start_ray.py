"""Ray's command line on an emulated board: ``python3 start_ray.py PYTHON -m MODULE ARGUMENTS``.

Two of Ray's deadlines for the start of a node are fixed, and emulation takes longer: 30 s until the raylet is registered, and
less until its agents have written their ports into files that the raylet waits for. Here a slower clock measures the first, and
the ports are chosen, and written, before the raylet starts.
"""

from __future__ import annotations

import runpy
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ray._private import services

_SLOWER = 30
_PORTS = {
    "metrics_agent_port": "dashboard-agent-grpc-port",
    "runtime_env_agent_port": "runtime-env-agent-port",
    "metrics_export_port": "metrics-export-port",
    "dashboard_agent_listen_port": "dashboard-agent-listen-port",
}

_monotonic, _start = time.monotonic, services.start_raylet


def start_raylet(*given: Any, **named: Any) -> Any:
    """Write the ports of a raylet's agents, then start it. Ray gives its node's id and the session's folder by position."""
    for name in _PORTS:
        Path(given[11], f"{name}_{given[2]}").write_text(str(named[name]))
    return _start(*given, **named)


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


if __name__ == "__main__":
    time.monotonic = lambda: _monotonic() / _SLOWER
    services.start_raylet = start_raylet
    sys.argv = [*sys.argv[3:], *(f"--{option}={port}" for option, port in zip(_PORTS.values(), free_ports(4), strict=True))]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
