"""A terminal with a program on it."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from .cases import Failure, check_equal
from .sandbox import environment

# How long a screen may take until it shows what is expected.
PATIENCE = 60

_ENTERED, _LEFT, _CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
_SEQUENCE = re.compile(rb"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Terminal:
    """A pseudo terminal of 80x24, or another size, and what stands on it."""

    def __init__(self, box, *command, size=(80, 24), **variables):
        self.columns, self.rows = size
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output, self.seen = b"", b""
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.row = self.column = 0
        variables.setdefault("TERM", "xterm-256color")
        # A session of its own, so that Ctrl-C would be a signal to it alone.
        self.process = box.spawn(
            *command, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=environment(**variables),
            start_new_session=True,
        )  # fmt: skip
        box.at_end(self.close)

    def close(self):
        os.close(self.master)
        os.close(self.slave)

    def send(self, keys):
        """Presses keys."""
        os.write(self.master, keys.encode())

    def screen(self):
        """The lines as they stand."""
        return ["".join(row).rstrip() for row in self.cells]

    def read(self, seconds):
        """Takes what was written within the time; whether there was anything."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        part = os.read(self.master, 1 << 16)
        self.seen += part
        self.output += part
        self._draw()
        return True

    def wait(self, *expected):
        """Waits until all of these texts are on the screen; gives its lines."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            text = "\n".join(self.screen())
            if all(part in text for part in expected):
                return self.screen()
            if not self.read(0.2) and self.process.poll() is not None:
                break
        lines = "\n".join(self.screen())
        raise Failure(f"{expected} did not appear within {PATIENCE} s on\n{lines}")

    def check_restored(self, code):
        """Waits for the end; fails unless the terminal is as it was."""
        found = self.process.wait(PATIENCE)
        while self.read(0.1):
            pass
        check_equal(found, code, "how the program ended")
        check_equal(termios.tcgetattr(self.slave), self.before, "the modes of the terminal")
        check_equal(self.seen.count(_ENTERED), 1, "how often another screen was opened")
        check_equal(self.seen.count(_LEFT) >= 1, True, "that the other screen was left")
        last = self.seen.rindex(_LEFT)
        check_equal(self.seen.rindex(_CURSOR) > last, True, "that the cursor is visible")

    def _draw(self):
        """Puts output on the screen, as far as it is complete."""
        while self.output:
            if self.output[0] == 0x1B:
                found = _SEQUENCE.match(self.output)
                if not found:
                    return
                self.output = self.output[found.end() :]
                self._control(*found.groups())
                continue
            end = self.output.find(b"\x1b")
            end = len(self.output) if end < 0 else end
            try:
                text = self.output[:end].decode()
            except UnicodeDecodeError:
                # The rest of a character is still on its way.
                return
            self.output = self.output[end:]
            for character in text:
                self._put(character)

    def _control(self, private, numbers, kind):
        if kind == b"H" and not private:
            row, _, column = numbers.partition(b";")
            self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
        elif kind == b"J" or (private and numbers == b"1049"):
            self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def _put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row += 1
        elif self.row < self.rows and self.column < self.columns:
            self.cells[self.row][self.column] = character
            self.column += 1
