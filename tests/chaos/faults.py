"""What is done to a running command, and the surroundings in which it starts."""

import os
import resource
import signal
import subprocess
import time

import processes


def moment(random, longest):
    """Seconds until a fault strikes: from at once to the end of a short run, early moments as often as late ones."""
    return 0.0 if random.random() < 0.1 else 0.001 * (longest / 0.001) ** random.random()


def pause(seconds):
    """Sleeps, more precisely than the scheduler would."""
    end = time.monotonic() + seconds
    if seconds > 0.002:
        time.sleep(seconds - 0.001)
    while time.monotonic() < end:
        pass


class Fault:
    """What is done to a command; as it stands, something that is there from the start."""

    wrapper = []  # words before the program's
    bound = 2.0  # seconds until the end; None: it goes on as if nothing had happened

    def __init__(self, random, command):
        self.after = moment(random, command.place.longest)
        self.victim = None  # the worker that is to be named

    def strike(self, launcher):
        """Returns whether it hit something that ran."""
        return True

    def good_ends(self, command):
        """Exit codes that are right if the fault struck before the command was done."""
        return ()


class Nothing(Fault):
    name = 'nothing'
    bound = None

    def strike(self, launcher):
        return False


class WorkerSignal(Fault):
    """A signal to one worker, counted from when the first one is there."""

    def __init__(self, random, command):
        super().__init__(random, command)
        self.signal = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM,
                                     signal.SIGSTOP, signal.SIGSTOP))
        self.name = f'{self.signal.name} to a worker'
        self.choice = random.random()
        if self.signal == signal.SIGSTOP:
            self.bound += 2.0  # the step timeout

    def strike(self, launcher):
        while not processes.children(launcher.pid):
            if launcher.poll() is not None:
                return False
            time.sleep(0.0005)
        pause(self.after)
        workers = processes.children(launcher.pid)
        if not workers:
            return False
        self.victim = workers[int(self.choice * len(workers))]
        try:
            os.kill(self.victim, self.signal)
        except ProcessLookupError:
            self.victim = None
        return self.victim is not None

    def good_ends(self, command):
        return (4,) if self.signal == signal.SIGSTOP else (3,)


class LauncherSignal(Fault):
    """A signal to the launcher, or to all as a terminal sends it."""

    def __init__(self, random, command):
        super().__init__(random, command)
        self.signal = random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGKILL))
        self.whole_group = self.signal != signal.SIGKILL and random.random() < 0.3
        self.name = f'{self.signal.name} to {"the whole group" if self.whole_group else "the launcher"}'

    def strike(self, launcher):
        pause(self.after)
        if launcher.poll() is not None:
            return False
        (os.killpg if self.whole_group else os.kill)(launcher.pid, self.signal)
        return True

    def good_ends(self, command):
        # A signal in the first milliseconds meets a program that does not know it yet.
        return (128 + self.signal, -self.signal, *((0,) if command.stays else ()))


class Pause(Fault):
    """The launcher, or all, are stopped and go on: as if nothing had happened."""

    bound = None

    def __init__(self, random, command):
        super().__init__(random, command)
        self.whole_group = random.random() < 0.5
        self.seconds = random.choice((0.05, 0.3, 1.5))
        self.name = f'{"all" if self.whole_group else "the launcher"} stopped for {self.seconds} s'

    def strike(self, launcher):
        pause(self.after)
        send = os.killpg if self.whole_group else os.kill
        try:
            send(launcher.pid, signal.SIGSTOP)
            time.sleep(self.seconds)
            send(launcher.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        return False


class ClosedReader(Fault):
    """Nobody reads its output any more."""

    name = 'reader of standard output gone'
    bound = None

    def strike(self, launcher):
        pause(self.after)
        launcher.stdout.close()
        return True

    def good_ends(self, command):
        return (141, *command.good_ends)


class FullDisk(Fault):
    """Its standard output takes nothing."""

    name = 'standard output on a full disk'
    bound = None
    wrapper = ['sh', '-c', 'exec "$@" >/dev/full', 'sh']

    def good_ends(self, command):
        return command.good_ends if command.stays else (1,)  # a server writes nothing there


class FullSharedMemory(Fault):
    """A /dev/shm that has no room."""

    name = '/dev/shm full'
    bound = None
    wrapper = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', 'sh']

    def good_ends(self, command):
        return (1, 2)


FAULTS = [*[WorkerSignal] * 4, *[LauncherSignal] * 4, Pause, ClosedReader, FullDisk, FullSharedMemory, Nothing]


def possible_faults():
    """Without those that this machine does not allow, which it names."""
    try:
        allowed = subprocess.run(['unshare', '--mount', 'true'], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if allowed:
        return FAULTS
    print(f'not tried: {FullSharedMemory.name}: this system lets this user make no namespaces')
    return [kind for kind in FAULTS if kind is not FullSharedMemory]


# What a parent may leave behind. Each runs in the child before the program starts.
def _ignore(*numbers):
    return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]


def _closed(*numbers):
    return lambda: [os.close(number) for number in numbers]


def _limit(which, value):
    return lambda: resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


def _removed_folder(path):
    def enter():
        os.mkdir(path)
        os.chdir(path)
        os.rmdir(path)
    return enter


def surroundings(random, folder):
    """(name, preparation, environment) of the surroundings of a run; mostly ordinary ones."""
    ordinary = ('', lambda: None, {})
    odd = [
        ('SIGCHLD ignored', _ignore(signal.SIGCHLD), {}),
        ('SIGPIPE ignored', _ignore(signal.SIGPIPE), {}),
        ('SIGINT and SIGQUIT ignored', _ignore(signal.SIGINT, signal.SIGQUIT), {}),
        ('signals blocked', lambda: signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)), {}),
        ('standard input closed', _closed(0), {}),
        ('standard error closed', _closed(0, 2), {}),
        ('umask 777', lambda: os.umask(0o777), {}),
        ('a small stack', _limit(resource.RLIMIT_STACK, 64 << 10), {}),
        ('few files', _limit(resource.RLIMIT_NOFILE, 256), {}),
        ('working folder removed', _removed_folder(f'{folder}/removed'), {}),
        ('no HOME, LANG and TZ', lambda: None, {'HOME': None, 'LANG': None, 'TZ': None}),
        ('TMPDIR that is not there', lambda: None, {'TMPDIR': '/no/such/folder'}),
    ]
    return random.choice(odd) if random.random() < 0.3 else ordinary


def start(program, command, fault, token, prepared, output):
    """Starts the command; its standard error goes to `output`."""
    _, prepare, changes = prepared
    environment = {**os.environ, processes.TOKEN: token, **{k: v for k, v in changes.items() if v is not None}}
    for name in (name for name, value in changes.items() if value is None):
        environment.pop(name, None)
    launcher = subprocess.Popen([*fault.wrapper, program, *command.words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output,
                                env=environment, preexec_fn=prepare, start_new_session=True, restore_signals=False)
    try:
        launcher.stdin.write(command.text.encode())
        launcher.stdin.close()
    except BrokenPipeError:
        pass
    return launcher
