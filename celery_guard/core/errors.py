"""One error tree. Every error carries its facts as attributes, says what to do next, and pickles."""

from __future__ import annotations

from typing import Any


class GuardError(Exception):
    """Base of all errors that celery_guard raises.

    Subclasses take keyword facts; :attr:`facts` holds them and each is an attribute too. A message alone is
    the whole text: so an error keeps its text through a result backend that stores no more than that.
    """

    #: ``str.format`` template over the facts.
    template = "{message}"

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        if message is not None:
            facts.setdefault("message", message)
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        alone = facts.keys() == {"message"}
        super().__init__(str(facts["message"]) if alone else self.template.format_map(_Facts(facts)))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.facts))


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _rebuild(cls: type[GuardError], facts: dict[str, Any]) -> GuardError:
    return cls(**facts)


# --- mistakes in what a user wrote -------------------------------------------------------------------


class ConfigurationError(GuardError):
    """Something in the configuration cannot work. Says which setting and how to mend it."""


class OptionError(ConfigurationError, ValueError):
    """An option of ``Guard`` is unknown, malformed, or contradicts another. Names it and where it stands."""

    template = "{where}: {message}"


class KeyArgumentError(GuardError, ValueError):
    """An argument has no canonical form, so no key can be made of it. Names the argument."""

    template = (
        "argument {argument!r} of task {task!r} has no canonical form: {message}. Pass an identifier (an id, "
        'a string, a number, a date) instead, or name the arguments that count in key="..." / scope="..."'
    )


class KeyTemplateError(OptionError):
    """A ``key`` or ``scope`` template names something that the task's signature does not have."""


class PayloadMismatchError(GuardError):
    """The same execution key was used with another payload. Nothing was run."""

    template = (
        "execution key {key!r} already stands for another payload (trigger {trigger_id}). Use another key "
        "for other arguments, or wait until the window of the first is over"
    )


# --- losing ownership ---------------------------------------------------------------------------------


class LeaseLostError(GuardError):
    """This attempt no longer owns its execution. Stop: nothing that it writes will be accepted."""

    template = (
        "the lease of {key!r} (token {token}) is lost: {reason}. This attempt must stop; "
        "its result and writes are refused"
    )


# --- outcomes that a caller sees ----------------------------------------------------------------------


class OutcomeError(GuardError):
    """Base of the errors that stand for a final state and reach whoever waits for the result."""

    template = "execution {key!r} ended as {state}: {reason}"


class ExecutionDeadError(OutcomeError):
    """``max_attempts`` attempts were lost; the execution will not be tried again by itself."""

    template = "execution {key!r} is dead: {reason}. Find out what kills its workers, then send it again"


class LockTimeoutError(OutcomeError):
    """The execution waited for its lock for as long as ``wait_for`` allows."""


class ExecutionExpiredError(OutcomeError):
    """The execution was too old to start."""


class ExecutionRevokedError(OutcomeError):
    """The execution was revoked."""


class ExecutionFailedError(OutcomeError):
    """The execution that stands for this trigger failed, and its exception could not be rebuilt."""


# --- the store ----------------------------------------------------------------------------------------


class StoreError(GuardError):
    """Base of errors of a store."""


class StoreUnavailableError(StoreError):
    """The store could not be reached or did not answer; the driver's error is the cause (``__cause__``)."""

    template = "the guard store {store} is not available during {operation}: {message}"


class StoreConfigurationError(StoreError, ConfigurationError):
    """The store as it is set up cannot keep the promises. Says what to change."""


class TransitionError(StoreError):
    """A move that the table of states does not have was tried: a defect, never an expected outcome."""

    template = "execution {key!r}: no move from {old} to {new}"
