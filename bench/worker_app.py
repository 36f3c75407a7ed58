"""What a worker of the benchmark runs: ``celery -A bench.worker_app worker``."""

from __future__ import annotations

import os

from bench.apps import make_app
from bench.places import Places

app, _ = make_app(os.environ["CELERY_GUARD_BENCH_FAMILY"], Places.from_env())
