"""Errors: each carries its facts, says what to do next, and survives the ways between processes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from celery import Celery

from celery_guard.core import errors
from celery_guard.core.errors import GuardError

FACTS: dict[str, Any] = {
    "where": "Guard(...)",
    "option": "lease",
    "message": "it is wrong",
    "task": "app.settle",
    "argument": "tenant",
    "key": "app.settle:7",
    "trigger_id": "1234",
    "token": 1_900_000_000_000_001,
    "reason": "its process died",
    "state": "dead",
    "store": "redis://host",
    "operation": "begin",
    "old": "running",
    "new": "skipped",
}


def tree(root: type[GuardError]) -> list[type[GuardError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


CLASSES = sorted({found for found in tree(GuardError) if found.__module__ == errors.__name__}, key=str)


def test_the_tree_is_complete_and_every_name_ends_in_error() -> None:
    defined = {
        item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)
    }
    assert defined == set(CLASSES)
    assert all(found.__name__.endswith("Error") for found in CLASSES)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_comes_through_pickle_with_its_facts(kind: type[GuardError], protocol: int) -> None:
    error = kind(**FACTS)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert again.facts == FACTS
    assert {name: getattr(again, name) for name in FACTS} == FACTS
    assert (str(again), again.args) == (str(error), error.args)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_an_error_can_be_copied(kind: type[GuardError], way: Any) -> None:
    again = way(kind(**FACTS))
    assert (type(again), again.facts) == (kind, FACTS)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_text_names_its_facts(kind: type[GuardError]) -> None:
    text = str(kind(**FACTS))
    assert "?" not in text
    assert "{" not in text


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_missing_fact_spoils_no_text(kind: type[GuardError]) -> None:
    assert str(kind())
    assert str(kind(nonsense=1))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_message_alone_is_the_whole_text(kind: type[GuardError]) -> None:
    error = kind("what happened")
    assert str(error) == error.facts["message"] == "what happened"
    assert str(pickle.loads(pickle.dumps(error))) == "what happened"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_text_survives_a_result_backend_that_knows_json_only(kind: type[GuardError]) -> None:
    app = Celery("app", backend="cache+memory://", set_as_current=False)
    error = kind(**FACTS)
    stored = app.backend.prepare_exception(error, "json")
    again = app.backend.exception_to_python(stored)
    assert type(again) is kind
    assert str(again) == str(error)


def test_text_with_braces_is_text() -> None:
    assert str(GuardError("{key} %s {0}")) == "{key} %s {0}"
    assert "{x}" in str(errors.OptionError(where="here", message="write {x}"))


def test_what_can_be_caught_as_what() -> None:
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.KeyArgumentError, ValueError)
    assert issubclass(errors.StoreConfigurationError, errors.ConfigurationError)
    assert issubclass(errors.LockTimeoutError, errors.OutcomeError)
    assert not issubclass(errors.StoreUnavailableError, OSError)
