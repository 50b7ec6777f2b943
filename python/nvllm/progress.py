"""Progress of many prompts, shown by tqdm where it is installed."""


class NoProgress:
    def update(self, output):
        pass

    def close(self):
        pass


class Progress:
    def __init__(self, bar):
        self.bar = bar
        self.tokens = 0
        self.started = None

    def update(self, output):
        self.tokens += sum(len(answer.token_ids) for answer in output.outputs)
        seconds = self.bar.format_dict.get('elapsed') or 0
        if seconds > 0:
            self.bar.set_postfix_str(f'{self.tokens / seconds:.0f} tokens/s', refresh=False)
        self.bar.update(1)

    def close(self):
        self.bar.close()


def progress(use_tqdm, count):
    """use_tqdm: True, False, or what makes a bar, as in vLLM."""
    if not use_tqdm or count == 0:
        return NoProgress()
    make = use_tqdm
    if not callable(use_tqdm):
        try:
            from tqdm.auto import tqdm as make
        except ImportError:
            return NoProgress()
    return Progress(make(total=count, desc='Processed prompts', dynamic_ncols=True))
