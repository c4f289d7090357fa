"""A gRPC client made of sockets and frames (RFC 9113), for what no well-behaved client does."""

import socket
import struct
import threading

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
ACK, END_HEADERS = 1, 4


def literal(name, value):
    """A header field as HPACK writes it without any table or compression (RFC 7541, 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def connect(address):
    if address.startswith("unix-abstract:"):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect("\0" + address.removeprefix("unix-abstract:"))
        return peer
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


class Connection:
    """Answers the peer's settings and pings from a thread of its own until either side closes.

    `address`: HOST:PORT or unix-abstract:NAME.
    """

    def __init__(self, address):
        self.goaway = None  # the debug text of a GOAWAY frame, once one came
        self.pings_sent = 0
        self.pings_answered = 0
        self._is_closing = False
        self._lock = threading.Lock()
        self._socket = connect(address)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(SETTINGS, 0, 0, b"")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._is_closing = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the peer was faster
            pass
        self._reader.join()
        self._socket.close()

    def start_call(self, stream, method):
        """Opens a call; `stream` is odd and grows."""
        fields = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "shoal",
                  "te": "trailers", "content-type": "application/grpc"}
        block = b"".join(literal(name, value) for name, value in fields.items())
        self._send(HEADERS, END_HEADERS, stream, block)

    def send_message(self, stream, message, size=None):
        """A message whose prefix promises `size` bytes; the call stays open for more."""
        self._send(DATA, 0, stream, struct.pack(">BI", 0, len(message) if size is None else size) + message)

    def ping(self):
        self.pings_sent += 1
        self._send(PING, 0, 0, bytes(8))

    def is_open(self):
        return self.goaway is None and self._reader.is_alive()

    def _send(self, kind, flags, stream, payload):
        with self._lock:
            self._socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def _receive(self, size):
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    def _read(self):
        try:
            while True:
                head = self._receive(9)
                payload = self._receive(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind == SETTINGS and not flags & ACK:
                    self._send(SETTINGS, ACK, 0, b"")
                elif kind == PING and flags & ACK:
                    self.pings_answered += 1
                elif kind == PING:
                    self._send(PING, ACK, 0, payload)
                elif kind == GOAWAY:
                    self.goaway = payload[8:].decode(errors="replace")
        except OSError:
            if not self._is_closing and self.goaway is None:
                self.goaway = "connection lost"
