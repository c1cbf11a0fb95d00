"""Webhooks reach public addresses and allowed networks, and nothing else."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from jobs.targets import TargetRefused, TargetUnresolved, check_url, is_public

NAMES = {
    "public.example": ["93.184.216.34", "2606:2800:220:1::1"],
    "xn--bcher-kva.example": ["93.184.216.34"],
    "mixed.example": ["93.184.216.34", "10.0.0.1"],
    "private.example": ["10.0.0.1"],
    "localhost": ["127.0.0.1"],
    "nat64.example": ["64:ff9b::5db8:d822"],
    "empty.example": [],
}


def resolve(host: str, port: int) -> Sequence[str]:
    """Answer as a name server would."""
    if host not in NAMES:
        raise OSError("no such host")
    return NAMES[host]


def check(url: str, *allowed: str) -> list[str]:
    """Return the addresses as text."""
    networks = [ipaddress.ip_network(network) for network in allowed]
    return [str(address) for address in check_url(url, allowed=networks, resolve=resolve)]


@pytest.mark.parametrize(
    ("url", "first"),
    [
        ("https://public.example/hook?x=1", "93.184.216.34"),
        ("HTTPS://PUBLIC.example:8443", "93.184.216.34"),
        ("https://public.example.:443/", "93.184.216.34"),
        ("https://bücher.example/", "93.184.216.34"),
        ("https://8.8.8.8/", "8.8.8.8"),
        ("https://134744072/", "8.8.8.8"),
        ("https://[2606:4700::1111]/", "2606:4700::1111"),
        ("https://[::ffff:8.8.8.8]/", "::ffff:808:808"),
        ("https://nat64.example/", "64:ff9b::5db8:d822"),
    ],
)
def test_public_targets_are_allowed(url: str, first: str) -> None:
    assert check(url)[0] in (first, "::ffff:8.8.8.8")


@pytest.mark.parametrize(
    "host",
    [
        # As the C library reads an IPv4 address.
        "127.0.0.1", "127.1", "0177.0.0.1", "0x7f000001", "0x7f.1", "2130706433", "0", "017700000001",
        "127.0.0.1.", "１２７.０.０.１", "127。0。0。1", "1.2.3.4.5", "0x", "4294967296",
        # Special-purpose networks.
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "169.254.169.254", "172.16.0.1", "192.0.0.8", "192.0.0.9",
        "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        # IPv6, and IPv4 inside it.
        "[::]", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::808:808]", "[2002:7f00:1::]",
        "[::ffff:0:127.0.0.1]", "[2002:a9fe:a9fe::1]",
        "[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "[2001:db8::1]", "[2001:20::1]", "[3fff::1]", "[5f00::1]",
        "[fc00::1]", "[fd00:ec2::254]", "[fe80::1]", "[fe80::1%25eth0]", "[fec0::1]", "[ff02::1]", "[100::1]",
        # Names.
        "localhost", "LOCALHOST", "private.example", "mixed.example", "empty.example", "nowhere.example",
    ],
)  # fmt: skip
def test_everything_else_is_refused(host: str) -> None:
    with pytest.raises(TargetRefused):
        check(f"https://{host}/hook")


@pytest.mark.parametrize(
    "url",
    [
        "", "hook", "//public.example/", "ftp://public.example/", "file:///etc/passwd", "gopher://public.example/",
        "javascript:alert(1)", "https://", "https:///path", "https://:443/", "http://public.example/",
        "https://user@public.example/", "https://user:pass@public.example/", "https://@public.example/",
        "https://public.example@127.0.0.1/", "https://127.0.0.1\\@public.example/", "https://public.example/#f",
        "https://public.example/#", "https://public.example:22/", "https://public.example:0/",
        "https://public.example:99999/", "https://public.example:x/", "https://public.example/\n", " https://public.example/",
        "https://public.example/a b", "https://public.exa\tmple/", "https://public.example/\0", "https://public.example/é",
        "https://%70ublic.example/", "https://pub_lic!.example/", "https://[::1/", "https://[x]/", "https://a..b/",
        f"https://{'a' * 64}.example/", "https://-/", "https://.../", "https://public.example/" + "x" * 2048,
        "https://\ud800.example/",
    ],
)  # fmt: skip
def test_odd_urls_are_refused(url: str) -> None:
    with pytest.raises(TargetRefused):
        check(url)


def test_inside_an_allowed_network_http_and_any_port_will_do() -> None:
    assert check("http://127.0.0.1:9999/", "127.0.0.0/8") == ["127.0.0.1"]
    assert check("http://private.example:9999/", "10.0.0.0/8") == ["10.0.0.1"]
    assert check("http://[::ffff:10.0.0.1]:9999/", "10.0.0.0/8")
    assert check("http://[::1]:9999/", "::1/128") == ["::1"]


def test_one_address_outside_spoils_the_allowed_ones() -> None:
    assert check("https://mixed.example/", "10.0.0.0/8") == NAMES["mixed.example"]
    with pytest.raises(TargetRefused, match="https"):
        check("http://mixed.example/", "10.0.0.0/8")
    with pytest.raises(TargetRefused, match="port"):
        check("https://mixed.example:9999/", "10.0.0.0/8")
    with pytest.raises(TargetRefused, match="not public"):
        check("https://mixed.example/", "10.9.0.0/16")


@pytest.mark.parametrize("host", ["nowhere.example", "empty.example"])
def test_a_name_without_an_address_may_have_one_later(host: str) -> None:
    with pytest.raises(TargetUnresolved, match="no address now"):
        check(f"https://{host}/")


def test_an_address_that_is_not_public_will_not_become_so() -> None:
    with pytest.raises(TargetRefused) as refused:
        check("https://private.example/")
    assert not isinstance(refused.value, TargetUnresolved)


def test_a_reason_does_not_tell_what_a_name_resolves_to() -> None:
    with pytest.raises(TargetRefused) as refused:
        check("https://private.example/")
    assert "10.0.0.1" not in str(refused.value)


def test_every_special_purpose_network_is_not_public() -> None:
    for network in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "240.0.0.0/4",
        "fc00::/7",
        "fe80::/10",
        "ff00::/8",
        "2001::/32",
    ):
        block = ipaddress.ip_network(network)
        assert not is_public(block[1])
        assert not is_public(block[-2])
