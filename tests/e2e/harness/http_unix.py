"""HTTP over a unix socket."""

import http.client
import socket

from .wire import PATIENCE


class UnixConnection(http.client.HTTPConnection):
    """A connection to the server at a path."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.path)
