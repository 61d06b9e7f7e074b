"""Serve a bundle on the nodes of a Ray cluster by Ray Serve; runs until Ctrl-C.

    pip install 'placeit[ray]' 'ray[serve]'
    python -m examples.ray_serve app.placeit --replicas 2 --cpus 2

Ray Serve starts replicas, and shares the requests among them. Each replica opens the bundle on the node where Ray has put it,
so the file and its devices have to exist there, the file under the same path. Ray reserves ``--cpus`` for each replica. Within
one, placeit serves several requests at once on the devices of the placement. Requests are JSON, ``{"x": [[...]]}``, at http://127.0.0.1:8000/.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request

import placeit


@serve.deployment
class Bundle:
    """A Ray Serve replica that answers requests with a bundle.

    Args:
        path: path of the bundle.
        rematch: devices that take the places of the bundle's devices; ``auto`` for other devices of the same kinds.
    """

    def __init__(self, path: str, rematch: str | None) -> None:
        self.application = placeit.Application.load(path, rematch=rematch)
        self.server = self.application.server()

    def check_health(self) -> None:
        """Have Ray replace this replica when nothing can run here any more."""
        if not self.server.able:
            raise RuntimeError("the devices of this replica are lost")

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer a request."""
        types = {spec.name: spec.dtype for spec in self.application.inputs}
        given = {name: np.array(value, types.get(name)) for name, value in (await request.json()).items()}
        outputs = await asyncio.wrap_future(self.server.submit(given, wait=False))
        return {name: value.tolist() for name, value in outputs.items()}

    def __del__(self) -> None:
        """Finish the requests that were accepted."""
        self.server.close()
        self.application.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--cpus", type=float, default=1)
    parser.add_argument("--rematch", choices=["auto"])
    args = parser.parse_args()
    deployment = Bundle.options(num_replicas=args.replicas, ray_actor_options={"num_cpus": args.cpus})
    serve.run(deployment.bind(args.bundle, args.rematch), blocking=True)


if __name__ == "__main__":
    main()
