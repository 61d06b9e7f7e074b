"""Write the table of kinds, places and features into docs/devices.md: ``python -m tests.conformance.page``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from placeit.testing.features import FEATURES
from tests.conformance.table import CELLS, KINDS, PLACES, cell

__all__ = ["PAGE", "as_page", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
_BEGIN, _END = "<!-- table of features -->", "<!-- end of the table -->"


def table() -> str:
    """Return the table as Markdown, with the reasons that it refers to by numbers."""
    reasons = {one.reason: number for number, one in reversed([*enumerate(_first_of_each(), 1)])}
    lines = [
        f"| kind | where | {' | '.join(FEATURES)} |",
        f"| --- | --- |{' --- |' * len(FEATURES)}",
    ]
    for kind in KINDS:
        for place in PLACES:
            works = "emulated" if kind.stands_in else "works"
            cells = (cell(kind, place, feature).reason for feature in FEATURES)
            texts = (f"[{reasons[reason]}]" if reason else works for reason in cells)
            lines.append(f"| {kind.label} | {place} | {' | '.join(texts)} |")
    lines.append("")
    lines += [f"- [{number}] The error says: *{reason}*." for reason, number in sorted(reasons.items(), key=lambda one: one[1])]
    stand_ins = "; ".join(f"{kind.label}: {kind.stands_in}" for kind in KINDS if kind.stands_in)
    lines += ["", f"*Emulated* cells have passed with a stand-in for the hardware. {stand_ins}."]
    lines += ["*Precision*: sessions compute in the requested precision; a precision that a device lacks is a one-line error."]
    lines += ["ONNX Runtime computes in the types of the model, so an f32 model in f32 only; an NPU computes in f16 only."]
    lines += ["Nodes with an NPU or an NVIDIA GPU have not been tested: the error says that the node of the tests has none."]
    return "\n".join(lines)


def _first_of_each() -> Iterator:
    seen = set[str]()
    for one in CELLS:
        if one.reason and one.reason not in seen:
            seen.add(one.reason)
            yield one


def as_page(text: str) -> str:
    """Return the page with the table as it is now."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(as_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
