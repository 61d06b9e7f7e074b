"""Check the outputs of candidates: the largest error is recorded, and wrong outputs make a candidate fail."""

from __future__ import annotations

import logging

from placeit.measuring.check import OutputDifference
from placeit.measuring.measure import FAILURES
from placeit.optimizer.book import Book
from placeit.optimizer.deployed import Deployed
from placeit.workbench import Workbench

__all__ = ["OutputChecks"]

_LOG = logging.getLogger(__name__)


class OutputChecks:
    """The checks of a search's candidates against the whole model.

    Args:
        book: the candidates, in which errors are recorded.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._compared = False  # whether the reference outputs of two runtimes were compared

    def passed(self, name: str, deployed: Deployed, *, after: bool = False) -> bool:
        """Return whether a candidate runs and its outputs are right.

        Args:
            name: the candidate.
            deployed: its open executors.
            after: whether it has run in a race since the last check.
        """
        book, against = self._book, self._reference(name)
        for executor in deployed.checkable:
            try:
                found = against.reference.check(executor, after=after)
                if against is not book.session:
                    self._compare_runtimes(against)
            except FAILURES as error:
                book.fail(name, error)
                return False
            before = book.known[name].output_error
            worst = found if before is None else before.worse(found)
            book.update_facts(name, output_error=worst)
            if (why := worst.wrong(book.home(name).tolerance)) is not None:
                book.fail(name, why)
        return book.known[name].failed is None

    def _reference(self, name: str) -> Workbench:
        """Return the session whose outputs a candidate's are compared with: for plain ONNX Runtime, the one that runs it."""
        return self._book.home(name) if self._book.is_onnxruntime(name) else self._book.session

    def _compare_runtimes(self, other: Workbench) -> None:
        """Warn, once, if two runtimes disagree on the outputs of the whole model."""
        if self._compared:
            return
        self._compared = True
        session = self._book.session
        gap = OutputDifference.between(session.reference.output_check().expected, other.reference.output_check().expected)
        if gap.wrong(session.tolerance) is not None:
            difference = gap.fault or f"outputs differ by {gap.max_rel:.1e} of the largest"
            _LOG.warning(
                "OpenVINO and ONNX Runtime compute different outputs from %s: %s. Splits are compared with the runtime of "
                "their devices; ONNX Runtime also computes integers of more than 32 bits exactly.",
                session.model.path,
                difference,
            )
