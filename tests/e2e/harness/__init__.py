"""What the cases share. A case is a file like this:

    from harness import *

    @test
    def something_holds(box):
        ...

    main()
"""

from .cases import Failure, Skip, check, check_equal, main, need, skip, test
from .daemon import Daemon
from .data import BLOCK, Model, Recorder, connect, first_difference, random_bytes, read_stamp, stamp
from .faults import Client, Disk, Survivor, attempt, read_until, verb, wait_for
from .groups import Confined, MemoryGroup, PressureGroup
from .sandbox import KIB, MIB, GIB, Sandbox, digest
