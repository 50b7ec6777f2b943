#!/usr/bin/env python3
"""benchmarks/simulate: fits, and what the simulation predicts of measured servers."""

import importlib.machinery
import importlib.util
import sys
import unittest
from pathlib import Path

sys.path.insert(0, '.')  # tests run in the root of Bazel's runfiles
PROGRAM = Path('benchmarks/simulation/simulate_replicas').absolute()


def load(path):
    loader = importlib.machinery.SourceFileLoader('simulate', path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('simulate', loader))
    loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
SIMULATE = load(str(Path('benchmarks/simulate').absolute()))
import fit  # noqa: E402  (where benchmarks/simulate found it)


class FitTest(unittest.TestCase):
    def test_least_squares_finds_what_the_points_were_made_of(self):
        rows = [[1, 2, 0.5], [1, 3, 4], [1, 8, 1], [1, 5, 9]]
        values = [3 + 2 * row[1] + 0.25 * row[2] for row in rows]
        for found, wanted in zip(fit.solve(rows, values), (3, 2, 0.25)):
            self.assertAlmostEqual(found, wanted)

    def test_what_would_be_below_zero_is_left_out_and_the_rest_fitted_again(self):
        found = fit.solve([[1, 1], [1, 2], [1, 3]], [3, 2, 1])  # 4 - x
        self.assertEqual(found[1], 0)
        self.assertAlmostEqual(found[0], 2)

    def test_points_that_do_not_tell_parts_apart_are_refused(self):
        with self.assertRaisesRegex(SystemExit, 'do not tell'):
            fit.solve([[1, 2], [2, 4]], [1, 2])

    def test_times_that_were_made_up_are_found_again(self):
        made = {'decode': [[1, 100], [8, 140], [64, 300]], 'decode_context': 0.02, 'prompt_step': 500,
                'prompt_row': 3}
        engine = {'max_model_len': 4096, 'max_num_seqs': 64, 'max_num_batched_tokens': 2048, 'block_size': 16,
                  'blocks': 9000, 'host_blocks': 0}
        batches = []
        for rows, us in made['decode']:
            traffic = {'requests': rows, 'input_len': [1024, 1024], 'output_len': [300, 300]}
            result = fit.simulate(PROGRAM, [{'engine': engine, 'step_time_us': made, 'traffic': traffic}])[0]
            batches.append({'batch': rows, 'input_len': 1024, 'mean_rows': rows, 'mean_context': 1100,
                            'mean_step_ms': 1e-3 * (us + 0.02 * 1100 * rows), 'prompts_s': result['first_tokens_s']})
        report = {'engine': engine | {'kv_bytes_per_token': 80000}, 'limits': {'tb_per_s': 4.0}, 'batches': batches}
        time_us, errors = fit.fit(PROGRAM, [report])
        self.assertEqual(time_us['decode'], made['decode'])
        self.assertAlmostEqual(time_us['decode_context'], 0.02)
        self.assertAlmostEqual(time_us['prompt_row'], 3, places=2)
        self.assertAlmostEqual(time_us['prompt_step'], 500, delta=5)
        self.assertLess(max(map(abs, errors.values())), 0.005)


class MeasuredTest(unittest.TestCase):
    def test_servers_of_an_h200_are_predicted_within_ten_percent_but_for_chats(self):
        runs = [run for measured in SIMULATE.MEASURED if measured[0] == 'H200'
                for run in SIMULATE.check_one(PROGRAM, *measured)['runs'] if run['run'].startswith('serve-')]
        self.assertEqual(len(runs), 12)
        for figure in ('output_tokens_per_s', 'ttft_ms_p50'):
            errors = {run['run']: abs(run[figure][2]) for run in runs}
            self.assertLess(max(error for run, error in errors.items() if not run.endswith('-chat')), 0.1, errors)
            self.assertLess(max(errors.values()), 0.13, errors)


class SweepTest(unittest.TestCase):
    def test_each_replica_has_the_same_share_of_the_requests_for_each_number_of_them(self):
        for kind in SIMULATE.TRAFFIC:
            one, many = (SIMULATE.sweep_scenario({}, kind, 'round_robin', count, 0.5)['traffic'] for count in (1, 16))
            number = 'requests' if kind == 'random prompts' else 'conversations'
            self.assertEqual(many['rate'], 16 * one['rate'])
            self.assertAlmostEqual(many[number] / one[number], 16, delta=0.1)


if __name__ == '__main__':
    unittest.main()
