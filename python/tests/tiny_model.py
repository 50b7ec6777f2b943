"""What the tests of the Python package share: the package itself, the program, and a model whose answers are known."""

import os
import subprocess
import sys
import tempfile
import time

sys.path[:0] = ['.', 'python']  # tests run in the root of Bazel's runfiles, or of the checkout
os.environ.setdefault('NVLLM_LAUNCH', 'launcher/nvllm-launch')
os.environ['PYTHONPATH'] = os.path.abspath('python')

from launcher.serve.clients import scripted_model

KEYWORDS = {'device': 'cpu', 'kv_cache_memory_bytes': '64M', 'max_num_seqs': 8}
HELLO = 'Hello there friend.'  # the answer to any prompt that is not in scripted_model.SCRIPTS
HELLO_IDS = [720, 721, 722, 702]
SOCKETS = tempfile.TemporaryDirectory()  # sockets of these engines only
os.environ['XDG_RUNTIME_DIR'] = SOCKETS.name
FOLDER = tempfile.TemporaryDirectory()
MODEL = FOLDER.name
scripted_model.write(MODEL, 'tokenizer/testdata/qwen.json')


def children(pid):
    """The processes that this one has forked: of nvllm-launch, its workers."""
    with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as file:
        return [int(each) for each in file.read().split()]


def is_running(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
            return file.read().rpartition(')')[2].split()[0] not in ('Z', 'X')
    except OSError:
        return False


def await_end(pids, seconds=60):
    """Those that run on after so long."""
    end = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.005)
    return [pid for pid in pids if is_running(pid)]


def left_behind():
    """What engines could leave: sockets, and shared memory. Tests in other sandboxes may share /dev/shm, where names
    tell the namespace of process IDs, or 0 if it is unknown."""
    ours = tuple(f'nvllm-{namespace}-' for namespace in (os.stat('/proc/self/ns/pid').st_ino, 0))
    return [*os.listdir(SOCKETS.name),
            *(name for name in os.listdir('/dev/shm') if name.removeprefix('sem.').startswith(ours))]


def start_python(code):
    """A Python of its own that runs the code, in which `llm` is an engine; and the lines that it prints."""
    head = f'from nvllm import *\nllm = LLM({MODEL!r}, tensor_parallel_size=2, **{KEYWORDS!r})\n'
    return subprocess.Popen([sys.executable, '-c', head + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
