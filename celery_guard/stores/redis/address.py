"""Where the store is: URLs of all kinds become clients.

===================================================  ======================================================
``redis://[user:password@]host:port/db``             TCP
``rediss://...``                                     TLS; certificate and host name are checked
``unix:///path/to.sock?db=0``, ``redis+socket://``   Unix domain socket
``sentinel://host:port;host:port/SERVICE?db=0``      the master of a service, as Sentinel says
===================================================  ======================================================

With Sentinel, ``user:password@`` and ``ssl=true`` are for the master, ``sentinel_username``,
``sentinel_password`` and ``sentinel_ssl`` in the query for the sentinels themselves.

The query takes what redis-py takes (``socket_timeout``, ``socket_connect_timeout``, ``max_connections``,
``ssl_ca_certs``, ...). Both timeouts are 5 s unless it says otherwise.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.retry import Retry
from redis.sentinel import Sentinel

from ...core.errors import StoreConfigurationError

SCHEMES = ("redis", "rediss", "unix", "redis+socket", "sentinel")
TIMEOUT = 5.0
_SENTINEL_PORT = 26379
_SECRETS = frozenset({"password", "sentinel_password", "ssl_password"})


def masked(url: str) -> str:
    """Return ``url`` for logs and errors, without its passwords."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = user.partition(":")[0] + ":***"
    query = "&".join(
        f"{name}=***" if name in _SECRETS else f"{name}={value}"
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    )
    return f"{parts.scheme}://{user}{at}{host}{parts.path}" + (f"?{query}" if query else "")


def client(url: str, options: dict[str, Any]) -> Any:
    """Return a client with a pool of its own; nothing is sent yet. ``options`` are redis-py's, and win over
    the defaults, not over the URL. Raises :class:`~celery_guard.core.errors.StoreConfigurationError`."""
    try:
        if urlsplit(url).scheme == "sentinel":
            return _by_sentinel(url, options)
        return _direct(url, options)
    except (TypeError, ValueError) as exc:
        message = f"guard_store {masked(url)} is not a usable address: {exc}"
        raise StoreConfigurationError(message) from exc


def _defaults(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "socket_timeout": TIMEOUT,
        # The store tries again by itself, and only what may be repeated.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        # A lone surrogate in somebody's payload is stored as it is; `codec.text` reads it back.
        "encoding_errors": "surrogatepass",
        **options,
    }


def _tcp(options: dict[str, Any]) -> dict[str, Any]:
    return {"socket_connect_timeout": TIMEOUT, "socket_keepalive": True} | _defaults(options)


def _direct(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"its scheme is {parts.scheme!r}; known: {', '.join(SCHEMES)}")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    scheme = parts.scheme
    if scheme == "redis+socket":  # as Celery writes it
        scheme = "unix"
        if "virtual_host" in query:
            query.setdefault("db", query.pop("virtual_host"))
    given = _defaults(options) if scheme == "unix" else _tcp(options)
    if scheme == "rediss":
        given = _verified(query) | given
    pool = redis.ConnectionPool.from_url(
        f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}",
        **given,
    )
    # Not connected: an option that redis-py does not know is found here, not in the first task.
    make: Any = pool.connection_class
    make(**pool.connection_kwargs)
    return redis.Redis(connection_pool=pool)


def _verified(query: dict[str, str]) -> dict[str, Any]:
    """TLS that is checked unless the URL says otherwise; ``CERT_NONE`` as Celery spells it, too."""
    if "ssl_cert_reqs" in query:
        query["ssl_cert_reqs"] = query["ssl_cert_reqs"].lower().removeprefix("cert_")
    if query.get("ssl_cert_reqs", "required") == "none":
        return {"ssl_check_hostname": False}
    # redis-py reads this one from a URL since version 6 only
    given = query.pop("ssl_check_hostname", "true")
    return {"ssl_check_hostname": _true(given)}


def _by_sentinel(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    service = unquote(parts.path.strip("/"))
    credentials, _, places = parts.netloc.rpartition("@")
    sentinels = [_place(place) for place in re.split("[;,]", places) if place]
    if not service or not sentinels:
        raise ValueError("it must be sentinel://host:port;host:port/SERVICE?db=0")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    theirs = _tcp({})
    for name in ("username", "password"):
        if f"sentinel_{name}" in query:
            theirs[name] = query.pop(f"sentinel_{name}")
    if _true(query.pop("sentinel_ssl", "false")):
        theirs["ssl"] = True
    ours = _tcp(options)
    if _true(query.pop("ssl", "false")):
        ours |= {"ssl": True} | _verified(query)
    for name, value in query.items():
        parser: Any = URL_QUERY_ARGUMENT_PARSERS.get(name, str)
        ours[name] = parser(value)
    user, _, password = credentials.partition(":")
    if user:
        ours["username"] = unquote(user)
    if password:
        ours["password"] = unquote(password)
    for name in ("socket_timeout", "socket_connect_timeout"):
        theirs[name] = ours[name]
    make: Any = Sentinel
    return make(sentinels, sentinel_kwargs=theirs).master_for(service, **ours)


def _place(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"{text!r} is not host:port")
    return parts.hostname, parts.port or _SENTINEL_PORT


def _true(text: str) -> bool:
    return text.lower() in ("1", "true", "yes", "on")
