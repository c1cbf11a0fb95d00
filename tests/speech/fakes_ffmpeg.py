"""Scripts that stand in for ffmpeg and misbehave as it, or its machine, can."""

from __future__ import annotations

import sys
from pathlib import Path

#: Every one of them runs the real program for what it does not spoil.
_HEAD = """#!{python}
import os, signal, subprocess, sys, time
real, arguments = {real!r}, sys.argv[1:]
encodes = "libmp3lame" in arguments
def go_on():
    os.execv(real, [real, *arguments])
"""

FAKES = {
    "noisy": """
if encodes:
    sys.stderr.write("noise " * 175_000)
    sys.stderr.flush()
go_on()
""",
    "stubborn": """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
""",
    "stubborn_family": """
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
""",
    "endless": """
if not encodes:
    go_on()
sys.stdin.buffer.read()
time.sleep(600)
""",
    "half": """
if not encodes:
    go_on()
at = next(a for a in arguments if a.startswith("file:"))
subprocess.run([real, *arguments], stdin=sys.stdin, check=True)
path = at.removeprefix("file:")
os.truncate(path, os.path.getsize(path) // 2)
""",
    "early": """
if not encodes:
    go_on()
sys.stdin.buffer.read(10)
""",
    "failing": """
sys.stderr.write("it will not do")
sys.exit(1)
""",
    "full": """
if not encodes:
    go_on()
sys.stdin.buffer.read(100_000)
sys.stderr.write("av_interleaved_write_frame(): No space left on device")
sys.exit(228)
""",
    "limited": """
import resource
if encodes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
go_on()
""",
    "limited_quietly": """
import resource
if encodes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
go_on()
""",
    "no_soxr": """
if any("soxr" in a for a in arguments):
    sys.stderr.write("Requested resampling engine is unavailable")
    sys.exit(1)
go_on()
""",
}


def fake_ffmpeg(name: str, folder: Path, real: str) -> str:
    """Write the fake `name` into `folder` and return its path."""
    script = folder / f"ffmpeg-{name}"
    script.write_text(_HEAD.format(python=sys.executable, real=real) + FAKES[name], encoding="utf-8")
    script.chmod(0o755)
    return str(script)
