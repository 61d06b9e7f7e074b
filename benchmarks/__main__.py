"""Run every benchmark, one after the other, each in its own process: ``python -m benchmarks [--quick] [--json] [--seed N]``.

``--json`` prints one JSON object, ``{"benchmarks": [...]}``, with the ``--json`` output of each benchmark.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

from benchmarks._harness import parser, show


def main() -> int:
    """Run all benchmarks. The exit code says whether each ran to its end."""
    options = parser("python -m benchmarks", __doc__).parse_args()
    here = Path(__file__).parent
    names = [
        prefix + found.name
        for prefix, folder in (("", here), ("papers.", here / "papers"))
        for found in pkgutil.iter_modules([str(folder)])
        if found.name[0] != "_" and found.name not in ("papers", "placebench")  # makes a set of problems
    ]
    arguments = ["--json", "--seed", str(options.seed), *(["--quick"] if options.quick else [])]
    results, failed = [], []
    for name in names:
        print(f"benchmarks.{name} ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
        if done.returncode:
            failed.append(name)
        if not done.stdout:
            continue
        results.append(json.loads(done.stdout))
        if not options.json:
            show(results[-1])
    if options.json:
        print(json.dumps({"benchmarks": results}))
    for name in failed:
        print(f"benchmarks.{name} failed; its error, or the claim that does not hold, is above.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
