"""Log lines and metrics of the daemon."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from ckptfs import limits
from ckptfs.log import logging_to
from ckptfs.metrics import Metrics

if TYPE_CHECKING:
    from pathlib import Path

LOGGER = logging.getLogger("ckptfs.test")


def test_a_line_has_date_level_and_name_and_an_entry_begins_with_a_date(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with logging_to(file, "info"):
        LOGGER.debug("not shown")
        LOGGER.info("first\nand more")
        LOGGER.info("%s", os.fsdecode(b"\xff"))
        try:
            int("x")
        except ValueError:
            LOGGER.exception("failed")
    lines = file.read_text().split("\n")
    entries = [line for line in lines if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)]
    assert [entry.split(" ", 1)[1] for entry in entries] == [
        "INFO ckptfs.test: first",
        "INFO ckptfs.test: \\udcff",
        "ERROR ckptfs.test: failed",
    ]
    assert "    and more" in lines
    assert any("ValueError" in line for line in lines)


def test_the_file_rotates_and_its_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_FILE_BYTES", 10_000)
    with logging_to(tmp_path / "log", "info"):
        for number in range(2000):
            LOGGER.info("line %d", number)
            if number % 100 == 0:
                time.sleep(0.001)
    assert len(list(tmp_path.iterdir())) == limits.LOG_FILE_COUNT
    assert all(file.stat().st_size <= 10_000 for file in tmp_path.iterdir())
    assert "line 1999" in (tmp_path / "log").read_text()


def test_a_log_that_cannot_be_written_holds_nobody_up_and_says_how_much_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOG_QUEUE_LINES_MAX", 100)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    read = bytearray()

    def read_all() -> None:
        os.set_blocking(reader, True)
        while data := os.read(reader, 65536):
            read.extend(data)

    thread = threading.Thread(target=read_all)
    # A pipe that nobody reads is a disk that stalls. It does not rotate: nothing can be told of its size.
    monkeypatch.setattr(limits, "LOG_FILE_BYTES", 0)
    with logging_to(pipe, "info"):
        began_s = time.monotonic()
        for _ in range(1000):
            LOGGER.info("x" * 1000)
        assert time.monotonic() - began_s < 5
        thread.start()
        deadline_s = time.monotonic() + 20
        while b"log lines were dropped" not in read and time.monotonic() < deadline_s:
            LOGGER.info("again")
            time.sleep(0.01)
    thread.join()
    os.close(reader)
    assert re.search(rb"WARNING ckptfs\.log: \d+ log lines were dropped", read)


def test_a_snapshot_has_every_counter_and_gauge_by_name() -> None:
    metrics = Metrics()
    metrics.counter("b_total").add()
    metrics.counter("b_total").add(2)
    metrics.gauge("a").add(5)
    metrics.gauge("a").add(-1)
    metrics.computed("c_bytes", lambda: 7)
    assert list(metrics.snapshot().items()) == [("a", 4), ("b_total", 3), ("c_bytes", 7)]


def test_a_counter_never_goes_back_and_a_name_is_one_thing() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError):
        metrics.counter("a").add(-1)
    with pytest.raises(AssertionError):
        metrics.gauge("a")
