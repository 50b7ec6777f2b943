"""The model's tokenizer and chat template, by the program."""


class Tokenizer:
    """What LLM.get_tokenizer() returns: the functions of Hugging Face's tokenizers that prompts need."""

    def __init__(self, ask):
        self.ask = ask

    def encode(self, text, add_special_tokens=True):
        return self.ask('/tokenize', {'prompt': text, 'add_special_tokens': add_special_tokens})['tokens']

    def decode(self, token_ids):
        return self.ask('/detokenize', {'tokens': list(token_ids)})['prompt']

    def apply_chat_template(self, conversation, tokenize=True, add_generation_prompt=False, tools=None,
                            **chat_template_kwargs):
        fields = {'messages': list(conversation), 'add_generation_prompt': add_generation_prompt}
        if tools:
            fields['tools'] = tools
        if chat_template_kwargs:
            fields['chat_template_kwargs'] = chat_template_kwargs
        token_ids = self.ask('/tokenize', fields)['tokens']
        return token_ids if tokenize else self.decode(token_ids)
