"""A client with bad manners: ``python -m tests.e2e.flooder SOCKET reads|writes`` sends calls and never waits for
answers.

Ends when its standard input does. Stands back from whoever it shares a processor with: it is to burden the daemon.
"""

import os
import socket
import sys
import threading

CONNECTIONS = 4
NICENESS = 10
CALLS = {
    "reads": b'{"jsonrpc":"2.0","id":%d,"method":"session.get","params":{"session":"s"}}\n',
    "writes": b'{"jsonrpc":"2.0","id":%d,"method":"session.append","params":{"session":"s","messages":'
    b'[{"role":"assistant","content":"flood"}]}}\n',
}


def throw_away(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def flood(path: str, lines: bytes) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    threading.Thread(target=throw_away, args=[connection], daemon=True).start()
    while True:
        connection.sendall(lines)


if __name__ == "__main__":
    os.nice(NICENESS)
    many = b"".join(CALLS[sys.argv[2]] % number for number in range(64))
    for _ in range(CONNECTIONS):
        threading.Thread(target=flood, args=[sys.argv[1], many], daemon=True).start()
    sys.stdin.read()
