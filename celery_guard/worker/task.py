"""``GuardedTask``: the base class that puts the guard around a task's body."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from celery import Task

from ..core.errors import ConfigurationError, GuardError, KeyTemplateError
from ..core.keys import template_fields
from ..core.options import Guard, Overlap, parse
from ..core.session import Session, Unguarded
from .execution import SESSION, run_guarded

_WRAPPED = "_celery_guard_wrapped"


class Guarding:
    """What a guarded task adds to any task class. Use :class:`GuardedTask`; this is for mixing it into a base
    of your own: ``class MyBase(Guarding, MyTask)``."""

    #: The declared options; ``None``: guarded only where a message or ``guard_tasks`` says so.
    guard_options: Guard | None = None

    Request = "celery_guard.worker.request:GuardedRequest"
    Strategy = "celery_guard.worker.strategy:default"
    #: What the task had before :func:`guarding`: the way of its messages that nobody guards.
    plain_request: Any = "celery.worker.request:Request"
    plain_strategy: Any = "celery.worker.strategy:default"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "guard" in cls.__dict__ and not isinstance(cls.__dict__["guard"], property):
            # ``guard=Guard(...)`` of the decorator lands here; ``self.guard`` is the session of a running body
            declared = cls.__dict__["guard"]
            name = cls.__dict__.get("name") or cls.__name__
            del cls.guard
            cls.guard_options = None if declared is None else parse(declared, f"guard of task {name!r}")
        if "__call__" in cls.__dict__:
            cls.__call__ = _outermost(cls.__dict__["__call__"])  # type: ignore[method-assign]

    @property
    def guard(self) -> Session | Unguarded:
        """The running attempt: ``token``, ``attempt``, ``key``, ``scheduled_at``, ``check()``.

        Raises :class:`~celery_guard.core.errors.GuardError` outside a guarded execution, for instance when the
        task is called as a plain function.
        """
        session = self.request.__dict__.get(SESSION)  # type: ignore[attr-defined]
        if session is None:
            raise GuardError(
                f"self.guard of task {self.name!r} has no running execution: "  # type: ignore[attr-defined]
                "send the task with delay() or apply_async(), or run it with apply(); a plain call is not guarded"
            )
        found: Session | Unguarded = session
        return found

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Install the guard in the application, and refuse what cannot work where it is declared."""
        super().on_bound(app)  # type: ignore[misc]
        from .install import install  # the application's hooks import this class

        install(app)
        _check_declaration(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _inside(self):
            return _plain_call(self)(*args, **kwargs)
        return run_guarded(self, _plain_call(self), args, kwargs)

    def retry(self, *args: Any, exc: BaseException | None = None, **kwargs: Any) -> Any:
        """As :meth:`celery.app.task.Task.retry`; errors of the guard are raised, not retried, so that
        ``autoretry_for=(Exception,)`` does not swallow a lost lease."""
        if isinstance(exc, GuardError):
            raise exc
        return super().retry(*args, exc=exc, **kwargs)  # type: ignore[misc]

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """As :meth:`celery.app.task.Task.apply`; ``guard=`` counts as in ``apply_async``, which is where eager
        mode comes from."""
        from .publish import eager_headers

        headers = eager_headers(self, options.pop("guard", None), options.pop("headers", None))
        return super().apply(args, kwargs, headers=headers, **options)  # type: ignore[misc]

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> Any:
        """``delay`` once the open Django transaction is committed; the result handle is there at once.
        Roll-back publishes and reserves nothing."""
        return self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """``apply_async`` once the open Django transaction is committed (at once where none is open)."""
        from .publish import publish_on_commit

        return publish_on_commit(self, args, kwargs, options)


def _plain_call(task: Any) -> Any:
    """The body under the guard: a custom ``__call__`` of another base, or ``run``."""
    mro = type(task).__mro__
    for base in mro[mro.index(Guarding) + 1 :]:
        if "__call__" in base.__dict__:
            if base is Task:
                break
            return functools.partial(base.__dict__["__call__"], task)
    return task.run


def _inside(task: Any) -> bool:
    """Whether there is nothing to guard: called as a function, or already inside this very execution."""
    request = task.request
    return bool(request.called_directly) or SESSION in request.__dict__ or "guard_passed" in request.__dict__


def _outermost(call: Any) -> Any:
    """Put the guard around a subclass' own ``__call__``, so that it guards even where that never calls
    ``super()``."""
    if getattr(call, _WRAPPED, False):
        return call

    @functools.wraps(call)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _inside(self):
            return call(self, *args, **kwargs)
        self.request.__dict__["guard_passed"] = True
        return run_guarded(self, functools.partial(call, self), args, kwargs)

    setattr(guarded, _WRAPPED, True)
    return guarded


class GuardedTask(Guarding, Task):
    """A Celery task whose executions are guarded: ``@app.task(base=GuardedTask, guard=Guard(...))``.

    Without ``guard`` the defaults of :class:`~celery_guard.core.options.Guard` hold: one at a time per task, a
    second trigger is skipped. As the application's ``task_cls`` a task that declares nothing excludes nothing
    (``overlap="allow"``): it is only safe against redelivery.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True


def _check_declaration(cls: Any) -> None:
    if not cls.name:
        return
    builtin = cls.name.startswith("celery.")
    if cls.guard_options is None and issubclass(cls, GuardedTask) and not builtin:
        inherited = _task_cls(cls) is not None
        cls.guard_options = Guard(overlap=Overlap.ALLOW) if inherited else Guard()
    if cls.guard_options is None:
        return
    if not cls.acks_late and not cls.guard_options.record:
        raise ConfigurationError(
            f"task {cls.name!r}: acks_late=False contradicts guard: a message that is acknowledged before the "
            "guard has recorded it is lost with its worker; remove acks_late=False, or let the trigger be "
            "recorded before it is published: guard=Guard(record=True, ...)"
        )
    _check_templates(cls)


def _task_cls(cls: Any) -> Any:
    """The application's own base (made from ``task_cls``) if ``cls`` comes from it."""
    app_base = cls._app.__dict__.get("Task") if cls._app is not None else None
    return app_base if app_base is not None and app_base in cls.__mro__ else None


def _check_templates(cls: Any) -> None:
    run = getattr(cls, "_orig_run", None) or cls.run
    try:
        parameters = inspect.signature(getattr(run, "__wrapped__", run)).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters.values()):
        return
    names = [name for name in parameters if name != "self"]
    for option in ("scope", "key"):
        template = getattr(cls.guard_options, option)
        if not isinstance(template, str):
            continue
        for field in template_fields(template):
            if field not in names and not (field == "scheduled" and option == "key"):
                raise KeyTemplateError(
                    where=f"{option}={template!r} of task {cls.name!r}",
                    option=option,
                    message=f"the task has no argument {field!r}; it has {', '.join(names) or 'none'}",
                )


def guarding(task: Any) -> None:
    """Put the guard around a task of any base, in place: it guards where ``guard_tasks`` or a message asks for
    it, and is the plain task otherwise."""
    if hasattr(task, "_get_current_object"):  # the proxy that a decorator leaves in a module
        task = task._get_current_object()
    if isinstance(task, Guarding):
        return
    cls = type(task)
    strategy = staticmethod(cls.Strategy) if inspect.isfunction(cls.Strategy) else cls.Strategy
    own = {"plain_request": cls.Request, "plain_strategy": strategy}
    more = {"__module__": cls.__module__, "abstract": True, **own}
    task.__class__ = type(cls.__name__, (Guarding, cls), more)
    task.__trace__ = None
