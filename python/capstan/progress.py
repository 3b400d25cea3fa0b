"""Says what a long piece of work is doing: a bar on a terminal, a line now and then elsewhere, nothing if it is short."""

import sys
import time

PATIENCE_S = 2.0  # work that ends sooner is not mentioned
REDRAW_S, LINE_S = 0.1, 10.0
_BAR = 24


class Progress:
    """One rank of a job should show it. close() leaves one line behind if anything was shown."""

    def __init__(self, title, shown=True):
        self._title, self._shown = title, shown
        self._start, self._last, self._text = time.monotonic(), None, ""

    def show(self, text, done=0, total=0):
        """`done` of `total` make the bar; without a total there is none yet."""
        self._text = text
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        since = now - (self._start if self._last is None else self._last)
        if not self._shown or since < (PATIENCE_S if self._last is None else REDRAW_S if terminal else LINE_S):
            return
        self._last = now
        filled = _BAR * done // total if total else 0
        bar = f" [{'#' * filled}{'-' * (_BAR - filled)}]" if terminal and total else ""
        self._write(f"{self._title}:{bar} {text}, {now - self._start:.0f} s", terminal)

    def close(self):
        if self._last is not None:
            self._write(f"{self._title}: {self._text}, {time.monotonic() - self._start:.0f} s", sys.stderr.isatty(), "\n")
            self._last = None

    @staticmethod
    def _write(text, terminal, end=""):
        sys.stderr.write(f"\r\x1b[K{text}{end}" if terminal else f"{text}\n")
        sys.stderr.flush()
