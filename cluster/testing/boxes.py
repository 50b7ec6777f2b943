"""Two boxes on one machine, made of namespaces: own network, host name, processes, /dev/shm and
temporary directory each, joined by a virtual cable; the clock of box B is ahead. Open MPI starts tasks on them: the one
of PATH, or whose mpirun NVLLM_MPIRUN names.

    enter(sys.argv)            first of all: goes on inside of box A, or exits with the reason why not
    with Boxes() as boxes:
        run = boxes.mpirun([program, 'generate', ...])

Everything ends with the process that called enter(): it is the init of box A, which holds box B.
"""
import datetime
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

INSIDE = 'NVLLM_INSIDE_BOX_A'
MPIRUN = os.environ.get('NVLLM_MPIRUN') or 'mpirun'
ADDRESSES = ['10.77.0.1', '10.77.0.2']
NAMESPACES = ['--net', '--uts', '--ipc', '--mount', '--pid', '--fork', '--kill-child']
SECONDS_AHEAD = 1000  # box B's clock; what mixes up times of the two is off by as much
OTHER_CLOCK = ['--time', '--monotonic', str(SECONDS_AHEAD)]
KEEPALIVE = ['--mca', 'oob_tcp_keepalive_time', '2', '--mca', 'oob_tcp_keepalive_intvl', '1',
             '--mca', 'oob_tcp_keepalive_probes']
# mpirun 4.1 waits for a second between its SIGTERM and its SIGKILL, several times.
NO_PATIENCE = ['--mca', 'odls_base_sigkill_timeout', '0']
# What Open MPI's processes are called: mpirun itself, which in 5.0 becomes another program, and its daemon.
PROCESSES = {'4.1': ('mpirun', 'orted'), '5.0': ('prterun', 'prted')}


def mpi_version():
    """"4.1.4", say; empty: it is not Open MPI's."""
    # Open MPI 5.0 says nothing to whom it finds no home of.
    text = subprocess.run([MPIRUN, '--version'], capture_output=True, text=True,
                          env={'HOME': '/', **os.environ}).stdout
    found = re.search(r'\(Open MPI\) ([\d.]+)', text)
    return found.group(1) if found else ''


@functools.cache
def process_names():
    """Of mpirun and its daemon; None: of that version they are not known."""
    return PROCESSES.get('.'.join(mpi_version().split('.')[:2]))


def why_not():
    """What this machine lacks for boxes; empty: nothing."""
    for program, package in [(MPIRUN, 'openmpi-bin'), ('ip', 'iproute2'), ('nsenter', 'util-linux')]:
        if not shutil.which(program):
            return f'there is no {program}; install {package}'
    if not process_names():
        return f'{MPIRUN} is not that of Open MPI {" or ".join(PROCESSES)}, but {mpi_version() or "of another MPI"}'
    tried = subprocess.run(['unshare', '--user', '--map-root-user', *NAMESPACES, *OTHER_CLOCK, 'true'],
                           capture_output=True, text=True)
    return '' if tried.returncode == 0 else f'no namespaces: {tried.stderr.strip()}'


def skip(reason):
    """Ends the test for that reason, if there is one."""
    if not reason:
        return
    print('skipped:', reason)
    report = os.environ.get('XML_OUTPUT_FILE')
    if report:
        name = os.environ.get('TEST_TARGET', 'boxes')
        pathlib.Path(report).write_text(
            f'<testsuites><testsuite name="{name}"><testcase name="two boxes">'
            f'<skipped message="{reason.replace(chr(34), chr(39))}"/></testcase></testsuite></testsuites>')
    sys.exit(0)


def enter(arguments):
    if os.environ.get(INSIDE):
        return
    skip(why_not())
    done = subprocess.run(['unshare', '--user', '--map-root-user', *NAMESPACES,
                           sys.executable, *arguments], env={**os.environ, INSIDE: '1'})
    sys.exit(done.returncode)


