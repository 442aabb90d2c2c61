"""Who may use the dashboard: host names, origins of requests, and the token.

Any web page that a user opens can send requests to any address, so a server on 127.0.0.1 has to
tell its own page from others. `Host` defeats names that are made to resolve to this machine (DNS
rebinding). `Origin` and `Sec-Fetch-Site`, which a page cannot forge, defeat requests from elsewhere.
"""

import hashlib
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from controlvae.errors import UserError

LOCAL = ("127.0.0.1", "localhost", "::1")
TOKEN_VARIABLE = "CONTROLVAE_DASHBOARD_TOKEN"
_MIN_TOKEN_LETTERS = 12
_WILDCARDS = ("0.0.0.0", "::")


class AccessError(Exception):
    """Refused request: a status code and one line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Access:
    """Rules of one server.

    Attributes:
        hosts: Host names that requests may address, in lower case.
        own_address: Accept the address at which a connection arrived, too.
        token: Token that every request must show, or None.
        cookie: Name of the cookie that holds the token's digest.
    """

    hosts: frozenset[str]
    own_address: bool = False
    token: str | None = None
    cookie: str = "controlvae"

    @property
    def cookie_value(self) -> str:
        """Digest of the token, so that the cookie does not hold the token itself."""
        return hashlib.sha256(f"controlvae {self.token}".encode()).hexdigest()

    def check_source(self, headers: Mapping[str, list[str]], address: str, is_page: bool) -> None:
        """Raise AccessError unless a request comes from this server's page or from no page.

        Args:
            headers: Headers of the request, in lower case.
            address: Address of this machine at which it arrived.
            is_page: The request is for the page itself, to which other sites may link.
        """
        hosts = headers.get("host", [])
        name = _host_name(hosts[0]) if len(hosts) == 1 else ""
        # A socket for both families shows an IPv4 address in IPv6 notation.
        is_own = self.own_address and name == address.lower().removeprefix("::ffff:")
        if not name or not (name in self.hosts or is_own):
            raise AccessError(
                403, "this host name is not served; add it with controlvae dashboard --allow-host"
            )
        for origin in headers.get("origin", []):
            if origin.partition("://")[2].lower() != hosts[0].lower():
                raise AccessError(403, "requests from other sites are refused")
        site = headers.get("sec-fetch-site", ["none"])[-1]
        if site in ("same-origin", "none"):
            return
        is_link = headers.get("sec-fetch-mode") == ["navigate"]
        if not (is_page and is_link and headers.get("sec-fetch-dest") == ["document"]):
            raise AccessError(403, "requests from other sites are refused")

    def check_token(self, headers: Mapping[str, list[str]]) -> None:
        """Raise AccessError unless a request shows the token, in its cookie or as a bearer."""
        if self.token is None:
            return
        for text in headers.get("authorization", []):
            kind, _, given = text.partition(" ")
            if kind.lower() == "bearer" and _equal(given.strip(), self.token):
                return
        if _equal(_read_cookie(headers, self.cookie), self.cookie_value):
            return
        raise AccessError(403, "open the link with the token that controlvae dashboard has printed")

    def exchange_token(self, query: str) -> tuple[str, str] | None:
        """Return the query without its token and a cookie, or None if it holds no token.

        Args:
            query: Query of the address of the page.

        Raises:
            AccessError: If the token is wrong.
        """
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=10)
        given = [value for name, value in pairs if name == "token"]
        if self.token is None or not given:
            return None
        if not _equal(given[-1], self.token):
            raise AccessError(403, "the token is wrong; controlvae dashboard has printed the link")
        rest = urlencode([pair for pair in pairs if pair[0] != "token"])
        cookie = f"{self.cookie}={self.cookie_value}; Path=/; HttpOnly; SameSite=Strict"
        return rest, cookie


def make_access(
    host: str, port: int, token: str | None = None, allowed: tuple[str, ...] = ()
) -> Access:
    """Return the rules of a server. Beyond this machine a token is required.

    Args:
        host: Interface to which the server is bound.
        port: Its port.
        token: Token of the user's choice, or None to draw one where one is required.
        allowed: Further host names.
    """
    if token is not None and (len(token) < _MIN_TOKEN_LETTERS or not _is_plain(token)):
        raise UserError(
            f"a token has {_MIN_TOKEN_LETTERS} or more letters and digits; leave out --token to "
            "get a random one"
        )
    names = {name.lower().strip("[]") for name in (*LOCAL, *allowed)}
    if host not in LOCAL:
        token = token or secrets.token_urlsafe(24)
        names |= {host.lower().strip("[]")} - set(_WILDCARDS)
    if host in _WILDCARDS:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return Access(frozenset(names), host not in LOCAL, token, f"controlvae-{port}")


def page_address(host: str, port: int, access: Access) -> str:
    """Return the link to the page, with the token if one is required.

    Args:
        host: Interface to which the server is bound.
        port: Its port.
        access: Rules of the server.
    """
    if host in _WILDCARDS:
        host = own_address(host) or socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    query = "" if access.token is None else f"?{urlencode({'token': access.token})}"
    return f"http://{name}:{port}/{query}"


def own_address(host: str = "0.0.0.0") -> str | None:
    """Return the address of this machine on its network, or None. Nothing is sent."""
    family, elsewhere = (
        (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port, or an empty text if it is malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not (port[0] == ":" and port[1:].isdecimal())):
            return ""
        try:
            return str(ipaddress.IPv6Address(name))
        except ValueError:
            return ""
    name, colon, port = host.partition(":")
    return name if not colon or port.isdecimal() else ""


def _read_cookie(headers: Mapping[str, list[str]], name: str) -> str:
    for text in headers.get("cookie", []):
        for pair in text.split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
    return ""


def _equal(given: str, wanted: str) -> bool:
    """Compare in a time that does not depend on how much of a token is right."""
    return secrets.compare_digest(given.encode(errors="replace"), wanted.encode())


def _is_plain(token: str) -> bool:
    return all(letter.isascii() and letter.isprintable() and letter != " " for letter in token)
