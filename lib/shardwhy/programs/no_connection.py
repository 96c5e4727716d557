"""Nobody listens on the port: the server has not been started."""

import socket

with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
socket.create_connection(("localhost", port), timeout=5)
