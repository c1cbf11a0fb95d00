"""Addresses the fleet listens on, and whether they are free."""

from __future__ import annotations

import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from config.settings import Settings

#: Each SeaweedFS server listens for gRPC on its port plus this.
GRPC_OFFSET: Final = 10_000


@dataclass(frozen=True, slots=True)
class Port:
    """A TCP port, what listens there, and the setting that moves it."""

    host: str
    number: int
    part: str
    setting: str

    def free(self) -> bool:
        """Whether a server could listen here now."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            # As servers do: connections of an earlier server that linger do not count.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.host, self.number))
                listener.listen(1)
            except OSError:
                return False
        return True


def split_bind(bind: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises:
        ValueError: it is neither.
    """
    host, colon, number = bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not number.isdecimal() or not 0 < int(number) < 1 << 16:
        raise ValueError(f"VOXFLEET_API_BIND must be host:port, e.g. 127.0.0.1:8000; it is {bind!r}")
    return host, int(number)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def local_host(host: str) -> str:
    """Return the address under which this machine reaches a server bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def api_port(settings: Settings) -> Port:
    """Return the port of the API."""
    host, number = split_bind(settings.api_bind)
    return Port("127.0.0.1" if host == "localhost" else host, number, "API", "VOXFLEET_API_BIND")


def valkey_port(settings: Settings) -> Port:
    """Return the port of the embedded Valkey."""
    return Port("127.0.0.1", settings.valkey_port, "Valkey", "VOXFLEET_VALKEY_PORT")


def seaweed_ports(settings: Settings) -> list[Port]:
    """Return the ports of the embedded SeaweedFS."""
    return [
        Port("127.0.0.1", number + offset, f"SeaweedFS {name}{' (gRPC)' if offset else ''}", setting)
        for number, name, setting in (
            (settings.s3_port, "S3", "VOXFLEET_S3_PORT"),
            (settings.weed_filer_port, "filer", "VOXFLEET_WEED_FILER_PORT"),
            (settings.weed_master_port, "master", "VOXFLEET_WEED_MASTER_PORT"),
            (settings.weed_volume_port, "volume", "VOXFLEET_WEED_VOLUME_PORT"),
            (settings.weed_admin_port, "admin", "VOXFLEET_WEED_ADMIN_PORT"),
        )
        for offset in (0, GRPC_OFFSET)
    ]


def clash(ports: list[Port]) -> str | None:
    """Return which two parts were given the same port, or None."""
    seen: dict[int, Port] = {}
    for port in ports:
        if (other := seen.setdefault(port.number, port)) is not port:
            return (
                f"port {port.number} is meant for both {other.part} ({other.setting}) "
                f"and {port.part} ({port.setting})"
            )
    return None


def first_taken(ports: list[Port], *, patience: float) -> Port | None:
    """Return a port that somebody else holds, or None; a fleet that is leaving has `patience` seconds."""
    end = time.monotonic() + patience
    while (taken := next((port for port in ports if not port.free()), None)) and time.monotonic() < end:
        time.sleep(0.1)
    return taken
