"""What benchmarks/sweep does with --base-url: runs of `nvllm-launch bench serve`, and their plots."""

import itertools

from svg_chart import Line, write_chart

KEYS = ('server', 'concurrency', 'request_rate', 'input_len', 'output_len', 'variant')
FIGURES = ('duration', 'completed', 'failed', 'request_throughput', 'request_goodput', 'output_throughput', 'total_token_throughput',
           'median_ttft_ms', 'p99_ttft_ms', 'median_tpot_ms', 'p99_tpot_ms', 'median_itl_ms', 'p99_itl_ms', 'median_e2el_ms', 'p99_e2el_ms')


def named_url(text):
    """(name, URL) of 'NAME=URL', or of a URL that is its own name."""
    name, equals, url = text.partition('=')
    return (name, url) if equals and '/' not in name else (text, text)


def settings_of(args):
    grid = itertools.product([name for name, _ in args.base_url], args.concurrency, args.request_rate.split(','),
                             args.input_len.split(','), args.output_len.split(','), args.variant)
    return [dict(zip(KEYS, values)) for values in grid]


def command_of(args, setting):
    prompts = max(args.least_prompts, args.rounds * setting['concurrency'])
    command = [str(args.launch), 'bench', 'serve', '--base-url', dict(args.base_url)[setting['server']],
               '--max-concurrency', str(setting['concurrency']), '--request-rate', setting['request_rate'],
               '--input-len', setting['input_len'], '--output-len', setting['output_len'], '--json']
    if '--duration' not in ' '.join(args.more + [setting['variant']]):
        command += ['--num-prompts', str(prompts)]
    return command + (['--model', args.model] if args.model else []) + setting['variant'].split() + args.more


def figures_of(result):
    return {name: result[name] for name in FIGURES}


def said_of(result):
    failed = f", {result['failed']} requests failed" if result['failed'] else ''
    return f"{result['output_throughput']:.0f} tokens/s, TTFT {result['median_ttft_ms']:.1f} ms, TPOT {result['median_tpot_ms']:.2f} ms{failed}"


def groups_of(entries, keys):
    """[(name, entries)] of those that agree in the keys; a name tells what differs between groups."""
    groups = {}
    for entry in entries:
        groups.setdefault(tuple(entry['setting'][key] for key in keys), []).append(entry)
    differ = [key for i, key in enumerate(keys) if len({values[i] for values in groups}) > 1]
    return [(', '.join(f"{key.replace('_len', '')} {values[keys.index(key)]}" for key in differ) or 'all', group)
            for values, group in groups.items()]


def draw(out, entries):
    """The files drawn. The load is the request rate where several were measured, otherwise the concurrency."""
    good = [entry for entry in entries if entry['result']]
    if not good:
        return []
    by_rate = len({entry['setting']['request_rate'] for entry in good}) > 1
    load, name = ('request_rate', 'requests/s sent') if by_rate else ('concurrency', 'concurrency')
    fixed = [key for key in KEYS if key != load]

    def load_of(entry):
        return float(entry['setting'][load])

    def lines(figure, x=load_of, label=False):
        return [Line(name, [(x(e), e['result'][figure]) + ((e['setting'][load],) if label else ())
                            for e in sorted(group, key=load_of) if e['result'][figure] is not None])
                for name, group in groups_of(good, fixed)]

    def pairs(p50, p99):
        both = []
        for fast, slow in zip(lines(p50), lines(p99)):
            both += [fast, Line('  p99', slow.points, dashed=True, colour=len(both))]
        return both

    title = f"{good[0]['result']['model_id']}, bench serve"
    write_chart(out / 'throughput-latency.svg', title=f'{title}: throughput against latency (labels: {name})', x='TPOT in ms, median',
                y='output tokens/s', lines=lines('output_throughput', lambda e: e['result']['median_tpot_ms'], True))
    write_chart(out / 'ttft.svg', title=f'{title}: TTFT, median and p99', x=name, y='ms', lines=pairs('median_ttft_ms', 'p99_ttft_ms'),
                log_x=True, log_y=True)
    write_chart(out / 'tpot.svg', title=f'{title}: TPOT, median and p99', x=name, y='ms', lines=pairs('median_tpot_ms', 'p99_tpot_ms'),
                log_x=True)
    drawn = ['throughput-latency.svg', 'ttft.svg', 'tpot.svg']
    if any(entry['result']['request_goodput'] is not None for entry in good):
        write_chart(out / 'goodput.svg', title=f'{title}: goodput', x=name, y='good requests/s', lines=lines('request_goodput'), log_x=True)
        drawn.append('goodput.svg')
    return drawn
