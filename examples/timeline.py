"""Draw a trace in the terminal, in a second: one row for each device and link, a letter for each segment and transfer.

placeit run model.onnx --placement placement.json --trace trace.json
python -m examples.timeline trace.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from string import ascii_letters
from typing import Any

_WIDTH = 76  # columns of the time axis
_MAX_CHARACTERS = 60  # characters of a name in the legend


def timeline(events: list[dict[str, Any]], width: int = _WIDTH) -> str:
    """Draw the events of a trace in the Chrome trace event format, as written by ``placeit run --trace``."""
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    end = max(span["ts"] + span["dur"] for span in spans)
    letters: dict[str, str] = {}
    rows = {tid: [" "] * width for tid in tracks}
    for span in spans:
        letter = letters.setdefault(span["name"], ascii_letters[len(letters) % len(ascii_letters)])
        first, last = (int(moment / end * width) for moment in (span["ts"], span["ts"] + span["dur"]))
        for column in range(first, max(first + 1, last)):
            rows[span["tid"]][min(column, width - 1)] = letter
    margin = max(map(len, tracks.values()))
    lines = [f"{tracks[tid]:{margin}} |{''.join(row)}|" for tid, row in rows.items()]
    lines.append(f"{'':{margin}} 0{f'{end / 1e3:.4g} ms':>{width + 1}}")
    lines += [f"{letter} {name[:_MAX_CHARACTERS]}" for name, letter in letters.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="file written by placeit run --trace")
    print(timeline(json.loads(parser.parse_args().trace.read_text(encoding="utf-8"))["traceEvents"]))


if __name__ == "__main__":
    main()
