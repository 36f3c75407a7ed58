"""What one process of an application needs to guard: its store, its heartbeat, its way to send messages.

Made on first use in each process, never carried over a fork: sockets and threads of the parent are not the
child's.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from ..core.contract import Dispatch, Store
from ..core.errors import StoreConfigurationError
from ..core.heartbeat import Heartbeat
from .envelope import Envelope, send

logger = logging.getLogger("celery_guard")

_MEMORY: WeakKeyDictionary[Any, Store] = WeakKeyDictionary()

#: URL scheme -> module and class; each imports its driver only when it is chosen
_STORES = {
    "redis": ("celery_guard.stores.redis", "redis"),
    "rediss": ("celery_guard.stores.redis", "redis"),
    "unix": ("celery_guard.stores.redis", "redis"),
    "redis+socket": ("celery_guard.stores.redis", "redis"),
    "sentinel": ("celery_guard.stores.redis", "redis"),
    "django": ("celery_guard.contrib.django.store", "django"),
    "memory": ("celery_guard.stores.memory", ""),
}


def make_store(app: Any) -> Store:
    """Return a new store as the setting ``guard_store`` names it. Raises
    :class:`~celery_guard.core.errors.StoreConfigurationError`."""
    url = app.conf.get("guard_store")
    if not url:
        raise StoreConfigurationError(
            "no guard store is set: set app.conf.guard_store (in Django CELERY_GUARD_STORE) to "
            "'redis://host:6379/2', 'django://default', or for tests 'memory://'"
        )
    if not isinstance(url, str):
        return _checked(url)  # a store object, for tests and other stores
    scheme = urlsplit(url).scheme
    if scheme not in _STORES:
        raise StoreConfigurationError(
            f"guard_store starts with {scheme + '://' if scheme else url[:20]!r}; known: "
            "redis://, rediss://, sentinel://, unix://, django://ALIAS, memory://"
        )
    module, extra = _STORES[scheme]
    try:
        stores = importlib.import_module(module)
    except ImportError as exc:
        raise StoreConfigurationError(
            f"guard_store {scheme}:// needs the extra {extra!r}: pip install 'celery_guard[{extra}]' ({exc})"
        ) from exc
    namespace = app.conf.get("guard_namespace") or "celery_guard"
    if scheme == "memory":
        if app not in _MEMORY:
            _MEMORY[app] = stores.MemoryStore()
        return _MEMORY[app]
    if scheme == "django":
        return _checked(stores.DjangoStore(urlsplit(url).netloc or "default"))
    return _checked(stores.RedisStore(url, namespace=namespace))


def _checked(store: Any) -> Store:
    if not isinstance(store, Store):
        raise StoreConfigurationError(f"guard_store is {type(store).__name__}, which is not a store or a URL")
    return store


class Runtime:
    """One process' share of the guard. Get it with :func:`runtime_of`."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.pid = os.getpid()
        self.store = make_store(app)
        self.heartbeat = Heartbeat(self.store)

    def send(self, dispatches: Iterable[Dispatch], *, producer: Any = None) -> bool:
        """Publish stored messages; true if all went out. What fails is logged and left to the dispatcher."""
        complete = True
        for dispatch in dispatches:
            if not dispatch.message:
                continue
            try:
                send(self.app, Envelope.loads(dispatch.message), producer=producer)
            except Exception as exc:  # whatever a broker raises
                complete = False
                logger.warning(
                    "could not send the message of %s (%s): %r; the dispatcher will",
                    dispatch.key,
                    dispatch.why,
                    exc,
                )
        return complete


_runtimes: WeakKeyDictionary[Any, Runtime] = WeakKeyDictionary()
_mutex = threading.Lock()


def _fresh_mutex() -> None:
    global _mutex  # noqa: PLW0603 - a lock held by another thread at fork would never be freed
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_fresh_mutex)


def runtime_of(app: Any) -> Runtime:
    """Return this process' runtime of ``app``."""
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    found = _runtimes.get(app)
    if found is not None and found.pid == os.getpid():
        return found
    with _mutex:
        found = _runtimes.get(app)
        if found is None or found.pid != os.getpid():
            found = _runtimes[app] = Runtime(app)
    return found


def store_of(app: Any) -> Store:
    """Return the store that guards ``app``, for reading and for operators' tools.

    Raises :class:`~celery_guard.core.errors.StoreConfigurationError` where none is set or it cannot work.
    """
    return runtime_of(app).store
