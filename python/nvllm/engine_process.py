"""EngineProcess: nvllm-launch serve as a child process, from where the program is found to the end of its process.

It listens on a unix socket that only this user may use. Its standard input is a pipe whose writing end only this
process holds: however Python ends, the system closes that end, and the program ends with all its workers.
"""

import collections
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

from .errors import EngineDeadError, OptionError, StartError

PACKAGE = Path(__file__).resolve().parent
POLL_SECONDS = 0.005
END_SECONDS = 10  # time limit of a requested shutdown
DEATH_SECONDS = 10  # for the program to end by itself when a worker has died
KEPT_LINES = 200
MAX_SOCKET_PATH = 100  # the system's limit is 107

alive = weakref.WeakSet()
numbers = itertools.count(1)


def find_program():
    """Its path: $NVLLM_LAUNCH, beside this package, in the checkout around it, or on the PATH."""
    named = os.environ.get('NVLLM_LAUNCH')
    if named:
        path = shutil.which(named)
        if path is None:
            raise StartError(f'NVLLM_LAUNCH={named}: no program is there; set it to the path of nvllm-launch, or unset '
                             'it')
        return os.path.abspath(path)
    checkout = PACKAGE.parent.parent
    for path in (PACKAGE / 'bin' / 'nvllm-launch', checkout / 'build' / 'bin' / 'launcher' / 'nvllm-launch'):
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    found = shutil.which('nvllm-launch')
    if found:
        return os.path.abspath(found)
    is_checkout = (checkout / 'launcher' / 'main.cc').exists()
    fix = f'build it with {checkout}/nvllm-launch --version' if is_checkout else (
        'install the wheel of nvllm, or set NVLLM_LAUNCH to the path of nvllm-launch')
    raise StartError(f'nvllm-launch, the program that runs models, is neither in {PACKAGE / "bin"} nor on the PATH; '
                     f'{fix}')


class EngineProcess:
    """Used by any thread. `arguments`: of nvllm-launch serve, without those about the connection."""

    def __init__(self, arguments):
        self.owner = os.getpid()
        self.program = find_program()
        self.socket_path = new_socket_path()
        self.lines = collections.deque(maxlen=KEPT_LINES)
        self.ended = False
        self.why_dead = None  # an EngineDeadError, once it is known
        environment = {name: value for name, value in os.environ.items() if name != 'NVLLM_API_KEY'}
        command = [self.program, 'serve', *arguments, f'--uds={self.socket_path}', '--no-restart-workers',
                   '--exit-when-stdin-closes', '--max-num-queued-reqs=1000000', '--max-num-queued-tokens=1T',
                   '--max-request-bytes=1G',
                   '--max-unsent-bytes=1G']
        # In a process group of its own, so that Ctrl-C at a terminal interrupts the Python call but
        # not the engine.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, umask=0o077,
                                        stderr=subprocess.PIPE, env=environment, start_new_session=True)
        self.reader = threading.Thread(target=self.read_errors, name='nvllm errors', daemon=True)
        self.reader.start()
        alive.add(self)

    @property
    def pid(self):
        return self.process.pid

    def read_errors(self):
        """In a thread: passes on what the program says, and keeps the last lines."""
        with self.process.stderr as stream:
            for line in stream:
                text = line.decode(errors='replace').rstrip('\n')
                self.lines.append(text)
                try:
                    if sys.stderr is not None:
                        print(text, file=sys.stderr, flush=True)
                except (OSError, ValueError):  # its reader is gone
                    pass

    def await_ready(self, is_ready):
        """Returns when is_ready() does; raises a StartError, or an OptionError, if the program ends before that."""
        while True:
            if self.process.poll() is not None:
                self.end()
                raise self.start_error()
            if os.path.exists(self.socket_path) and is_ready():
                return
            time.sleep(POLL_SECONDS)

    def start_error(self):
        why = self.error_text()
        option = re.match(r'--([a-z-]+)', why)
        if option:
            return OptionError(why, option[1].replace('-', '_'))
        return StartError(f'the engine could not be started: {why or self.how_it_ended()}')

    def error_text(self):
        """The program's own last line, which says why a run has failed."""
        prefix = 'nvllm-launch: '
        said = [line[len(prefix):] for line in self.lines if line.startswith(prefix)]
        return said[-1] if said else ''

    def how_it_ended(self):
        code = self.process.returncode
        if code is not None and code < 0:
            return f'nvllm-launch (pid {self.pid}) was killed by {signal_name(-code)}'
        return f'nvllm-launch (pid {self.pid}) ended with exit code {code}'

    def dead(self):
        return self.ended or self.process.poll() is not None

    def death(self, reason=''):
        """The EngineDeadError for a request that failed as if the engine had died; None if it lives. Waits for the
        program's end where it may be about to end."""
        if self.ended:
            why = self.why_dead or EngineDeadError('it has been shut down')
            return EngineDeadError(f'the engine has ended: {why}; make another LLM', why.rank, why.pid)
        if self.owner != os.getpid():
            return EngineDeadError('the engine belongs to the process that has made it; make another LLM in this one')
        try:
            code = self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(1)
        self.end()
        self.why_dead = self.explain_death(code, reason)
        return self.why_dead

    def explain_death(self, code, reason):
        """reason: what a request was answered with, if it was."""
        if code < 0:
            return EngineDeadError(self.how_it_ended(), None, self.pid)
        # Exit codes: 3: a worker died; 4: one was stuck. In both cases the last line names it.
        message = (self.error_text() if code in (1, 3, 4) else '') or reason or self.how_it_ended()
        worker = re.search(r'rank (\d+) \(pid (\d+)\)', f'{message} {reason}')
        if worker:
            return EngineDeadError(message, int(worker[1]), int(worker[2]))
        return EngineDeadError(message, None, self.pid)

    def end(self):
        """Ends the program and all its workers, and returns when they have ended."""
        if self.ended or self.owner != os.getpid():
            return
        self.ended = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if not self.ends_within(END_SECONDS):
            self.close_lifeline()
            if not self.ends_within(END_SECONDS):
                self.process.kill()
                self.process.wait()
        self.close_lifeline()
        self.reader.join(1)
        try:
            os.unlink(self.socket_path)  # it still exists if the program was killed
        except OSError:
            pass

    def ends_within(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close_lifeline(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'signal {number}'


def new_socket_path():
    name = f'nvllm-{os.getpid()}-{next(numbers)}-{os.urandom(4).hex()}.sock'
    for folder in (os.environ.get('XDG_RUNTIME_DIR'), tempfile.gettempdir(), '/tmp'):
        if folder and os.access(folder, os.W_OK) and len(os.path.join(folder, name)) <= MAX_SOCKET_PATH:
            return os.path.join(folder, name)
    raise StartError(f'{tempfile.gettempdir()}: no socket can be made there; set TMPDIR to a folder with a short path')


def connect(path):
    """A connection to the program; raises an OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def let_go_in_child():
    """A forked child must not keep the engines of its parent alive."""
    for process in list(alive):
        process.close_lifeline()


os.register_at_fork(after_in_child=let_go_in_child)
