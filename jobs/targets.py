"""Where a webhook may go: public addresses, and the networks that the operator allows besides.

Asked twice: when a job names its `webhook_url`, and again when the delivery connects, with the addresses
that it will use: a name may resolve to something else by then.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
#: Returns the addresses of a host name, as text, for a port; raises OSError where there are none.
Resolve = Callable[[str, int], Sequence[str]]

LONGEST_URL: Final = 2048
#: A name server that does not answer holds a native thread for many seconds; gevent has ten of them.
LOOKUPS_AT_ONCE: Final = 4
#: Ports where web servers are; others lead to services that misread HTTP.
PORTS: Final = frozenset({80, 443, 8080, 8443})

_LOOKUPS: Final = threading.BoundedSemaphore(LOOKUPS_AT_ONCE)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_UNRESOLVED: Final = "the host's name has no address now"
_PRINTABLE: Final = re.compile(r"[^\x00-\x20\x7f\\]+")
_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
#: A name whose last label is a number is read as an IPv4 address (https://url.spec.whatwg.org/#ends-in-a-number-checker).
_ENDS_IN_NUMBER: Final = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")

# What `is_global` calls global, or called so in some Python 3.11; see the IANA special-purpose registries,
# https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry.
_REFUSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # shared by carriers
        "168.63.129.16/32",  # Azure's host
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "::/96",  # IPv4-compatible
        "64:ff9b:1::/48",  # local NAT64: what lies behind it is the network's own affair
        "2001:20::/28",  # ORCHIDv2
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fec0::/10",  # site-local
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class TargetRefused(ValueError):
    """A webhook must not go there; the text says why, for the owner of the job."""


class TargetUnresolved(TargetRefused):
    """The host's name has no address now; it may have one later."""


def check_url(url: str, *, allowed: Iterable[IpNetwork], resolve: Resolve) -> list[IpAddress]:
    """Return every address that `url` leads to; all of them may be connected to.

    Public addresses need https and a usual port; inside the `allowed` networks http and any port will do.

    Args:
        resolve: asked for host names only.

    Raises:
        TargetUnresolved: its name has no address now.
        TargetRefused: the URL is malformed, or one of its addresses is neither public nor allowed.
    """
    parts, host, port = _parsed(url)
    addresses = _addresses(host, port, resolve)
    networks = tuple(allowed)
    if all(_inside(address, networks) for address in addresses):
        return addresses
    if not all(_inside(address, networks) or is_public(address) for address in addresses):
        raise TargetRefused("the host is, or resolves to, an address that is not public")
    if parts.scheme != "https":
        raise TargetRefused("the scheme must be https")
    if port not in PORTS:
        raise TargetRefused(f"the port must be one of {', '.join(map(str, sorted(PORTS)))}")
    return addresses


def lookup(name: str, port: int, *, seconds: float = 5.0) -> list[str]:
    """Return every address that the system's resolver knows for `name`, without zones; a `Resolve`.

    Thread-safe, also among greenlets. Of all callers in this process `LOOKUPS_AT_ONCE` are served at a time;
    a wait for one's turn counts.

    Raises:
        OSError: it has none; `TimeoutError` where no answer came within `seconds`.
    """
    deadline = time.monotonic() + seconds
    if not _LOOKUPS.acquire(timeout=seconds):
        raise TimeoutError(f"{name}: too many names are being looked up")
    answers: list[list[str] | OSError] = []

    def ask() -> None:
        try:
            answers.append(_asked(name, port))
        except OSError as error:
            answers.append(error)
        finally:
            _LOOKUPS.release()

    # A lookup cannot be cut short, only left alone.
    thread = threading.Thread(target=ask, name="lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        _LOOKUPS.release()
        raise OSError(f"{name}: no thread for its lookup") from error
    thread.join(max(0.0, deadline - time.monotonic()))
    if not answers:
        raise TimeoutError(f"{name}: no answer within {seconds:g} s")
    if isinstance(answer := answers[0], OSError):
        raise answer
    return answer


def is_public(address: IpAddress) -> bool:
    """Whether `address` is one of the public internet, as are the addresses that a tunnel in it leads to."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.sixtofour is not None:
            return is_public(address.sixtofour)
        if address.teredo is not None:
            return all(is_public(end) for end in address.teredo)
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_unspecified)
        and not _inside(address, _REFUSED)
    )


def _asked(name: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{name} is no host name: {error}") from error
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


def _parsed(url: str) -> tuple[SplitResult, str, int]:
    if len(url) > LONGEST_URL:
        raise TargetRefused(f"the URL is longer than {LONGEST_URL} characters")
    # `urlsplit` drops tabs and line ends, and browsers read a backslash as a slash.
    if not _PRINTABLE.fullmatch(url):
        raise TargetRefused("the URL holds a space, a control character or a backslash")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetRefused("the URL is malformed") from error
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefused("the scheme must be https")
    if "@" in parts.netloc:
        raise TargetRefused("the URL must not hold a user name or password")
    if "#" in url:
        raise TargetRefused("the URL must not have a fragment")
    if not (parts.path + parts.query).isascii():
        raise TargetRefused("characters beyond ASCII in the path or query must be percent-encoded")
    if not host:
        raise TargetRefused("the URL has no host")
    return parts, host, _DEFAULT_PORTS[parts.scheme] if port is None else port


def _addresses(host: str, port: int, resolve: Resolve) -> list[IpAddress]:
    if ":" in host:
        try:
            return [ipaddress.IPv6Address(_without_zone(host))]
        except ValueError as error:
            raise TargetRefused("the host is no valid IPv6 address") from error
    name = _ascii(host)
    try:
        # As the C library reads them: 127.1, 0x7f000001, 2130706433 and 0177.0.0.1 are addresses too.
        return [ipaddress.IPv4Address(socket.inet_aton(name))]
    except OSError:
        if _ENDS_IN_NUMBER.fullmatch(name):
            raise TargetRefused("the host is no valid IPv4 address") from None
    try:
        found = [ipaddress.ip_address(address) for address in resolve(name, port)]
    except (OSError, ValueError) as error:
        raise TargetUnresolved(_UNRESOLVED) from error
    if not found:
        raise TargetUnresolved(_UNRESOLVED)
    return found


def _without_zone(host: str) -> str:
    if "%" in host:
        raise TargetRefused("the host must not name a zone")
    return host


def _ascii(host: str) -> str:
    try:
        name = host.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError as error:
        raise TargetRefused("the host is no valid host name") from error
    if not _HOST_NAME.fullmatch(name):
        raise TargetRefused("the host is no valid host name")
    return name


def _inside(address: IpAddress, networks: Sequence[IpNetwork]) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any(address in network or (mapped is not None and mapped in network) for network in networks)
