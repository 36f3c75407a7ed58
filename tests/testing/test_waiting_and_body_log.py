"""Waiting for conditions, and the log that task bodies write."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from celery_guard.testing.bodylog import BodyLog
from celery_guard.testing.waiting import ConditionNotMetError, wait_until


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([None, 0, "", "ready", "later"])
    assert wait_until(lambda: next(answers), interval=0) == "ready"


def test_a_condition_is_asked_even_without_time() -> None:
    assert wait_until(lambda: 7, timeout=0) == 7


def test_a_condition_that_stays_untrue_is_an_assertion_error_that_says_what_was_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"the worker to start: still not so after 0\.01 s .*\[\]"):
        wait_until(list, timeout=0.01, message="the worker to start")


def test_what_a_condition_raises_is_not_swallowed() -> None:
    def broken() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wait_until(broken)


def _write_many(path: Path, writer: int) -> None:
    log = BodyLog(path)
    for number in range(200):
        log.write("body", writer=writer, number=number, filling="x" * 500)


def test_records_of_many_processes_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "bodies.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, writer)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    log = BodyLog(path)
    assert log.count("body") == 600
    for writer, process in enumerate(writers):
        records = log.read("body", writer=writer)
        assert [record["number"] for record in records] == list(range(200))
        assert {record["pid"] for record in records} == {process.pid}


def test_a_record_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    log = BodyLog(tmp_path / "bodies.jsonl")
    assert log.read() == []
    log.write("begin", key="a")
    with log.path.open("a") as half:
        half.write('{"event": "beg')
    assert [record["key"] for record in log.read("begin")] == ["a"]
    assert log.wait_for("begin", key="a")[0]["event"] == "begin"
    with pytest.raises(ConditionNotMetError):
        log.wait_for("begin", count=2, timeout=0)
