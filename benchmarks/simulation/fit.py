"""Step times for simulate_replicas, fitted to files of `bench latency`; and its runs."""

import json
import subprocess

# The terms in which the time of prompts is linear: fields of the program's "work", and of its
# "step_time_us".
PROMPT_PARTS = ('prompt_step', 'prompt_row', 'prompt_pair')


def simulate(program, scenarios):
    """The program's results, one for each scenario."""
    lines = '\n'.join(json.dumps(scenario) for scenario in scenarios)
    done = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f'{program} ended with {done.returncode}')
    return [json.loads(line) for line in done.stdout.splitlines()]


def engine_of(report, **changes):
    """The engine's limits, as a report of bench tells them."""
    names = ('max_model_len', 'max_num_seqs', 'max_num_batched_tokens', 'block_size', 'blocks', 'host_blocks')
    return {name: report['engine'][name] for name in names} | changes


def solve(rows, values):
    """x >= 0 that minimizes |rows x - values|^2: least squares of the normal equations; who comes out
    below zero is left out, and the others are fitted again."""
    kept = list(range(len(rows[0])))
    while True:
        x = normal_equations([[row[i] for i in kept] for row in rows], values)
        below = [i for i, value in zip(kept, x) if value < 0]
        if not below:
            break
        kept.remove(min(zip(x, kept))[1])
    result = [0.0] * len(rows[0])
    for i, value in zip(kept, x):
        result[i] = value
    return result


def normal_equations(rows, values):
    count = len(rows[0])
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(count)]
              + [sum(row[i] * value for row, value in zip(rows, values))] for i in range(count)]
    for i in range(count):
        pivot = max(range(i, count), key=lambda j: abs(matrix[j][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-9:
            raise SystemExit('the measured runs do not tell the parts of a step apart; fit to more of them')
        for j in range(count):
            if j != i:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i])]
    return [matrix[i][count] / matrix[i][i] for i in range(count)]


def fit(program, latency_reports):
    """The times of a step (step_time.h) in microseconds, and how far those of prompts are from the measured ones.

    Reading K and V takes what the bytes of a token take at the memory's bandwidth, since batches of one context do
    not tell it from the rows. What is left of the decode steps is taken as it was measured, of a number of rows by the first report that has it. How the scheduler cuts
    prompts into steps the program says, so that the time of a batch's prompts is linear in what is fitted."""
    report = latency_reports[0]
    context_us = report['engine']['kv_bytes_per_token'] / report['limits']['tb_per_s'] * 1e-6
    decode, prompts = {}, []
    for report in latency_reports:
        for batch in report['batches']:
            rows, length = batch['mean_rows'], batch['input_len']
            decode.setdefault(rows, 1e3 * batch['mean_step_ms'] - context_us * rows * batch['mean_context'])
            traffic = {'requests': batch['batch'], 'input_len': [length, length], 'output_len': [300, 300]}
            scenario = {'engine': engine_of(report), 'step_time_us': {'decode': [[1, 1]]}, 'traffic': traffic}
            work = simulate(program, [scenario])[0]['work_until_first_tokens']
            prompts.append((f"{batch['batch']} x {length}", 1e6 * batch['prompts_s'], work))
    # For prompts of one length, the pairs are a multiple of the rows.
    fitted = PROMPT_PARTS[:2] if len({name.split()[-1] for name, _, _ in prompts}) == 1 else PROMPT_PARTS
    columns = [[work[part] / us for _, us, work in prompts] for part in fitted]
    scales = [max(column) for column in columns]  # so that all columns have the same magnitude
    rows = [[column[i] / scale for column, scale in zip(columns, scales)] for i in range(len(prompts))]
    rest = [1 - context_us * work['decode_context'] / us for _, us, work in prompts]
    time_us = dict.fromkeys(PROMPT_PARTS, 0.0) | {
        part: x / scale for part, x, scale in zip(fitted, solve(rows, rest), scales)}
    time_us['decode_context'] = context_us
    errors = {name: round((sum(time_us[part] * work[part] for part in PROMPT_PARTS)
                           + context_us * work['decode_context']) / us - 1, 4) for name, us, work in prompts}
    time_us = {part: float(f'{value:.5g}') for part, value in time_us.items()}
    time_us['decode'] = [[rows, round(us, 1)] for rows, us in sorted(decode.items())]
    return time_us, errors
