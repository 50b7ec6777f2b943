"""HTTP/1.1 as the program speaks it: a request as bytes, a response while its bytes come in, and exchange(): many
requests at once in one thread, each on a connection of its own."""

import json
import os
import queue
import resource
import selectors
import threading

from .engine_process import connect
from .errors import NvllmError

READ_BYTES = 1 << 18
MAX_OPEN = 2048
SPARE_FILES = 64
STOP_SECONDS = 0.05  # until a thread notices that its results are no longer wanted


# --- One request and its response ---

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


# --- Many at once ---

class Connection:
    def __init__(self, socket, key, request):
        self.socket = socket
        self.key = key
        self.unsent = memoryview(request)
        self.response = Response()
        socket.setblocking(False)

    def send(self):
        """True: all is sent."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent):]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unsent = self.unsent[:0]  # a response may explain the failure
        return not self.unsent

    def receive(self):
        """False: the other side has closed it."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        self.response.feed(data)
        return bool(data)


def allowed_connections(wanted):
    """As many as wanted, unless the limit of open files is in the way."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return min(wanted, MAX_OPEN)
    used = len(os.listdir('/proc/self/fd'))
    return max(1, min(wanted, MAX_OPEN, limit - used - SPARE_FILES))


class Exchange:
    """Requests are taken from an iterator as there are connections for them."""

    def __init__(self, socket_path, requests, wanted):
        self.socket_path = socket_path
        self.requests = iter(requests)
        self.limit = allowed_connections(wanted)
        self.selector = selectors.DefaultSelector()
        self.count = 0

    def open_more(self):
        """Opens connections; returns the keys of requests for which there was none, since nobody listens."""
        failed = []
        while self.count < self.limit:
            following = next(self.requests, None)
            if following is None:
                break
            key, request = following
            try:
                socket = connect(self.socket_path)
            except OSError:
                failed.append(key)
                break
            connection = Connection(socket, key, request)
            writes = 0 if connection.send() else selectors.EVENT_WRITE
            self.selector.register(socket, selectors.EVENT_READ | writes, connection)
            self.count += 1
        return failed

    def wait(self, timeout):
        """Yields the connections that have got something, or have ended."""
        for selected, events in self.selector.select(timeout):
            connection = selected.data
            if events & selectors.EVENT_WRITE and connection.send():
                self.selector.modify(connection.socket, selectors.EVENT_READ, connection)
            if events & selectors.EVENT_READ:
                is_open = connection.receive()
                if connection.response.done or not is_open:
                    self.close(connection)
                    yield connection
                elif connection.response.events:
                    yield connection

    def close(self, connection):
        self.selector.unregister(connection.socket)
        connection.socket.close()
        self.count -= 1

    def close_all(self):
        for selected in list(self.selector.get_map().values()):
            selected.data.socket.close()
        self.selector.close()


def exchange(socket_path, requests, wanted, stop=None):
    """Sends the requests, (key, bytes), so many at a time, and yields (key, Response, over) whenever one of them has
    got something. If it is over and the response is not done, its connection was lost. Closing this generator drops
    the requests that are under way, and so does the event `stop`."""
    running = Exchange(socket_path, requests, wanted)
    try:
        while stop is None or not stop.is_set():
            for key in running.open_more():
                yield key, Response(), True
            if running.count == 0:
                return
            for connection in running.wait(None if stop is None else STOP_SECONDS):
                yield connection.key, connection.response, connection.socket.fileno() < 0
    finally:
        running.close_all()


def exchange_ahead(socket_path, requests, wanted):
    """exchange() of streams in a thread that reads on, however slowly its results are used: the program drops the
    requests of clients that do not read. Yields (key, Response, events, done, over)."""
    results = queue.SimpleQueue()
    stop = threading.Event()

    def read_ahead():
        try:
            for key, response, over in exchange(socket_path, requests, wanted, stop):
                results.put((key, response, response.take_events(), response.done, over))
            results.put(None)
        except BaseException as error:  # raised where the results are used
            results.put(error)

    thread = threading.Thread(target=read_ahead, name='nvllm streams', daemon=True)
    thread.start()
    try:
        while True:
            result = results.get()
            if result is None:
                return
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        thread.join()
