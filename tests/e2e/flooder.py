"""A client with bad manners: ``python -m tests.e2e.flooder SOCKET`` sends calls and never waits for answers.

Ends when its standard input does.
"""

import socket
import sys
import threading

CONNECTIONS = 4
LINES = b"".join(
    b'{"jsonrpc":"2.0","id":%d,"method":"session.get","params":{"session":"s"}}\n' % number for number in range(64)
)


def throw_away(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def flood(path: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    threading.Thread(target=throw_away, args=[connection], daemon=True).start()
    while True:
        connection.sendall(LINES)


if __name__ == "__main__":
    for _ in range(CONNECTIONS):
        threading.Thread(target=flood, args=[sys.argv[1]], daemon=True).start()
    sys.stdin.read()
