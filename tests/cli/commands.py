"""Running the `voxfleet` command as its users do."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

#: Each SeaweedFS port has a second one this much higher.
GRPC_OFFSET = 10_000


def clean(**settings: str) -> dict[str, str]:
    """Return this environment with no `VOXFLEET_*` variable but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VOXFLEET_")}
    return kept | settings


def voxfleet(
    *arguments: str, environ: dict[str, str], cwd: Path, given: bytes | None = None, seconds: float = 60
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; standard input is empty unless something is given."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", *arguments],
        input=given or b"",
        capture_output=True,
        check=False,
        env=environ,
        cwd=cwd,
        timeout=seconds,
    )


def free_ports(count: int) -> list[int]:
    """Return ports that are free, together with the ones `GRPC_OFFSET` above.

    All of them lie below the range from which the kernel takes ports for outgoing connections.
    """
    found: list[int] = []
    while len(found) < count:
        number = random.randrange(10_000, 22_000)
        with socket.socket() as low, socket.socket() as high, contextlib.suppress(OSError):
            low.bind(("127.0.0.1", number))
            high.bind(("127.0.0.1", number + GRPC_OFFSET))
            if number not in found:
                found.append(number)
    return found


def fleet_settings(folder: Path) -> dict[str, str]:
    """Return settings of a fleet of its own: free ports and a data folder inside `folder`."""
    api, valkey, s3, filer, master, volume, admin = free_ports(7)
    return {
        "VOXFLEET_DATA_DIR": str(folder / "fleet"),
        "VOXFLEET_API_BIND": f"127.0.0.1:{api}",
        "VOXFLEET_VALKEY_PORT": str(valkey),
        "VOXFLEET_S3_PORT": str(s3),
        "VOXFLEET_WEED_FILER_PORT": str(filer),
        "VOXFLEET_WEED_MASTER_PORT": str(master),
        "VOXFLEET_WEED_VOLUME_PORT": str(volume),
        "VOXFLEET_WEED_ADMIN_PORT": str(admin),
    }
