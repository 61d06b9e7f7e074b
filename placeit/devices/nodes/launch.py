"""Run Ray's command line for nodes that listen on the loopback address only: ``python -m placeit.devices.nodes.launch``."""

from __future__ import annotations

import sys

from placeit.devices.nodes.joining import loopback_only

if __name__ == "__main__":
    from ray.scripts.scripts import main

    with loopback_only():
        sys.exit(main())  # type: ignore[no-untyped-call]
