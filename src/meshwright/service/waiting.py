"""What a browser is shown until the first answer is there, painted before anything large is loaded."""

from __future__ import annotations

import html
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from meshwright.errors import MeshwrightError

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""What a request to the page may call this machine."""
TOLD_WITHIN_S = 1.0
"""How long a page that waits is given to ask once more, where there is no answer."""
DRAWN_WITHIN_S = 1.5
"""How long a browser is left the processors to draw what it is shown."""
NOT_YET = 202
"""A browser does not complain of it, and the page asks again."""
MOST_ASKED = 1 << 20
"""Bytes of a request that are read."""
TEXT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline';
style-src 'unsafe-inline'; connect-src 'self'; img-src data:">
<title>meshwright</title><link rel="icon" href="data:,"><style>
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 0; padding: 24px; background: light-dark(#f6f7f9, #15181c); color: light-dark(#1c2430, #e6e9ee); }
h1 { font-size: 18px; margin: 0 0 16px; }
p { margin: 0; padding: 16px 20px; border-radius: 8px; background: light-dark(#fff, #1e2227); white-space: pre-wrap; }
</style></head><body><main><h1>meshwright</h1><p role="status">QUESTION</p></main><script>
(async () => {
  const said = document.querySelector("p");
  for (let missed = 0; missed < 20; ) {
    await new Promise((done) => setTimeout(done, 50));
    try {
      const answer = await fetch("waiting");
      if (answer.status === 204) return location.reload();
      const problem = await answer.text();
      if (problem) { said.textContent = problem; return; }
      missed = 0;
    } catch { missed += 1; }
  }
  said.textContent = "There is no answer; the terminal says why.";
})();
</script></body></html>
"""


def question_page(question: str) -> str:
    """A page that waits for the answer to a question, and then loads itself anew.

    Args:
        question: the question in words.
    """
    return TEXT.replace("QUESTION", html.escape(question))


@contextmanager
def waiting_page(listener: socket.socket, key: str, shown: str) -> Iterator[Event]:
    """Answer browsers on a socket while the body works out what is to be shown; the socket stays open.

    Args:
        listener: bound, listening.
        key: the path that the page lies below.
        shown: the page, in HTML. What it asks meanwhile is answered with `NOT_YET`, to be asked again.

    Yields:
        What is set once the page has been drawn, and asks for more.
    """
    state = _State(key, shown)
    server = ThreadingHTTPServer(listener.getsockname()[:2], _handler(state), bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state.drawn
    except MeshwrightError as error:
        state.problem = error.render()
        if state.asked.is_set():
            state.shown_problem.wait(TOLD_WITHIN_S)
        raise
    finally:
        server.shutdown()
        thread.join()


class _State:
    def __init__(self, key: str, text: str) -> None:
        self.key, self.text, self.problem = key, text, ""
        self.asked, self.drawn, self.shown_problem = Event(), Event(), Event()


def _handler(state: _State) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            shown = {f"/{state.key}/": state.text, f"/{state.key}/waiting": state.problem}
            text = shown.get(self.path.partition("?")[0])
            if text is None or self.headers.get("host", "").rsplit(":", 1)[0] not in OWN_NAMES:
                self.send_error(404)
                return
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8" if text is state.text else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)
            state.asked.set()
            if text and text is state.problem:
                state.shown_problem.set()

        def do_POST(self) -> None:
            self.rfile.read(min(int(self.headers.get("content-length") or 0), MOST_ASKED))
            known = self.path.startswith(f"/{state.key}/")
            if not known or self.headers.get("host", "").rsplit(":", 1)[0] not in OWN_NAMES:
                self.send_error(404)
                return
            state.drawn.set()
            self.send_response(NOT_YET)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is logged: the terminal is the user's."""

    return Handler
