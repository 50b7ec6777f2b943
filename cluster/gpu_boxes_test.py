#!/usr/bin/env python3
"""Groups over two boxes with a GPU each: two tasks of mpirun on this machine, which has two GPUs or more. What they
answer, and how they fail. Skipped, with the reason, on other machines.

NVLLM_LAUNCH: the program. NVLLM_GOLDEN_MODELS: the folder with qwen3-uneven. NVLLM_BOXES_NETWORK: only 'peer' (NCCL
takes what joins the GPUs) or 'sockets' (NCCL is told that the boxes are two machines). By default both are tried.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / 'testing'))
import boxes as two  # noqa: E402

PROGRAM = str(pathlib.Path(os.environ.get('NVLLM_LAUNCH', 'launcher/nvllm-launch')).resolve())
MODELS = pathlib.Path(os.environ.get('NVLLM_GOLDEN_MODELS', 'tests/data/golden-models')).resolve()
# Each task sees one of the GPUs. The second one is configured as another machine if NCCL should
# treat it so.
TASK = ('export CUDA_VISIBLE_DEVICES=$(echo $GPUS | cut -d, -f$((OMPI_COMM_WORLD_RANK + 1)));'
        ' test -z "$SOCKETS" || export NCCL_HOSTID=box$OMPI_COMM_WORLD_RANK; exec "$0" "$@"')
NETWORKS = {
    'peer': {},
    'sockets': {'SOCKETS': '1', 'NCCL_NET': 'Socket', 'NCCL_SOCKET_IFNAME': 'lo'},
}
TRIED = [name for name in NETWORKS if os.environ.get('NVLLM_BOXES_NETWORK', name) == name]
ENVIRONMENT = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'HWLOC_COMPONENTS': '-gl',
               'OMPI_MCA_odls_base_sigkill_timeout': '0', 'PRTE_MCA_odls_base_sigkill_timeout': '0'}
SELFTEST = ['selftest', '--device', 'cuda', '--tp', '2', '--seconds', '60']


def gpus():
    """Of this machine, two for us, as CUDA_VISIBLE_DEVICES names them."""
    found = os.environ.get('CUDA_VISIBLE_DEVICES')
    if found is None and shutil.which('nvidia-smi'):
        listed = subprocess.run(['nvidia-smi', '--query-gpu=index', '--format=csv,noheader'], capture_output=True,
                                text=True)
        found = ','.join(listed.stdout.split()) if listed.returncode == 0 else ''
    return [gpu for gpu in (found or '').split(',') if gpu][:2]


def why_not():
    if not shutil.which(two.MPIRUN):
        return f'there is no {two.MPIRUN}; install openmpi-bin'
    if not two.process_names():
        return f'{two.MPIRUN} is of no Open MPI whose processes are known'
    return '' if len(gpus()) == 2 else f'needs 2 GPUs, found {len(gpus())}'


def generate(*more):
    return ['generate', '--model', str(MODELS / 'qwen3-uneven'), '--device', 'cuda', '--dtype', 'float32',
            '--temperature', '0', '--ignore-eos', '--max-tokens', '24', '--logprobs', '0',
            '--kv-cache-memory-bytes', '64M', '--prompt-ids', '1,2,3,4,5,6,7',
            '--prompt-ids', ','.join(str(1 + i % 90) for i in range(300)), *more]


def long_stages(*more):
    return ['generate', '--model', str(MODELS / 'qwen3-uneven'), '--device', 'cuda', '--load-format', 'dummy',
            '--hf-overrides', '{"max_position_embeddings": 200000}', '--max-model-len', '190000',
            '--kv-cache-memory-bytes', '1G', '--tp', '1', '--pp', '2', '--prompt-ids', '1,2,3', '--ignore-eos',
            '--max-tokens', '180000', *more]


def answers(text):
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line['token_ids'], [token['logprob'] for token in line['logprobs']]) for line in lines]


def used_memory():
    """MiB of our GPUs."""
    listed = subprocess.run(['nvidia-smi', '-i', ','.join(gpus()), '--query-gpu=memory.used',
                             '--format=csv,noheader,nounits'], capture_output=True, text=True)
    return sum(int(number) for number in listed.stdout.split())


class GpuBoxesTest(unittest.TestCase):
    def setUp(self):
        self.shared_memory = set(os.listdir('/dev/shm'))
        self.memory = used_memory()
        self.tmp = tempfile.mkdtemp(prefix='b', dir='/tmp')

    def tearDown(self):
        for process in self.ours(two.process_names()[0]) + self.ours('nvllm-launch'):
            os.kill(process.pid, signal.SIGKILL)
        shutil.rmtree(self.tmp, ignore_errors=True)

    def ours(self, name):
        """Processes of this test: they have its temporary directory."""
        mark = f'TMPDIR={self.tmp}'.encode()
        found = []
        for process in two.processes():
            try:
                if process.name == name and mark in pathlib.Path(f'/proc/{process.pid}/environ').read_bytes():
                    found.append(process)
            except OSError:
                pass  # it has ended meanwhile
        return found

    def mpirun(self, command, network='peer', tasks=2, together=False):
        """together: all tasks are given the same GPU."""
        chosen = gpus()[:1] * 2 if together else gpus()
        return subprocess.Popen(
            [two.MPIRUN, '--bind-to', 'none', '-n', str(tasks), 'sh', '-c', TASK, PROGRAM, *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **ENVIRONMENT, **NETWORKS[network], 'GPUS': ','.join(chosen), 'TMPDIR': self.tmp})

    def run_on_boxes(self, command, **how):
        run = self.mpirun(command, **how)
        try:
            output, errors = run.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.tearDown()
            self.fail(f'it does not end: {run.communicate()[1]}')
        return run.returncode, output, errors

    def run_here(self, command):
        run = subprocess.run([PROGRAM, *command], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    # --- answers ---

    def test_ranks_over_two_boxes_answer_as_one_box(self):
        for parallel in (['--tp', '2'], ['--pp', '2', '--tp', '1']):
            here = answers(self.run_here(generate(*parallel, '--collectives', 'nccl')))
            # A sum of two has the same bits in any order.
            self.assertEqual(here, answers(self.run_here(generate(*parallel))))
            self.assertEqual([tokens for tokens, _ in here],
                             [tokens for tokens, _ in answers(self.run_here(generate('--tp', '1')))])
            for network in TRIED:
                with self.subTest(parallel=parallel, network=network):
                    code, output, errors = self.run_on_boxes(generate(*parallel), network=network)
                    self.assertEqual(code, 0, errors)
                    self.assertEqual(answers(output), here, errors)

    def test_calls_and_collectives_of_all_kinds(self):
        for network in TRIED:
            with self.subTest(network=network):
                code, output, errors = self.run_on_boxes(['selftest', '--device', 'cuda', '--json'], network=network)
                self.assertEqual(code, 0, errors)
                report = json.loads(output)
                self.assertTrue(report['passed'])
                self.assertEqual(report['collectives'], 'nccl')
                self.assertEqual([rank['box'] for rank in report['ranks']], [0, 1])

    def test_one_task_of_mpirun_is_one_box(self):
        code, output, errors = self.run_on_boxes(['selftest', '--device', 'cuda', '--tp', '1', '--json'], tasks=1)
        self.assertEqual(code, 0, errors)
        self.assertTrue(json.loads(output)['passed'])

    # --- refusals ---

    def test_two_tasks_that_would_use_the_same_gpu(self):
        code, output, errors = self.run_on_boxes(SELFTEST, together=True)
        self.assertNotEqual(code, 0)
        self.assertEqual(output, '')
        self.assertRegex(errors, r'box 0 \(.*\) and box 1 \(.*\) would both use GPU-')

    def test_two_tasks_without_gpus(self):
        code, _, errors = self.run_on_boxes(['selftest', '--device', 'cpu', '--tp', '2'])
        self.assertNotEqual(code, 0)
        self.assertIn('mpirun has started several tasks on one machine', errors)

    # --- failures ---

    def start_long(self, command, network='sockets'):
        """The run, and its launchers and workers (the link first) by box."""
        run = self.mpirun(command, network)
        end = time.monotonic() + 40
        while time.monotonic() < end:
            time.sleep(0.05)
            found = self.ours('nvllm-launch')
            self.launchers = sorted((p for p in found if p.parent == run.pid), key=lambda p: p.pid)
            self.workers = [sorted((p for p in found if p.parent == launcher.pid), key=lambda p: p.pid)
                            for launcher in self.launchers]
            if [len(workers) for workers in self.workers] == [2, 2] and used_memory() > self.memory + 700:
                time.sleep(3)  # until it is at work
                if run.poll() is None:
                    return run
        self.tearDown()
        self.fail(f'it does not start: {run.communicate()}')

    def all_gone(self, run, limit):
        """Everything is gone within the limit; what was written."""
        start = time.monotonic()
        while self.ours(two.process_names()[0]) or self.ours('nvllm-launch'):
            if time.monotonic() - start > limit:
                left = [(p.pid, p.name, p.parent) for p in self.ours('nvllm-launch')]
                self.tearDown()
                self.fail(f'left after {limit} s: {left}: {run.communicate()[1]}')
            time.sleep(0.01)
        took = time.monotonic() - start
        errors = run.communicate()[1]
        print(f'{self.id().split(".")[-1]}: all gone after {took:.2f} s', file=sys.stderr)
        self.assertLessEqual(set(os.listdir('/dev/shm')), self.shared_memory)
        end = time.monotonic() + 5
        while used_memory() > self.memory + 64 and time.monotonic() < end:
            time.sleep(0.2)
        self.assertLessEqual(used_memory(), self.memory + 64)
        return errors

    def fails(self, command, box, process, sent, limit=8):
        """Sends a signal to a process of a box (None: its launcher) while it works; what was written."""
        run = self.start_long(command)
        victim = self.launchers[box] if process is None else self.workers[box][process]
        os.kill(victim.pid, sent)
        errors = self.all_gone(run, limit)
        self.assertNotEqual(run.returncode, 0)
        return errors

    def test_a_worker_of_the_other_box_is_killed(self):
        for command in (SELFTEST, long_stages()):
            with self.subTest(command=command[0]):
                errors = self.fails(command, 1, 1, signal.SIGKILL)
                self.assertRegex(errors, r'nvllm-launch: rank 1 \(pid \d+ on box 1 \(.*\)\) died: killed by SIGKILL')

    def test_a_worker_of_the_first_box_is_killed(self):
        errors = self.fails(SELFTEST, 0, 1, signal.SIGKILL)
        self.assertRegex(errors, r'nvllm-launch: rank 0 \(pid \d+ on box 0 \(.*\)\) died: killed by SIGKILL')

    def test_a_stopped_worker_of_the_other_box_is_named(self):
        for command in (SELFTEST, long_stages()):
            with self.subTest(command=command[0]):
                errors = self.fails([*command, '--step-timeout', '2'], 1, 1, signal.SIGSTOP, limit=12)
                self.assertRegex(errors, r'nvllm-launch: rank 1 \(pid \d+ on box 1 \(.*\)\) is alive but stuck '
                                         r'\(stopped by SIGSTOP\)')

    def test_a_link_is_killed(self):
        errors = self.fails(SELFTEST, 1, 0, signal.SIGKILL)
        self.assertRegex(errors, r'the link to the other boxes \(pid \d+\) died: killed by SIGKILL')

    def test_a_launcher_is_killed(self):
        self.fails(SELFTEST, 1, None, signal.SIGKILL)

    def test_mpirun_is_killed(self):
        run = self.start_long(SELFTEST)
        os.kill(run.pid, signal.SIGKILL)
        self.all_gone(run, 8)

    def test_a_signal_to_the_first_box_ends_all_with_its_exit_code(self):
        run = self.start_long(long_stages())
        os.kill(self.launchers[0].pid, signal.SIGTERM)
        errors = self.all_gone(run, 8)
        self.assertEqual(run.returncode, 128 + signal.SIGTERM, errors)
        self.assertNotIn('died', errors)


if __name__ == '__main__':
    two.skip(why_not())
    unittest.main(verbosity=2)
