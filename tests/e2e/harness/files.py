"""Numbered files, each of which is durable before the next begins: after a crash the first of them are there."""

import os
import pathlib
import threading
import time

from .cases import check
from .data import random_bytes


class Files(threading.Thread):
    """Writes numbered files, each of which is durable before the next begins, and removes old ones, until it fails."""

    KEPT = 40

    def __init__(self, directory, first):
        super().__init__(daemon=True)
        self.directory, self.next = directory, first
        # Each file with the time at which it was durable.
        self.durable = []

    def run(self):
        try:
            while True:
                self.write(self.next)
                self.durable.append((self.next, time.monotonic()))
                self.next += 1
        except OSError:
            pass

    def write(self, number):
        place = f"{self.directory}/d{number % 8}"
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/new", "wb") as file:
            file.write(content_of(number))
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{place}/new", f"{place}/f{number}")
        opened = os.open(place, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
        old = number - self.KEPT
        pathlib.Path(f"{self.directory}/d{old % 8}/f{old}").unlink(missing_ok=True)


def content_of(number):
    return random_bytes(number, 500 + number * 7919 % 50_000)


def newest_file(directory):
    """The last of the files; fails unless those before it are there and whole."""
    found = {int(path.name[1:]): path for path in pathlib.Path(directory).glob("d*/f*")}
    newest = max(found, default=0)
    for number in range(max(1, newest - Files.KEPT + 1), newest + 1):
        check(number in found, f"file {newest} is there, and {number} is not")
        check(found[number].read_bytes() == content_of(number), f"file {number} is not whole")
    return newest
