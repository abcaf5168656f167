"""Numbers of a running deployment for Prometheus: its text format, served on loopback unless told otherwise.

`CohortStrategy(prometheus_port=9464)`, then http://127.0.0.1:9464/metrics. The page is made anew after every round and
holds no names of clients: who they are is in the state folder. There is no other page, and nothing can be sent to it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from fedcohort import __version__
from fedcohort.errors import StoreError
from fedcohort.types import Outcome, RoundResult

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)  # seconds of a reply
_HELP = {
    "build_info": ("gauge", "version of fedcohort"),
    "rounds_total": ("counter", "rounds that ended since this process began"),
    "rounds_abandoned_total": ("counter", "rounds with too few replies"),
    "asked_total": ("counter", "clients asked to train"),
    "outcomes_total": ("counter", "what became of those asked"),
    "sent_bytes_total": ("counter", "bytes of arrays sent to clients"),
    "received_bytes_total": ("counter", "bytes of arrays received from clients"),
    "reply_seconds": ("histogram", "from ask to reply, by the server's clock"),
    "round_seconds": ("summary", "from dispatch to close"),
    "round": ("gauge", "rounds done over all processes of this run"),
    "accuracy": ("gauge", "accuracy after the last round that measured it"),
    "score": ("gauge", "what the selector learned from in the last round"),
    "clients": ("gauge", "clients by state"),
    "never_used": ("gauge", "clients asked time and again and never used"),
    "last_round_timestamp_seconds": ("gauge", "when the last round ended; before that, when this process began"),
}


class RunMetrics:
    """Counts what a run does, and writes it down in Prometheus' text format.

    >>> print(RunMetrics().text().splitlines()[2])
    fedcohort_build_info{version="..."} 1
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.buckets = np.zeros(len(BUCKETS) + 1, np.int64)
        self.reply_seconds, self.seconds = 0.0, 0.0
        self.gauges: dict[str, float] = {"last_round_timestamp_seconds": time.time()}

    def add(self, result: RoundResult, row: Mapping[str, Any]) -> None:
        """A round has ended."""
        self.counts["rounds"] += 1
        self.counts["abandoned"] += int(row.get("abandoned", 0))
        self.counts["asked"] += int(result.clients.size)
        for outcome in Outcome:
            self.counts[outcome.name.lower()] += int((result.outcome == outcome).sum())
        seconds = np.asarray(result.duration)[result.outcome == Outcome.OK]
        self.buckets += np.bincount(np.searchsorted(BUCKETS, seconds), minlength=len(BUCKETS) + 1)
        self.reply_seconds += float(seconds.sum())
        self.seconds += float(row.get("seconds", 0.0))
        self.gauges |= {"round": result.index + 1.0, "last_round_timestamp_seconds": time.time()}
        accuracy = next((row[k] for k in ("server.accuracy", "evaluate.accuracy") if k in row), None)
        found = {"accuracy": accuracy, "score": row.get("score")}
        self.gauges |= {k: float(v) for k, v in found.items() if isinstance(v, int | float)}

    def text(self) -> str:
        """The page."""
        c = self.counts
        samples: dict[str, list[tuple[str, float]]] = {
            "build_info": [(f'{{version="{__version__}"}}', 1.0)],
            "rounds_total": [("", c["rounds"])],
            "rounds_abandoned_total": [("", c["abandoned"])],
            "asked_total": [("", c["asked"])],
            "outcomes_total": [(f'{{outcome="{o.name.lower()}"}}', c[o.name.lower()]) for o in Outcome],
            "sent_bytes_total": [("", c["sent"])],
            "received_bytes_total": [("", c["received"])],
            "reply_seconds": self._histogram(),
            "round_seconds": [("_sum", self.seconds), ("_count", c["rounds"])],
            "clients": [(f'{{state="{s}"}}', c[s]) for s in ("registered", "available", "silent", "refused")],
            **{name: [("", value)] for name, value in self.gauges.items()},
        }
        lines = []
        for name, (kind, about) in _HELP.items():
            if name in samples:
                lines += [f"# HELP fedcohort_{name} {about}", f"# TYPE fedcohort_{name} {kind}"]
                lines += [f"fedcohort_{name}{label} {value:.10g}" for label, value in samples[name]]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[tuple[str, float]]:
        up_to = np.cumsum(self.buckets)
        edges = [*(f"{b:g}" for b in BUCKETS), "+Inf"]
        found = [(f'_bucket{{le="{edge}"}}', float(n)) for edge, n in zip(edges, up_to, strict=True)]
        return [*found, ("_sum", self.reply_seconds), ("_count", float(up_to[-1]))]


class MetricsServer:
    """Serves one page of text from a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.page = b""
        served = self

        class Page(BaseHTTPRequestHandler):
            """GET /metrics, and nothing else."""

            def do_GET(self) -> None:
                """Answer with the page."""
                known = self.path.partition("?")[0] == "/metrics"
                body = served.page if known else b"only /metrics is here\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: what a visitor sends does not belong into the log."""

        Page.timeout = 10.0
        try:
            self._server = ThreadingHTTPServer((host, port), Page)
        except (OSError, OverflowError) as error:
            raise StoreError(
                f"prometheus_port = {port}",
                f"{host} cannot be listened on ({error})",
                "use another port, or 0 for none",
            ) from None
        self.port = int(self._server.server_address[1])
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True, name="fedcohort-metrics").start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
