"""What the demo shows while it runs: steps that stay, and one line of progress that changes."""

import sys
import time
from typing import TextIO

EVERY = 5.0  # seconds between two lines of progress where the output is not a terminal


class Screen:
    """Prints steps with the seconds since the start. Progress is redrawn in a terminal and rare elsewhere."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self.out = out
        self.began = time.monotonic()
        self.live = out.isatty()
        self.open_line = False
        self.last = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.began

    def step(self, text: str) -> None:
        """Say what happens now."""
        self.write(f"{self.clear()}[{self.seconds:5.1f} s] {text}\n")

    def progress(self, text: str) -> None:
        """Say how far it is."""
        if self.live:
            self.write(f"\r\033[K[{self.seconds:5.1f} s]   {text}")
            self.open_line = True
        elif self.seconds - self.last >= EVERY:
            self.last = self.seconds
            self.write(f"[{self.seconds:5.1f} s]   {text}\n")

    def text(self, text: str) -> None:
        """Print as it is."""
        self.write(f"{self.clear()}{text}\n")

    def clear(self) -> str:
        """What removes the line of progress, if one is there."""
        was_open, self.open_line = self.open_line, False
        return "\r\033[K" if was_open else ""

    def write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
