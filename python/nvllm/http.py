"""HTTP/1.1 as the program speaks it: a request as bytes, and a response while its bytes come in."""

import json

from .errors import NvllmError


def encode_request(method, path, body=None):
    """One request for each connection: both are over together."""
    data = b'' if body is None else json.dumps(body, separators=(',', ':')).encode()
    head = (f'{method} {path} HTTP/1.1\r\nHost: nvllm\r\nConnection: close\r\n'
            f'Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n')
    return head.encode() + data


class Response:
    """feed() takes what a connection gave. A whole response is in `body` once it is `done`; the events of a stream
    are what take_events() returns."""

    def __init__(self):
        self.status = None
        self.streams = False
        self.done = False
        self.body = b''
        self.buffer = bytearray()
        self.events = []
        self.chunked = False
        self.length = None
        self.text = bytearray()  # bytes of a stream that are not yet split into events

    def feed(self, data):
        self.buffer += data
        if self.status is None and not self.read_head():
            return
        if self.chunked:
            self.read_chunks()
        elif self.length is not None and len(self.buffer) >= self.length:
            self.body = bytes(self.buffer[:self.length])
            self.done = True

    def read_head(self):
        end = self.buffer.find(b'\r\n\r\n')
        if end < 0:
            return False
        lines = self.buffer[:end].decode('latin-1').split('\r\n')
        del self.buffer[:end + 4]
        self.status = int(lines[0].split(' ')[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(':') for line in lines[1:])}
        self.chunked = headers.get('transfer-encoding', '').lower() == 'chunked'
        self.streams = headers.get('content-type', '').startswith('text/event-stream')
        if not self.chunked:
            self.length = int(headers.get('content-length', 0))
        return True

    def read_chunks(self):
        at = 0
        while True:
            end = self.buffer.find(b'\r\n', at)
            if end < 0:
                break
            size = int(self.buffer[at:end].split(b';')[0], 16)
            begin = end + 2
            if len(self.buffer) < begin + size + 2:
                break
            self.text += self.buffer[begin:begin + size]
            at = begin + size + 2
            if size == 0:
                self.done = True
                break
        del self.buffer[:at]
        if not self.streams:
            if self.done:
                self.body = bytes(self.text)
            return
        end = self.text.rfind(b'\n\n')
        if end >= 0:
            self.events += [event[6:] for event in self.text[:end].split(b'\n\n') if event.startswith(b'data: ')]
            del self.text[:end + 2]

    def take_events(self):
        """The events since the last call, as objects, without the one that says that the stream is over."""
        events, self.events = self.events, []
        return [json.loads(event) for event in events if event != b'[DONE]']

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise NvllmError(f'the program has answered with {self.body[:100]!r}, which is not JSON') from None
