"""Deliveries without a worker process: Celery's own request and tracer on a message that was published.

The broker is kombu's in-memory transport; :class:`Fleet` takes messages off its queue and runs them as a
pool's process would, through the same ``GuardedRequest`` and tracer. Nothing of Celery or the guard is replaced.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from kombu import Queue

from celery_guard.core.clock import ManualClock
from celery_guard.stores.memory import MemoryStore
from celery_guard.worker.install import install
from celery_guard.worker.request import GuardedRequest


class Fleet:
    """An application with a memory store, and hands that deliver its messages."""

    def __init__(self, **conf: Any) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        name = uuid.uuid4().hex
        task_cls = conf.pop("task_cls", None)
        self.app = Celery(
            name, broker="memory://", backend="cache+memory://", task_cls=task_cls, set_as_current=False
        )
        self.app.conf.update(guard_store=self.store, task_default_queue=name, **conf)
        self._queue = Queue(name)
        install(self.app)

    def messages(self) -> list[Any]:
        """Take all messages off the queue."""
        taken = []
        with self.app.connection_for_read() as connection:
            queue = self._queue.bind(connection.default_channel)
            queue.declare()
            while (message := queue.get(no_ack=True)) is not None:
                taken.append(message)
        return taken

    def request(self, message: Any) -> GuardedRequest:
        """The parent's view of a message. ``acks`` and ``rejects`` on it say what was done to the message."""
        task = self.app.tasks[message.headers["task"]]
        done: list[str] = []
        request = GuardedRequest(
            message,
            app=self.app,
            task=task,
            hostname="test",
            headers=message.headers,
            on_ack=lambda *a: done.append("ack"),
            on_reject=lambda log, errors, requeue: done.append("requeue" if requeue else "reject"),
        )
        request.done = done
        return request

    def deliver(self, message: Any, request: GuardedRequest | None = None) -> Any:
        """Run one message as a pool's process does; returns Celery's trace (``retval``, ``info``). With ``request``
        its parent's view is that one."""
        request = request or self.request(message)
        args, kwargs, embed = message.payload
        task = self.app.tasks[message.headers["task"]]
        data = {**request.request_dict, **(embed or {}), "args": args, "kwargs": kwargs}
        tracer = build_tracer(task.name, task, app=self.app)
        return tracer(request.id, args, kwargs, data)

    def work(self, limit: int = 100) -> list[Any]:
        """Deliver until the queue is empty; returns the traces."""
        traces: list[Any] = []
        while len(traces) < limit:
            messages = self.messages()
            if not messages:
                return traces
            traces.extend(self.deliver(message) for message in messages)
        raise AssertionError(f"still messages after {limit} deliveries: a loop")

    def sweep(self) -> int:
        """What a dispatcher does once; returns how many messages it sent."""
        from celery_guard.worker.runtime import runtime_of

        found = self.store.sweep("test", ttl=1000)
        runtime_of(self.app).send(found.dispatches)
        return len(found.dispatches)
