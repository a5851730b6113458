"""What a service counts, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from meshwright.service.desk import Desk
from meshwright.service.jobs import Jobs

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Meters:
    """Counters and gauges of one service."""

    def __init__(self, desk: Desk, jobs: Jobs) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("meshwright_requests", "Requests answered.", ["verb", "status"], registry=registry)
        self._seconds = Histogram(
            "meshwright_request_seconds", "From a request to its answer.", ["verb"], buckets=SECONDS, registry=registry
        )
        self._repeated = Counter(
            "meshwright_repeated", "Answers given again without a worker.", ["verb"], registry=registry
        )
        lanes = desk.lanes
        for name, text in (("waiting", "Requests that wait for a worker."), ("busy", "Workers that answer.")):
            gauge = Gauge(f"meshwright_{name}", text, ["lane"], registry=registry)
            for lane, workers in lanes.items():
                gauge.labels(lane).set_function(lambda workers=workers, name=name: getattr(workers, name))  # type: ignore[misc]
        lost = Gauge(
            "meshwright_workers_started", "Workers started since the service was.", ["lane"], registry=registry
        )
        for lane, workers in lanes.items():
            lost.labels(lane).set_function(lambda workers=workers: workers.started)  # type: ignore[misc]
        open_jobs = Gauge("meshwright_jobs_open", "Jobs that wait or run.", registry=registry)
        open_jobs.set_function(lambda: jobs.queue.open_jobs())

    def answered(self, verb: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(verb, str(status)).inc()
        self._seconds.labels(verb).observe(seconds)

    def repeated(self, verb: str) -> None:
        """Count an answer that was given before."""
        self._repeated.labels(verb).inc()

    def text(self) -> tuple[bytes, str]:
        """All of it, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
