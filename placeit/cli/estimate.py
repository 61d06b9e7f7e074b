"""``placeit estimate``: predict what a model takes on devices, without running it."""

from __future__ import annotations

from functools import partial

from placeit.cli.options import SessionOptions
from placeit.cli.terminal import Output, Terminal
from placeit.report import costs_as_text, text

__all__ = ["EXAMPLES", "estimate"]

EXAMPLES = """\b
Examples:
  placeit estimate model.onnx --devices CPU@0,CPU@1
  placeit estimate bert.onnx --input-shape input_ids:1,128 --devices CPU,GPU.0
  placeit estimate model.onnx --json | jq .best
"""


def estimate(*, options: SessionOptions, terminal: Terminal) -> Output:  # noqa: ARG001 (every command takes one)
    """Predict what a model takes, from other models.

    Times of ops in the models that were profiled on these devices predict what this model takes on each of them, what memory it
    needs, and whether a split would be faster. The model is not run. The error of such predictions is found by predicting each
    of the other models from the rest.
    """
    with options.session() as session:
        found = session.estimate()
    answer = f"{found.best.name}: {text.seconds(found.best.seconds)} (predicted)"
    return Output(found.to_dict(), partial(costs_as_text.estimate, found=found), answer=answer)
