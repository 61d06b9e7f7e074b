"""Numbers of requests by the names of Triton's metrics, for dashboards that were made for Triton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import UnknownMetricFamily

from placeit.serve.versions import Models

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["TritonMetrics"]

_COUNTS: Final = {
    "nv_inference_request_success": ("Requests that succeeded.", "success"),
    "nv_inference_request_failure": ("Requests that failed or were refused.", "fail"),
    "nv_inference_count": ("Requests that were run.", "success"),
}
_TIMES: Final = {
    "nv_inference_request_duration_us": ("Microseconds from the arrival of requests to their answers.", "success"),
    "nv_inference_queue_duration_us": ("Microseconds that requests waited.", "queue"),
    "nv_inference_compute_input_duration_us": ("Microseconds in which inputs were read.", "compute_input"),
    "nv_inference_compute_infer_duration_us": ("Microseconds that the model ran.", "compute_infer"),
    "nv_inference_compute_output_duration_us": ("Microseconds in which outputs were written.", "compute_output"),
}


class TritonMetrics:
    """Collector for prometheus-client. Its metrics have no type, since Triton's counters lack the suffix ``_total``.

    Args:
        models: the models that are served.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        models = {(model.name, model.version): model for model in self._models.running}
        stats = {by: model.statistics() for by, model in models.items()}
        for names, field, share in ((_COUNTS, "count", 1.0), (_TIMES, "ns", 1e-3)):
            for name, (about, what) in names.items():
                yield _family(name, about, {by: one["inference_stats"][what][field] * share for by, one in stats.items()})
        runs = {by: one["execution_count"] for by, one in stats.items()}
        yield _family("nv_inference_exec_count", "Runs of the model.", runs)
        waiting = {by: model.counts.stats().waiting for by, model in models.items()}
        yield _family("nv_inference_pending_request_count", "Requests that wait.", waiting)


def _family(name: str, about: str, values: dict[tuple[str, str], Any]) -> Metric:
    family = UnknownMetricFamily(name, about, labels=["model", "version"])
    for by, value in values.items():
        family.add_metric(by, value)
    return family
