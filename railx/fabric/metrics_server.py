"""A controller's counters over HTTP, for Prometheus."""

from __future__ import annotations

import http.server
import sys
from typing import Any

from railx.fabric.observer import Observer, ObserverError

__all__ = ["serve_metrics"]


def serve_metrics(address: str, token: str | None, port: int) -> int:
    """Serve the metrics over HTTP to this machine alone, until Ctrl-C.

    Each scrape asks the controller anew; while it does not answer, scrapes get 503.
    """
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

    def text() -> str:
        with Observer(address, token) as observer:
            return observer.metrics()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "allowed: /metrics\n")
                return
            try:
                self._answer(200, text())
            except ObserverError as error:
                self._answer(503, f"{error}\n")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Scrapes are not worth a line each."""

        def _answer(self, status: int, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    # A token or an address that is wrong is told now, and not to Prometheus.
    text()
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/metrics (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0
