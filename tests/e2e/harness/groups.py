"""Control groups: processes that have little memory, or whose pressure is measured."""

import os
import pathlib

from .cases import skip
from .daemon import Daemon


ROOT = pathlib.Path("/sys/fs/cgroup")


class Group:
    """A cgroup below a root; skips where none can be made."""

    def __init__(self, box, root):
        self.place = root / f"forebay-test-{os.getpid()}-{box.dir.name}"
        try:
            self.place.mkdir()
        except OSError as error:
            skip(f"no cgroup: {error}")
        box.at_end(self.place.rmdir)

    def enter(self, *command):
        """The command, as it runs within the group."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.place / "cgroup.procs"), *command]


class PressureGroup(Group):
    """A group of version 2, for which the kernel measures how long its processes wait."""

    def __init__(self, box):
        unified = ROOT / "unified"
        super().__init__(box, unified if unified.is_dir() else ROOT)
        if not (self.place / "io.pressure").exists():
            skip("the kernel does not measure pressure here")

    def waits(self):
        """Seconds for which a process has waited for I/O."""
        some = (self.place / "io.pressure").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6


class MemoryGroup(Group):
    """A memory cgroup, of version 1 or 2; skips where none can be made."""

    def __init__(self, box, limit):
        old = (ROOT / "memory").is_dir()
        super().__init__(box, ROOT / "memory" if old else ROOT)
        names = ("memory.limit_in_bytes", "memory.oom_control") if old else ("memory.max", "memory.events")
        self.events = self.place / names[1]
        try:
            (self.place / names[0]).write_text(str(limit))
        except OSError as error:
            skip(f"no memory cgroup: {error}")

    def kills(self):
        """How many processes in it the kernel has killed."""
        for line in self.events.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


class Confined(Daemon):
    """A daemon that starts within a group."""

    def __init__(self, box, group):
        self.group = group
        super().__init__(box)

    def command(self, *arguments):
        return self.group.enter(*super().command(*arguments))
