"""What beat sends, and how often: for every airline one import and one assessment.

The intervals are short so that a visitor sees something happen; a real airline would write `crontab(hour=3)`.
An assessment often takes longer than its interval. That is the point: its guard skips the triggers that come
while it runs.
"""

from typing import Any

from example_project.compensation.source import airlines

IMPORT_EVERY = 3.0  # seconds
ASSESS_EVERY = 5.0


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Two entries for each airline of the data: `import-AA`, `assess-AA`, and so on."""
    entries: dict[str, dict[str, Any]] = {}
    for carrier in airlines():
        entries[f"import-{carrier}"] = {
            "task": "example_project.compensation.tasks.import_flights",
            "schedule": IMPORT_EVERY,
            "args": [carrier],
        }
        entries[f"assess-{carrier}"] = {
            "task": "example_project.compensation.tasks.assess",
            "schedule": ASSESS_EVERY,
            "args": [carrier],
        }
    return entries
