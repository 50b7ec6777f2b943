"""What /proc, /dev/shm and the GPUs' driver say about processes, names and memory."""

import os
import subprocess
from pathlib import Path

TOKEN = 'NVLLM_CHAOS'  # a variable that a run's processes inherit


def is_running(pid):
    """Whether a process is there that is no zombie."""
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except (OSError, IndexError):
        return False


def children(pid):
    """A process's living children in the order in which they were started."""
    try:
        listed = Path(f'/proc/{pid}/task/{pid}/children').read_text().split()
    except OSError:
        return []
    return [int(child) for child in listed if is_running(int(child))]


def processes_of(token):
    """The living processes that were started with the token."""
    wanted, found = f'{TOKEN}={token}\0'.encode(), []
    for folder in Path('/proc').iterdir():
        if folder.name.isdigit():
            try:
                has_token = wanted in (folder / 'environ').read_bytes()
            except OSError:
                continue
            if has_token and is_running(folder.name):
                found.append(int(folder.name))
    return found


def shared_names():
    """The names in /dev/shm that are the program's."""
    return {name for name in os.listdir('/dev/shm') if name.startswith(('nvllm', 'sem.nvllm'))}


def gpu_memory():
    """MiB that are taken on each GPU, by whomever."""
    listed = subprocess.run(['nvidia-smi', '--query-gpu=memory.used', '--format=csv,noheader,nounits'], check=True,
                            capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]
