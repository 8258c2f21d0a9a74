"""The health port of a worker: answers on loopback whether the supervisor lives and its processes serve."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from evenflow.errors import ConfigError, EvenflowError

log = logging.getLogger("evenflow.supervisor")

Report = Callable[[], dict[str, Any]]
Metrics = Callable[[], bytes]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.contextmanager
def serve_health(port: int | None, report: Report, metrics: Metrics | None = None) -> Iterator[None]:
    """Within the block: `/healthz`, `/readyz` and `/metrics` on 127.0.0.1. A report whose `ready` is false answers 503 at
    /readyz, and metrics that cannot be had 503 at /metrics."""
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(report, metrics))
    except OSError as error:
        raise ConfigError(f"--health-port {port}: {error.strerror}; choose another port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="evenflow-health", daemon=True)
    thread.start()
    log.info("Health on http://127.0.0.1:%d/healthz", server.server_address[1])
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(report: Report, metrics: Metrics | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and metrics is not None:
                self._answer_metrics(metrics)
            elif path not in ("/healthz", "/readyz"):
                self._answer(404, {"error": "expected /healthz, /readyz or /metrics"})
            else:
                said = report()
                is_well = said["alive"] if path == "/healthz" else said["ready"]
                self._answer(200 if is_well else 503, said)

        def _answer_metrics(self, metrics: Metrics) -> None:
            try:
                text = metrics()
            except EvenflowError as error:
                self._answer(503, {"error": str(error)})
            else:
                self._send(200, METRICS_TYPE, text)

        def _answer(self, status: int, said: dict[str, Any]) -> None:
            self._send(status, "application/json", json.dumps(said).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds: not worth a line each."""

    return Handler
