"""README and docs say what the code does: every Python example runs, every option parses, every link leads
somewhere.

A page is one namespace, run from top to bottom. Any store URL of a page is the memory store here, and tasks
run eagerly, so no server is needed. A fence ``python no-run`` is compiled only.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import celery
import celery._state
import pytest

from celery_guard.core.options import parse
from celery_guard.stores.memory import MemoryStore
from celery_guard.worker import runtime
from celery_guard.worker.header import HEADER, read

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
#: Examples that only a running worker or a Django project could run: kept few.
MOST_NOT_RUN = 10

TEST_SETTINGS = {
    "task_always_eager": True,
    "broker_url": "memory://",
    "result_backend": "cache+memory://",
}

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, *languages: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page, each with the line that it starts at."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)), found[2])
        for found in FENCE.finditer(text)
        if found[1].strip() in languages
    ]


def compiled(page: Path, line: int, source: str) -> Any:
    """The code of a block, whose tracebacks name the page's own lines."""
    return compile("\n" * line + source, str(page), "exec")


@pytest.fixture
def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Celery app is eager and in memory, whatever URLs the page gives it."""
    make_app, make_store = celery.Celery.__init__, runtime.make_store

    def eager(self: Any, main: str | None = None, **options: Any) -> None:
        make_app(self, main, changes=dict(TEST_SETTINGS))

    def in_memory(app: Any) -> Any:
        url = app.conf.get("guard_store")
        if isinstance(url, str) and urlsplit(url).scheme in runtime._STORES:
            return MemoryStore()
        return make_store(app)

    # Shared tasks go to every later app of the process: not from one page to the next.
    monkeypatch.setattr(celery._state, "_on_app_finalizers", set(celery._state._on_app_finalizers))
    monkeypatch.setattr(celery.Celery, "__init__", eager)
    monkeypatch.setattr(runtime, "make_store", in_memory)


@pages
@pytest.mark.filterwarnings("error:Task name .* is already registered")
@pytest.mark.usefixtures("without_servers")
def test_python_examples_run(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, source in blocks(page, "python"):
        exec(compiled(page, line, source), namespace)
    for value in namespace.values():
        if isinstance(value, celery.Celery):
            options_parse(value)


def options_parse(app: celery.Celery) -> None:
    """What a page sets, but nothing in it runs, is valid all the same."""
    for pattern, options in (app.conf.get("guard_tasks") or {}).items():
        parse(options, f"guard_tasks[{pattern!r}]")
    for name, entry in (app.conf.beat_schedule or {}).items():
        assert entry["task"] in app.tasks, f"beat entry {name!r} names no task of the page"
        options = entry.get("options") or {}
        parse(options.get("guard"), f"beat entry {name!r}")
        if HEADER in (options.get("headers") or {}):
            read(options["headers"][HEADER], f"headers of beat entry {name!r}")


@pages
def test_examples_that_are_not_run_compile(page: Path) -> None:
    for line, source in blocks(page, "python no-run"):
        compiled(page, line, source)


def test_few_examples_are_not_run() -> None:
    assert sum(len(blocks(page, "python no-run")) for page in PAGES) <= MOST_NOT_RUN


@pages
def test_json_examples_parse(page: Path) -> None:
    for line, source in blocks(page, "json"):
        data = json.loads(source)
        if isinstance(data, dict) and HEADER in data:
            read(data[HEADER], f"{page.name}:{line}")


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#{1,6} +(.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if urlsplit(link).scheme:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}, and no heading has that name"