def report(command, **found):
    """Prints what a benchmark over these boxes found, as JSON, and on what."""
    cpu = re.search(r'^model name\s*: (.*)', pathlib.Path('/proc/cpuinfo').read_text(), re.MULTILINE)
    print(json.dumps({
        'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'command': command,
        'hardware': {'cpu': cpu.group(1) if cpu else '', 'cores': os.cpu_count(),
                     'boxes': 'two, of namespaces on this machine', 'mpi': f'Open MPI {mpi_version()}'},
        'load_average': os.getloadavg(), **found}, indent=1))


def sh(*command):
    subprocess.run(command, check=True)


class Process:
    """One of /proc: pid as box A sees it."""

    def __init__(self, pid):
        self.pid = pid
        self.name = pathlib.Path(f'/proc/{pid}/comm').read_text().strip()
        status = pathlib.Path(f'/proc/{pid}/status').read_text()
        self.parent = int(status.split('PPid:')[1].split()[0])
        self.net = os.readlink(f'/proc/{pid}/ns/net')
        self.state = status.split('State:')[1].split()[0]


def processes():
    found = []
    for entry in os.listdir('/proc'):
        try:
            if entry.isdigit():
                found.append(Process(int(entry)))
        except (OSError, IndexError):
            pass  # it has ended meanwhile
    return [process for process in found if process.state != 'Z']


