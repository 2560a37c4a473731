"""Which servers a turn may name as its upstream: an allow-list, since this machine calls them.

Whoever may send a turn could else have this machine ask others in its place: a cloud's metadata
service, which hands out credentials to whoever asks from here, or a neighbour behind a firewall.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable

from hermes_tui_common.errors import ApiError

RESOLVE_S = 5.0
"""How long a name may take to be resolved."""

_URL = re.compile(r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[\w.~/-]*)?", re.A)
"""Nothing in which two readers of URLs could see two hosts: no user, no escapes, no other letters.
"""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254")
)
"""Metadata services that are not link-local: Alibaba, Azure, Oracle, Amazon."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class UpstreamHosts:
    """Loopback, and the hosts that the configuration names.

    Args:
        allowed: ``host`` or ``host:port``; an entry without a port allows every port. None allows
            every host: whoever names one may do all else here, too.
        param: the request's field that has the URL.
    """

    def __init__(self, allowed: Iterable[str] | None, param: str = "inf_base_url") -> None:
        self._any = allowed is None
        self._allowed = frozenset(entry.lower().rstrip(".") for entry in allowed or () if entry)
        self._param = param

    async def check(self, url: str) -> None:
        """Let a base URL pass.

        Raises: ApiError: 400: it may not be called, or is none.
        """
        try:
            await self._check(url)
        except ValueError as error:
            raise ApiError(
                400, f"{self._param} {error}.", param=self._param, code="upstream_not_allowed"
            ) from error

    async def _check(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise ValueError(
                "must be http:// or https://, a host, and perhaps a port and a plain path"
            )
        host = match[1].strip("[]").lower().rstrip(".")
        address = _literal(host)
        if address is not None:
            addresses = _meant(address)
            allowed = all(one.is_loopback for one in addresses)
        else:
            addresses = []
            allowed = host == "localhost"
        if not (self._any or allowed or self._is_listed(host, match[2] or "")):
            raise ValueError(
                "names a host that turns may not use; add it to services.inference_hosts"
            )
        if address is None and not allowed:
            addresses = await _resolved(host)
        if any(map(_is_forbidden, addresses)):
            raise ValueError("names a link-local or metadata address; those are never called")

    def _is_listed(self, host: str, port: str) -> bool:
        shown = f"[{host}]" if ":" in host else host
        return not self._allowed.isdisjoint((host, f"{shown}{port}"))


def _literal(host: str) -> _Address | None:
    """Return the address that a host is; None for a name.

    Raises: ValueError: a number in another form, such as 2130706433, 0x7f.1 or 0177.0.0.1.
    """
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        last = host.rpartition(".")[2]
        # What ends in a number is an address to some clients (whatwg.org, "ends in a number").
        if ":" in host or re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last):
            raise ValueError(
                "has an address that is not written in full, such as 127.0.0.1"
            ) from None
        return None


def _meant(address: _Address) -> list[_Address]:
    """Return an address and the IPv4 ones that are wrapped in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    wrapped: list[_Address | None] = [address.ipv4_mapped, address.sixtofour]
    wrapped += address.teredo or ()
    if address in _NAT64 or int(address) >> 32 == 0:  # the latter: ::127.0.0.1, which is obsolete
        wrapped.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    found = [one for one in wrapped if one is not None]
    if address.is_loopback or address.ipv4_mapped:
        return [address.ipv4_mapped or address]
    return [address, *found]


def _is_forbidden(address: _Address) -> bool:
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address in _METADATA
    )


async def _resolved(host: str) -> list[_Address]:
    """Return the addresses of a name; none when it has none: then nothing will be called."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            rows = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a TimeoutError is an OSError, too
        return []
    addresses = (ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows)
    return [meant for address in addresses for meant in _meant(address)]
