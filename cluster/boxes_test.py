#!/usr/bin/env python3
"""Groups over two boxes (cluster/testing/boxes.py): what they answer, and how they fail."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / 'testing'))
import boxes as two  # noqa: E402

PROGRAM = str(pathlib.Path('launcher/nvllm-launch').resolve())
MODEL = pathlib.Path('tests/data/golden-models/qwen3-uneven').resolve()
TOKENIZER = pathlib.Path('tokenizer/testdata/qwen.json').resolve()
TEMPLATE = '{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}'
LONG = ['selftest', '--device', 'cpu', '--tp', '3', '--seconds', '60']
ENVIRONMENT = {'OMP_WAIT_POLICY': 'passive'}


def generate(ranks, *more, model=MODEL):
    return [PROGRAM, 'generate', '--model', str(model), '--device', 'cpu', '--tp', str(ranks),
            '--dtype', 'float32', '--temperature', '0', '--ignore-eos', '--max-tokens', '24',
            '--logprobs', '0', '--kv-cache-memory-bytes', '64M', '--prompt-ids', '1,2,3,4,5,6,7',
            '--prompt-ids', ','.join(str(1 + i % 90) for i in range(300)), *more]


def text_model(folder):
    """Arguments with a model of random weights that speaks text, in that folder."""
    shutil.copy(MODEL.parent / 'qwen3-gqa-tied/config.json', folder / 'config.json')
    shutil.copy(TOKENIZER, folder / 'tokenizer.json')
    (folder / 'chat_template.jinja').write_text(TEMPLATE)
    return ['--model', str(folder), '--device', 'cpu', '--load-format', 'dummy', '--dtype', 'float32',
            '--hf-overrides', '{"vocab_size": 705, "max_position_embeddings": 100000}',
            '--kv-cache-memory-bytes', '64M', '--tp', '1', '--pp', '2']


def answers(text):
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line['token_ids'], [token['logprob'] for token in line['logprobs']]) for line in lines]


class BoxesTest(unittest.TestCase):
    at_work = staticmethod(lambda: 0.4)  # seconds from a group's start to its failure
    took = None                          # from the failure until all were gone

    @classmethod
    def setUpClass(cls):
        cls.boxes = two.Boxes().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.boxes.__exit__()

    def tearDown(self):
        self.boxes.kill_rest()
        self.assertIsNotNone(self.boxes.gone(5))

    def run_on_boxes(self, command, talk=None, **how):
        run = self.boxes.mpirun(command, environment=ENVIRONMENT, talks=talk is not None, **how)
        try:
            output, errors = run.communicate(talk, timeout=30)
        except subprocess.TimeoutExpired:
            self.boxes.kill_rest()
            self.fail(f'it does not end: {run.communicate()[1]}')
        return run.returncode, output, errors

    def refuses(self, command, words, **how):
        code, output, errors = self.run_on_boxes(command, **how)
        self.assertNotEqual(code, 0)
        self.assertEqual(output, '')
        self.assertIn(words, errors)
        self.assertIsNotNone(self.boxes.gone(5))

    # --- answers ---

    def test_two_and_three_ranks_over_two_boxes_answer_as_one_box(self):
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                here = subprocess.run(generate(ranks), capture_output=True, text=True,
                                      env={**os.environ, **ENVIRONMENT})
                one = subprocess.run(generate(1), capture_output=True, text=True,
                                     env={**os.environ, **ENVIRONMENT})
                code, output, errors = self.run_on_boxes(generate(ranks))
                self.assertEqual(code, 0, errors)
                # Identical bits, because sums are computed in the same order.
                self.assertEqual(answers(output), answers(here.stdout), errors)
                self.assertEqual([tokens for tokens, _ in answers(output)],
                                 [tokens for tokens, _ in answers(one.stdout)])
                self.assertIsNotNone(self.boxes.gone(2))
                self.assertEqual(self.boxes.left(), [])
                self.assertEqual(self.boxes.session_folders(), [])

    def test_stages_over_two_boxes_answer_as_one_box(self):
        for ranks, stages in ((1, 2), (2, 2)):
            with self.subTest(ranks=ranks, stages=stages):
                command = generate(ranks, '--pp', str(stages))
                here = subprocess.run(command, capture_output=True, text=True,
                                      env={**os.environ, **ENVIRONMENT})
                code, output, errors = self.run_on_boxes(command)
                self.assertEqual(code, 0, errors)
                self.assertEqual(answers(output), answers(here.stdout), errors)
                self.assertIsNotNone(self.boxes.gone(2))
                self.assertEqual(self.boxes.left(), [])

    def test_a_benchmark_finds_the_numbers_of_one_box(self):
        command = [PROGRAM, 'bench', 'throughput', '--model', str(MODEL), '--device', 'cpu', '--tp', '2',
                   '--dtype', 'float32', '--num-prompts', '8', '--input-len', '20', '--output-len', '8',
                   '--bandwidth', '1', '--tflops', '1', '--kv-cache-memory-bytes', '64M', '--max-model-len', '64',
                   '--logprobs-hash', '--json']
        here = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT})
        code, output, errors = self.run_on_boxes(command)
        self.assertEqual(code, 0, errors)
        self.assertEqual(json.loads(output)['logprobs_hash'], json.loads(here.stdout)['logprobs_hash'])

    def test_a_chat_answers_lines_of_standard_input_as_one_box(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            command = [PROGRAM, 'chat', *text_model(pathlib.Path(folder)), '--temperature', '0',
                       '--max-tokens', '8', '--log-level', 'error']
            talk = 'What is a box?\nAnd another?\n'
            here = subprocess.run(command, input=talk, capture_output=True, text=True,
                                  env={**os.environ, **ENVIRONMENT})
            self.assertGreater(len(here.stdout.splitlines()), 1, here.stderr)
            if self.boxes.input_ends:
                code, output, errors = self.run_on_boxes(command, talk=talk)
                self.assertEqual(code, 0, errors)
            else:
                run = self.boxes.mpirun(command, environment=ENVIRONMENT, talks=True)
                run.stdin.write(talk)
                run.stdin.flush()
                output = ''.join(run.stdout.readline() for _ in here.stdout.splitlines())
                os.kill(self.boxes.launcher(0).pid, signal.SIGTERM)
                run.communicate(timeout=30)
        self.assertEqual(output, here.stdout)

    def test_calls_and_collectives_of_all_kinds(self):
        code, output, errors = self.run_on_boxes([PROGRAM, 'selftest', '--device', 'cpu', '--tp', '3', '--json'])
        self.assertEqual(code, 0, errors)
        report = json.loads(output)
        self.assertTrue(report['passed'])
        self.assertEqual([rank['box'] for rank in report['ranks']], [0, 0, 1])
        code, output, errors = self.run_on_boxes([PROGRAM, 'selftest', '--device', 'cpu', '--tp', '3'])
        self.assertEqual(code, 0, errors)
        self.assertRegex(output, r'\n  box 0 \(boxA\): ranks 0 to 1 on CPU.*\n  box 1 \(boxB\): rank 2 on CPU')
        for rank in report['ranks']:
            stages = rank['start_ms']
            # A box may have been started before the first one.
            self.assert_in_order(-30_000, *(stages[name] for name in ('joined', 'device', 'communicator', 'ready')), 30_000)

    # --- times, although the clock of box B is SECONDS_AHEAD ahead ---

    def assert_in_order(self, *times):
        self.assertEqual(list(times), sorted(times))

    def test_all_ranks_load_and_say_how_long_it_took(self):
        command = [PROGRAM, 'inspect', '--model', str(MODEL), '--device', 'cpu', '--tp', '3', '--load']
        here = subprocess.run([*command, '--json', '--checksums'], capture_output=True, text=True)
        code, output, errors = self.run_on_boxes([*command, '--json', '--checksums'])
        self.assertEqual(code, 0, errors)
        report, of_one_box = json.loads(output), json.loads(here.stdout)
        self.assertEqual([rank['box'] for rank in report['ranks']], [0, 0, 1])
        for rank, other in zip(report['ranks'], of_one_box['ranks'], strict=True):
            for fact in ('checksums', 'bytes_loaded'):
                self.assertEqual(rank['load'][fact], other['load'][fact])
            self.assert_in_order(-30, rank['load']['begun_s'], rank['load']['loaded_s'], 30)
            self.assertAlmostEqual(rank['load']['seconds'], rank['load']['loaded_s'] - rank['load']['begun_s'])
        last = max(rank['load']['loaded_s'] for rank in report['ranks'])
        self.assertAlmostEqual(report['load']['since_start_s'], last)
        code, output, errors = self.run_on_boxes(command)
        self.assertEqual(code, 0, errors)
        self.assertRegex(output, r'\n  2 +box 1 \(boxB\) +CPU')

    def test_a_benchmark_of_the_start_tells_when_all_boxes_were_there(self):
        command = [PROGRAM, 'bench', 'startup', '--repeat', '1', '--model', str(MODEL), '--device', 'cpu', '--tp', '3',
                   '--dtype', 'float32', '--input-len', '8', '--kv-cache-memory-bytes', '64M', '--json']
        code, output, errors = self.run_on_boxes(command)
        self.assertEqual(code, 0, errors)
        run, = json.loads(output)['runs']
        self.assertEqual(run['stages'][0]['name'], 'all ranks forked and joined')
        self.assert_in_order(0, *(stage['after_s'] for stage in run['stages']), 30)

    def test_a_trace_has_the_ranks_of_all_boxes_on_one_clock(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            trace = pathlib.Path(folder) / 'trace.json'
            code, _, errors = self.run_on_boxes(generate(3, '--profile', str(trace)))
            self.assertEqual(code, 0, errors)
            events = json.loads(trace.read_text())['traceEvents']
        names = {event['pid']: event['args']['name'] for event in events if event['name'] == 'process_name'}
        self.assertEqual(list(names.values())[:3], ['launcher', 'rank 0, box 0 (boxA)', 'rank 1, box 0 (boxA)'])
        found = re.fullmatch(r'rank 2, box 1 \(boxB\), times to within (\S+) ([mu]?s)', names[4])
        self.assertTrue(found, names)
        error = float(found.group(1)) * {'s': 1e6, 'ms': 1e3, 'us': 1}[found.group(2)]  # microseconds, as in the trace

        def of(process, name):
            return {event['args']['step']: (event['ts'], event['ts'] + event['dur']) for event in events
                    if event['pid'] == process and event['name'] == name and 'step' in event.get('args', {})}
        # No rank computes a step before rank 0 has started to send it, nor after rank 0 has what came of it.
        sent, completed, elsewhere = of(2, 'send'), of(2, 'complete'), of(4, 'step')
        self.assertGreater(len(elsewhere), 20)
        for step, (begin, _) in elsewhere.items():
            self.assert_in_order(sent[step][0], begin + error)
            self.assert_in_order(begin - error, completed[step][1])

    def test_whoever_gives_mpirun_no_keepalive_is_told_of_it(self):
        words = 'mpirun notices a lost box after minutes'
        for probes in (3, 0):
            _, _, errors = self.run_on_boxes([PROGRAM, 'selftest', '--device', 'cpu', '--tp', '2'], probes=probes)
            self.assertEqual(words in errors, probes == 0, errors)

    # --- refusals ---

    def test_two_tasks_on_one_box(self):
        self.refuses(generate(2), 'mpirun has started 2 tasks on one box', tasks_on_one=True)

    def test_fewer_ranks_than_boxes(self):
        self.refuses(generate(1), '--tp 1: is less than one rank for each of 2 boxes; pass --tp 2')

    def test_what_cannot_be_over_boxes_is_refused_with_the_reason(self):
        # The refusal comes before anything is started, so a task's environment is enough.
        task = {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_COMM_WORLD_RANK': '0', 'OMPI_COMM_WORLD_LOCAL_SIZE': '1'}
        model = ['--model', str(MODEL), '--device', 'cpu']
        for command, words in (
                (['bench', 'startup', *model], 'bench startup: boxes can be joined once'),
                (['bench', 'long', *model, '--modes', 'paged,layerwise'], 'bench long: each mode starts a group')):
            with self.subTest(command=command):
                run = subprocess.run([PROGRAM, *command], capture_output=True, text=True, env={**os.environ, **task})
                self.assertEqual(run.returncode, 2)
                self.assertTrue(run.stderr.startswith(f'nvllm-launch: {words}'), run.stderr)
                self.assertTrue(run.stderr.endswith('(this is one of 2 tasks of mpirun)\n'), run.stderr)

    def test_other_options_on_the_other_box(self):
        script = 'exec "$0" "$@" --seed $OMPI_COMM_WORLD_RANK'
        self.refuses(['sh', '-c', script, *generate(2)], 'box 1 (boxB) was started with another command line')

    def test_another_model_on_the_other_box(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            for box, name in enumerate(['qwen3-uneven', 'qwen3-gqa-tied']):
                os.symlink(MODEL.parent / name, pathlib.Path(folder) / f'model{box}')
            script = (f'mount -t tmpfs m {folder} && ln -s "{MODEL.parent}/$(test $OMPI_COMM_WORLD_RANK = 0'
                      f' && echo qwen3-uneven || echo qwen3-gqa-tied)" {folder}/model && exec "$0" "$@"')
            self.refuses(['unshare', '-m', 'sh', '-c', script, *generate(2, model=f'{folder}/model')],
                         'box 1 (boxB) was started with another model')

    # --- serving ---

    def start_server(self, folder):
        """The server and its address."""
        run = self.boxes.mpirun([PROGRAM, 'serve', *text_model(folder), '--port', '0'], patient=False,
                                environment=ENVIRONMENT)
        for line in run.stderr:
            found = re.search(r'listening on (http://\S+?),', line)
            if found:
                return run, found.group(1)
        self.fail(f'it does not start: {run.returncode}')

    def ask(self, address, tokens):
        body = {'prompt': [1, 2, 3], 'max_tokens': tokens, 'temperature': 0, 'ignore_eos': True, 'stream': True}
        return urllib.request.urlopen(urllib.request.Request(
            address + '/v1/completions', json.dumps(body).encode(), {'Content-Type': 'application/json'}))

    def test_a_server_finishes_its_streams_when_the_first_box_is_told_to_end(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            run, address = self.start_server(pathlib.Path(folder))
            with self.ask(address, 400) as stream:
                stream.readline()
                # Stopping all boxes sends a signal to each of them.
                for box in (1, 0):
                    os.kill(self.boxes.launcher(box).pid, signal.SIGTERM)
                rest = stream.read().decode()
            self.assertTrue(rest.rstrip().endswith('data: [DONE]'), rest[-300:])
            self.assertIn('"finish_reason":"length"', rest.replace(' ', ''))
            errors = self.all_gone(run, 5)
            self.assertEqual(run.returncode, 0, errors)

    def test_a_server_ends_with_a_rank_of_a_stage_on_the_other_box(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            run, address = self.start_server(pathlib.Path(folder))
            with self.ask(address, 20000) as stream:
                stream.readline()
                self.kill(self.boxes.workers(1)[1])
                self.assertIn('rank 1', stream.read().decode())
            errors = self.all_gone(run, 5)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'nvllm-launch: rank 1 \(pid \d+ on box 1 \(boxB\)\) died: killed by SIGKILL')
        self.assertIn('the workers of 2 boxes are not started again: mpirun has to be', errors)

    # --- failures ---

    def start_long(self, *more, command=LONG, ranks=(2, 1), **how):
        run = self.boxes.mpirun([PROGRAM, *command, *more], patient=False, environment=ENVIRONMENT, **how)
        end = time.monotonic() + 15
        while time.monotonic() < end:
            here = [len(self.boxes.workers(box)) for box in (0, 1)]
            if here == [1 + count for count in ranks] and self.boxes.joined():
                time.sleep(self.at_work())
                return run
            time.sleep(0.02)
        self.boxes.kill_rest()
        self.fail(f'it does not start: {run.communicate()}')

    def all_gone(self, run, limit, folders=True):
        """Everything is gone within the limit; what box 0 and mpirun wrote."""
        took = self.boxes.gone(limit)
        if took is None:
            left = [(p.pid, p.name, p.parent, self.boxes.nets.index(p.net)) for p in two.processes()
                    if p.net in self.boxes.nets and p.name in ('nvllm-launch', self.boxes.daemon, self.boxes.starter)]
            self.boxes.kill_rest()
            self.fail(f'left after {limit} s: {left}: {run.communicate()[1]}')
        self.took = took
        errors = run.communicate()[1]
        print(f'{self.id().split(".")[-1]}: all gone after {took:.2f} s', file=sys.stderr)
        self.assertEqual(self.boxes.left(), [], errors)
        if folders:
            self.assertEqual(self.boxes.session_folders(), [])
        return errors

    def kill(self, process):
        os.kill(process.pid, signal.SIGKILL)

    def test_a_worker_of_the_other_box_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.workers(1)[1])
        errors = self.all_gone(run, 5)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'nvllm-launch: rank 2 \(pid \d+ on box 1 \(boxB\)\) died: killed by SIGKILL')
        self.assertRegex(errors, r'  rank 0  pid \d+  box 0 \(boxA\)')

    def test_a_worker_of_the_first_box_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.workers(0)[2])
        errors = self.all_gone(run, 5)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'nvllm-launch: rank 1 \(pid \d+ on box 0 \(boxA\)\) died: killed by SIGKILL')

    def test_a_link_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.workers(1)[0])
        errors = self.all_gone(run, 5)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'the link to the other boxes \(pid \d+\) died: killed by SIGKILL')

    def test_a_launcher_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.launcher(1))
        # mpirun may kill its daemon while the latter removes its folder.
        self.all_gone(run, 6, folders=False)
        self.assertNotEqual(run.returncode, 0)

    def test_mpirun_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.named(self.boxes.starter)[0])
        self.all_gone(run, 6)

    def test_the_daemon_of_mpirun_is_killed(self):
        run = self.start_long()
        self.kill(self.boxes.named(self.boxes.daemon, 1)[0])
        self.all_gone(run, 6)

    def test_the_network_is_cut(self):
        # mpirun, which would end all without naming a box, takes longer to notice than the step timeout.
        run = self.start_long('--step-timeout', '4', probes=6)
        self.boxes.cut()
        try:
            errors = self.all_gone(run, 14)
        finally:
            self.boxes.connect()
        self.assertRegex(errors, r'nothing has come from box 1 \(boxB\) for 3\.\d+ s')

    def test_a_stopped_worker_of_the_other_box_is_named(self):
        run = self.start_long('--step-timeout', '3')
        os.kill(self.boxes.workers(1)[1].pid, signal.SIGSTOP)
        errors = self.all_gone(run, 12)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'nvllm-launch: rank 2 \(pid \d+ on box 1 \(boxB\)\) is alive but stuck '
                                 r'\(stopped by SIGSTOP\)')

    def start_long_stages(self, folder, *more):
        return self.start_long('--prompt-ids', '1,2,3', '--ignore-eos', '--max-tokens', '90000', *more,
                               command=['generate', *text_model(pathlib.Path(folder))], ranks=(1, 1))

    def test_a_signal_to_the_first_box_ends_all_with_its_exit_code(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            run = self.start_long_stages(folder)
            os.kill(self.boxes.launcher(0).pid, signal.SIGTERM)
            errors = self.all_gone(run, 5)
        self.assertEqual(run.returncode, 128 + signal.SIGTERM, errors)
        self.assertNotIn('died', errors)

    def test_a_stopped_stage_on_the_other_box_is_named(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            run = self.start_long_stages(folder, '--step-timeout', '3')
            os.kill(self.boxes.workers(1)[1].pid, signal.SIGSTOP)
            errors = self.all_gone(run, 12)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'nvllm-launch: rank 1 \(pid \d+ on box 1 \(boxB\)\) is alive but stuck '
                                 r'\(stopped by SIGSTOP\)')

    def test_a_link_between_stages_is_killed(self):
        with tempfile.TemporaryDirectory(dir=self.boxes.folder) as folder:
            run = self.start_long_stages(folder)
            self.kill(self.boxes.workers(0)[0])
            errors = self.all_gone(run, 5)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, r'the link to the other boxes \(pid \d+\) died: killed by SIGKILL')


def main(cases=()):
    """Runs the cases whose names have one of these parts; none: all that the command line chooses."""
    two.enter(sys.argv)
    chosen = [word for case in cases for word in ('-k', case)]
    unittest.main(__name__, argv=sys.argv + chosen, verbosity=2)


if __name__ == '__main__':
    main()
