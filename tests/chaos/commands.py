"""The commands that a campaign runs, and how each is used while it runs."""

import json
import os
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

TEMPLATE = ('{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}'
            '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}')


def make_model(folder, root):
    """A tiny model of random weights that speaks text."""
    shutil.copy(root / 'tests/data/golden-models/qwen3-gqa-tied/config.json', folder)
    shutil.copy(root / 'tokenizer/testdata/qwen.json', folder / 'tokenizer.json')
    (folder / 'chat_template.jinja').write_text(TEMPLATE)


class Place(NamedTuple):
    """Where commands run."""

    model: Path  # made by make_model()
    device: str
    ranks: tuple  # how many one run may have; a random one of these
    longest: float  # seconds that a short run takes, about

    def model_options(self):
        return [f'--device={self.device}', f'--model={self.model}', '--load-format=dummy', '--kv-cache-memory-bytes=16M',
                '--max-num-seqs=8', '--hf-overrides={"vocab_size": 705, "max_position_embeddings": 8192}']


class Command:
    """A command of nvllm-launch. `ranks` workers are expected; standard input is `text`, then open or closed."""

    ranks = 1
    text = ''
    stages = False  # it takes --pp
    stays = False  # it runs until it is told to end
    restarts = False  # workers that died are started again
    good_ends = (0,)

    def __init__(self, random, place, folder):
        self.place, self.folder = place, folder
        self.ranks = random.choice(place.ranks)
        self.words = [self.name, *self.division(random), '--step-timeout=2', *self.more(random)]

    name = ''

    def division(self, random):
        """How the ranks share a model: each in all of its layers, or in pipeline stages."""
        stages = [n for n in (1, 2, 3) if self.ranks % n == 0] if self.stages and self.place.device == 'cpu' else [1]
        pp = random.choice(stages)
        return [f'--tp={self.ranks // pp}', *([f'--pp={pp}'] if pp > 1 else [])]

    def more(self, random):
        return []

    def use(self, launcher):
        """Uses the running command until it ends, in a thread of its own."""

    def complaint(self):
        """What is wrong with the results of a run that says it went well."""
        return None


class Selftest(Command):
    name = 'selftest'

    def more(self, random):
        return [f'--device={self.place.device}', f'--seconds={random.choice((0.2, 1))}']


class Generate(Command):
    name = 'generate'
    stages = True

    def more(self, random):
        self.requests = random.choice((4, 40))
        lines = [json.dumps({'prompt_token_ids': [i % 700 + 1, 7], 'max_tokens': 4 + 8 * (i % 9)})
                 for i in range(self.requests)]
        (self.folder / 'in.jsonl').write_text('\n'.join(lines) + '\n')
        self.output = self.folder / 'out.jsonl'
        return [*self.place.model_options(), '--ignore-eos', f'--input={self.folder}/in.jsonl',
                f'--output={self.output}']

    def complaint(self):
        answers = [json.loads(line) for line in self.output.read_text().split('\n')[:-1]]
        if len(answers) != self.requests:
            return f'exit code 0 with {len(answers)} of {self.requests} answers'
        return None


class GenerateToPipe(Generate):
    """The same, with its answers on standard output."""

    def more(self, random):
        return [word for word in super().more(random) if not word.startswith('--output')]

    def complaint(self):
        return None


class Chat(Command):
    name = 'chat'
    stages = True

    def more(self, random):
        self.text = 'say something\nand more of it\n' * random.choice((1, 10))
        return [*self.place.model_options(), '--max-tokens=20']


class Bench(Command):
    name = 'bench'

    def __init__(self, random, place, folder):
        super().__init__(random, place, folder)
        self.words = ['bench', 'throughput', *self.words[1:]]

    def more(self, random):
        return [*self.place.model_options(), '--num-prompts=20', '--input-len=20', '--output-len=30',
                '--bandwidth=0.02', '--tflops=0.1']  # which would be measured in a process of its own


class Serve(Command):
    name = 'serve'
    stages = True
    stays = True

    def more(self, random):
        self.socket = self.folder / 'socket'
        self.restarts = random.random() < 0.5
        return [*self.place.model_options(), f'--uds={self.socket}', '--shutdown-timeout=1',
                *([] if self.restarts else ['--no-restart-workers'])]

    def use(self, launcher):
        """Clients that ask again and again."""
        for _ in range(2):
            threading.Thread(target=self._ask, args=(launcher,), daemon=True).start()

    def _ask(self, launcher):
        body = json.dumps({'model': 'm', 'prompt': [5, 6], 'max_tokens': 60, 'ignore_eos': True, 'stream': True})
        request = ('POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n'
                   f'Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}').encode()
        while launcher.poll() is None:
            try:
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(20)
                    connection.connect(str(self.socket))
                    connection.sendall(request)
                    while connection.recv(65536):
                        pass
            except OSError:
                time.sleep(0.01)


class Inspect(Command):
    """No worker, and soon over."""

    name = 'inspect'

    def __init__(self, random, place, folder):
        super().__init__(random, place, folder)
        self.ranks = 0
        self.words = ['inspect', '--device=cpu', '--load-format=dummy', f'--model={place.model}',
                      '--hf-overrides={"vocab_size": 705}']


COMMANDS = [Selftest, Generate, Generate, GenerateToPipe, Chat, Bench, Serve, Serve, Inspect]
