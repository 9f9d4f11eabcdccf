"""Control groups, in which processes have little memory."""

import os
import pathlib

from .cases import skip
from .daemon import Daemon


class MemoryGroup:
    """A memory cgroup, of version 1 or 2; skips where none can be made."""

    def __init__(self, box, limit):
        root = pathlib.Path("/sys/fs/cgroup")
        old = (root / "memory").is_dir()
        self.place = (root / "memory" if old else root) / f"forebay-test-{os.getpid()}"
        names = ("memory.limit_in_bytes", "memory.oom_control") if old else ("memory.max", "memory.events")
        self.events = self.place / names[1]
        try:
            self.place.mkdir()
            (self.place / names[0]).write_text(str(limit))
        except OSError as error:
            skip(f"no memory cgroup: {error}")
        box.at_end(self.place.rmdir)

    def enter(self, *command):
        """The command, as it runs within the group."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.place / "cgroup.procs"), *command]

    def kills(self):
        """How many processes in it the kernel has killed."""
        for line in self.events.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


class Confined(Daemon):
    """A daemon that starts within a group of its own, so that it can see the limit."""

    def __init__(self, box, limit):
        self.group = MemoryGroup(box, limit)
        super().__init__(box)

    def command(self, *arguments):
        return self.group.enter(*super().command(*arguments))
