"""What holds for every test: no rank's thread outlives it, and hypothesis has no deadline."""

import os
import signal
import threading
import time

import pytest
from hypothesis import settings

GRACE = 2.0  # seconds for a rank that is still on its way out

# The parent is named, or else hypothesis' own CI profile would suppress a health check.
settings.register_profile(
    "daskstrads",
    parent=settings.get_profile("default"),
    deadline=None,  # the first call of a kernel compiles it
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("daskstrads")

# A shell that starts the suite in the background has it ignore Ctrl-C, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def rank_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("daskstrads-rank-")}


@pytest.fixture(autouse=True)
def no_rank_left_behind():
    before = rank_threads()  # those of a wider fixture may stay
    yield
    end = time.monotonic() + GRACE
    started = rank_threads() - before
    for thread in started:
        thread.join(max(0.0, end - time.monotonic()))
    left = sorted(thread.name for thread in started if thread.is_alive())
    if left:
        pytest.fail(f"still running {GRACE:g} s after the test: {', '.join(left)}", pytrace=False)