class Boxes:
    NAMES = ['boxA', 'boxB']

    def __init__(self, one_clock=False):
        self.one_clock = one_clock

    def __enter__(self):
        socket.sethostname('boxA')
        sh('mount', '-t', 'proc', 'proc', '/proc')
        sh('mount', '-t', 'tmpfs', 'tmpfs', '/dev/shm')
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='b', dir='/tmp'))
        for name in self.NAMES:
            (self.folder / name).mkdir()
        self.starter, self.daemon = process_names()
        # Of 5.0.11 not even `mpirun cat </dev/null` ends.
        self.input_ends = not mpi_version().startswith('5.0.')
        self.init = subprocess.Popen(
            ['unshare', *NAMESPACES, *([] if self.one_clock else OTHER_CLOCK), 'sh', '-c',
             'hostname boxB; mount -t proc proc /proc; mount -t tmpfs tmpfs /dev/shm; echo up;'
             ' exec sleep 3000'], stdout=subprocess.PIPE)
        self.init.stdout.readline()
        self.pid = next(p.pid for p in processes() if p.parent == self.init.pid)
        sh('ip', 'link', 'add', 'vA', 'type', 'veth', 'peer', 'name', 'vB', 'netns', str(self.pid))
        enter_b = ['nsenter', '-t', str(self.pid), '-n', '-u', '-i', '-p', '-m', *([] if self.one_clock else ['-T'])]
        for prefix, device, address in [([], 'vA', ADDRESSES[0]), (enter_b, 'vB', ADDRESSES[1])]:
            sh(*prefix, 'ip', 'addr', 'add', f'{address}/24', 'dev', device)
            sh(*prefix, 'ip', 'link', 'set', device, 'up')
            sh(*prefix, 'ip', 'link', 'set', 'lo', 'up')
        self.enter_b = enter_b
        self.agent = self.folder / 'agent'
        self.agent.write_text(
            '#!/bin/sh\nshift\n'
            f'exec {" ".join(enter_b)} env TMPDIR={self.folder}/boxB sh -c "$*"\n')
        self.agent.chmod(0o755)
        self.nets = [os.readlink('/proc/self/ns/net'), os.readlink(f'/proc/{self.pid}/ns/net')]
        return self

    def __exit__(self, *unused):
        self.init.kill()
        self.init.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def mpirun(self, command, tasks_on_one=False, patient=True, talks=False, probes=3, environment=()):
        """probes: without an answer, a second apart, after which mpirun takes a box for lost; 0: no keepalive."""
        hosts = f'{ADDRESSES[0]}:2' if tasks_on_one else ','.join(f'{a}:1' for a in ADDRESSES)
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix='t', dir=self.folder / 'boxA'))
        for left in (self.folder / 'boxB').iterdir():
            shutil.rmtree(left)  # by an earlier run
        call = [MPIRUN, '--allow-run-as-root', '--mca', 'plm_rsh_agent', str(self.agent),
                '--host', hosts, '--bind-to', 'none', '-n', '2']
        call += [] if tasks_on_one else ['--map-by', 'ppr:1:node']
        call += [*KEEPALIVE, str(probes)] if probes else []
        call += [] if patient else NO_PATIENCE
        call += ['--mca', 'btl_tcp_if_include', '10.77.0.0/24']
        return subprocess.Popen(
            [*call, *command], stdin=subprocess.PIPE if talks else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={'PATH': os.environ['PATH'], 'HOME': str(self.folder), 'TMPDIR': str(self.tmp),
                 'HWLOC_COMPONENTS': '-gl', **dict(environment)})

    def named(self, name, box=None):
        return [p for p in processes()
                if p.name == name and (box is None or p.net == self.nets[box])]

    def programs(self, box=None):
        return self.named('nvllm-launch', box)

    def launcher(self, box):
        own = {p.pid for p in self.programs(box)}
        return next((p for p in self.programs(box) if p.parent not in own), None)

    def workers(self, box):
        """The link first, then the ranks, in the order in which they were forked."""
        launcher = self.launcher(box)
        return sorted((p for p in self.programs(box) if launcher and p.parent == launcher.pid),
                      key=lambda p: p.pid)

    def joined(self):
        """Whether the link of box B is connected with that of box A."""
        workers = self.workers(1)
        if not workers:
            return False
        link = f'/proc/{workers[0].pid}'
        try:
            own = {os.readlink(f'{link}/fd/{fd}') for fd in os.listdir(f'{link}/fd')}
            connections = [line.split() for line in pathlib.Path(f'{link}/net/tcp').read_text().splitlines()[1:]]
        except OSError:
            return False  # it has ended meanwhile, or closed one
        box_a = socket.inet_aton(ADDRESSES[0])[::-1].hex().upper()
        return any(fields[2].startswith(f'{box_a}:') and fields[3] == '01' and f'socket:[{fields[9]}]' in own
                   for fields in connections)

    def cut(self):
        sh('ip', 'link', 'set', 'vA', 'down')

    def connect(self):
        sh('ip', 'link', 'set', 'vA', 'up')
        for _ in range(100):
            try:
                socket.create_connection((ADDRESSES[1], 1), timeout=1)
            except ConnectionRefusedError:
                return  # by box B
            except OSError:
                time.sleep(0.05)

    def gone(self, limit):
        """Waits until no process is left of a run; how long that took, or None."""
        start = time.monotonic()
        while time.monotonic() - start < limit:
            if not any(self.named(name) for name in ('nvllm-launch', self.daemon, self.starter)):
                return time.monotonic() - start
            time.sleep(0.01)
        return None

    def kill_rest(self):
        for name in (self.starter, self.daemon, 'nvllm-launch'):
            for process in self.named(name):
                os.kill(process.pid, signal.SIGKILL)

    def session_folders(self):
        """What a run has left in the temporary directories of both boxes; a moment is given to who removes it."""
        folders = [self.tmp, self.folder / 'boxB']
        for _ in range(150):
            found = [str(entry) for folder in folders for entry in folder.iterdir()]
            if not found:
                break
            time.sleep(0.02)
        return found

    def left(self):
        """Files that a run has left in shared memory."""
        found = []
        for box, root in enumerate(['', f'/proc/{self.pid}/root']):
            found += [f'{self.NAMES[box]}: /dev/shm/{name}' for name in os.listdir(f'{root}/dev/shm')]
        return found
