#!/usr/bin/env python3
"""Small tokenizers of every supported family, and what Hugging Face tokenizers makes of texts with them.

    make_testdata.py --out DIR [--count 60] [--seed 1]      needs pip install tokenizers==0.23.3

Writes NAME.json (a tokenizer.json) and NAME.jsonl: {"text", "ids", "ids_special", "decoded", "decoded_skip"}, where
ids = encode(text, add_special_tokens=False), ids_special = encode(text), and decoded and decoded_skip are of
ids_special with skip_special_tokens False and True. Lines without text are id sequences cut anywhere:
{"ids_special", "decoded", "decoded_skip"}. More than the committed 60 lines make a longer comparison:
golden_test reads the folder that NVLLM_TOKENIZER_TESTDATA names.
Also normalization.jsonl: {"text", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}.
"""
import argparse
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = GPT4.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]
POSSESSIVE = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

WORDS = ("the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
         "which one you were all her she there would their we him been has when who will no more if out so what up "
         "don't I'll we've THEY'RE It's naïve café über lighthouse keeper stormy night HelloWorld snake_case 2024 3.14 "
         "你好 世界 こんにちは 안녕 مرحبا नमस्ते สวัสดี привет γειά שלום").split()
RANGES = [(0x20, 0x24F), (0x250, 0x2FF), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x10A0, 0x11FF),
          (0x2000, 0x206F), (0x2070, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD),
          (0x10000, 0x10FFF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF)]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", "\u0085"]
MARKS = [0x300, 0x301, 0x308, 0x323, 0x327, 0x338, 0x345, 0x591, 0x64B, 0x93C, 0x94D, 0xE31, 0x3099]


def random_text(rng, tokens):
    kind = rng.randrange(8)
    if kind == 0:
        return "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randint(1, 20)))
    if kind == 1:
        return "".join(rng.choice("0123456789.,- ٣②½") for _ in range(rng.randint(1, 24)))
    if kind == 2:
        return "".join(rng.choice("aeiouAEUnsKcが한") + "".join(chr(rng.choice(MARKS)) for _ in range(rng.randint(0, 3)))
                       for _ in range(rng.randint(1, 10)))
    if kind == 3:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\tabcXYZ09ſ▁") for _ in range(rng.randint(1, 40)))
    if kind == 4:
        return rng.choice("ab =-_.*#\n\t🙂好ก▁") * rng.randint(2, 60)
    if kind == 5 and tokens:
        return "".join(rng.choice([rng.choice(tokens), rng.choice(tokens), rng.choice(WORDS), rng.choice(SPACES), ""])
                       for _ in range(rng.randint(1, 12)))
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(1, 16)))


def corpus():
    rng = random.Random(7)
    return [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(300)] + [random_text(rng, []) for _ in range(300)]


def train(tokenizer, size, alphabet=(), special=(), limit=1000):
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(alphabet), special_tokens=list(special), show_progress=False,
        limit_alphabet=limit))
    return tokenizer


def rebuilt(tokenizer, **model):
    """The tokenizer with other members in its model."""
    json_form = json.loads(tokenizer.to_str())
    json_form["model"].update(model)
    return Tokenizer.from_str(json.dumps(json_form))


def all_merges(tokenizer):
    """Every way to put a token together, as in files converted from SentencePiece."""
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    merges = []
    for token, i in vocab.items():
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocab and right in vocab:
                merges.append((i, vocab[left], vocab[right], [left, right]))
    return [pair for *_, pair in sorted(merges)]


def byte_level(splits, size=700, digits=False, **model):
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(s), "isolated") for s in splits]
    if digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, size, pre_tokenizers.ByteLevel.alphabet())
    return rebuilt(tokenizer, **model) if model else tokenizer


def bos_template(tokenizer, bos, eos=""):
    ids = {token: tokenizer.token_to_id(token) for token in (bos, eos) if token}
    return processors.TemplateProcessing(single=f"{bos} $A {eos}".strip(), pair=f"{bos} $A {bos} $B {eos}".strip(),
                                         special_tokens=list(ids.items()))


def llama3():
    tokenizer = byte_level([GPT4], ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True),
                                                    bos_template(tokenizer, "<|begin_of_text|>")])
    return tokenizer


def qwen():
    tokenizer = byte_level([QWEN])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def gpt2():
    tokenizer = byte_level([])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(" " * n) for n in range(2, 9)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def smollm():
    tokenizer = byte_level([], digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def deepseek():
    tokenizer = byte_level(DEEPSEEK)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=False), AddedToken("<｜Assistant｜>", normalized=False)])
    tokenizer.post_processor = bos_template(tokenizer, "<｜begin▁of▁sentence｜>")
    return tokenizer


def prefix_space():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 500, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), "</s>"])
    return tokenizer


def sentence_piece(byte_fallback=True, fuse_unk=True):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    # Trained on words, so that tokens do not reach over U+2581; then used on whole texts.
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(tokenizer, 700 if byte_fallback else 400, ["▁"], special, 110)
    tokenizer.pre_tokenizer = None
    tokenizer = rebuilt(tokenizer, merges=all_merges(tokenizer))
    json_form = json.loads(tokenizer.to_str())
    json_form["added_tokens"] = [dict(token, normalized=False) for token in json_form["added_tokens"][:3]]
    tokenizer = Tokenizer.from_str(json.dumps(json_form))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = bos_template(tokenizer, "<s>")
    return tokenizer


def llama2():
    return sentence_piece()


def mistral():
    tokenizer = sentence_piece()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    return tokenizer


def gemma():
    tokenizer = sentence_piece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(1, 5)])
    return tokenizer


def unknown():
    tokenizer = sentence_piece(byte_fallback=False, fuse_unk=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.normalizer = None
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = bos_template(tokenizer, "<s>", "</s>")
    return tokenizer


def fused_unknown():
    tokenizer = sentence_piece(byte_fallback=False)
    tokenizer.decoder = decoders.Sequence([decoders.Strip("e", 1, 0), decoders.Fuse(), decoders.Strip(" ", 2, 0)])
    return tokenizer


def added():
    tokenizer = byte_level([QWEN])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_tokens([
        AddedToken("word", single_word=True), AddedToken("<L>", lstrip=True, normalized=False),
        AddedToken("<R>", rstrip=True, normalized=False), AddedToken("<LR>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("MiXed"), AddedToken("ﬁx", normalized=True), AddedToken("raw", normalized=False),
        AddedToken("<R>R", normalized=False), AddedToken("  ", normalized=False), AddedToken("the", single_word=True, lstrip=True),
        AddedToken("über", single_word=True, normalized=False), AddedToken("é", special=True)])
    tokenizer.add_special_tokens([AddedToken("<S>", rstrip=True), AddedToken("<S2>", normalized=True), "a"])
    return tokenizer


def words():
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip(),
                                                 normalizers.Replace(Regex(r"\d+"), "0"), normalizers.Replace("''", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(),
                                                       pre_tokenizers.Digits()])
    train(tokenizer, 500, "?", (), 200)
    return rebuilt(tokenizer, fuse_unk=True)


def split_behaviors():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKD()])
    split = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(Regex(r"[.,!?]"), "merged_with_previous"), split(Regex(r"[A-Z_]"), "merged_with_next"),
        split("-", "contiguous"), split(Regex("[a-zà-ÿ ]+"), "removed", True), split("q", "removed"),
        split(Regex(r"x*"), "isolated"), pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(tokenizer, 400, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def o200k():
    return byte_level([O200K])


def possessive():
    return byte_level([POSSESSIVE])


FAMILIES = [llama3, qwen, gpt2, smollm, deepseek, prefix_space, llama2, mistral, gemma, unknown, fused_unknown, added, words,
            split_behaviors, o200k, possessive]
FIXED = ["", " ", "a", "  two  spaces  ", "Don't you'LL we'Ve 'ſ", "tabs\t\tand\n\n\nlines \n x", "12345678 1,234.5 ٣٤٥",
         "HelloWORLDHello's camelCase", "你好，世界！こんにちは", "🙂👩‍👩‍👧🏳️‍🌈", "é e\u0301 ﬁ Å \u1e9b\u0323", "a\u0000b", "<s>a</s> <unk>"]


def write_family(folder, make, count, seed):
    tokenizer = make()
    name = make.__name__
    (folder / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")),
                                         encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(folder / f"{name}.json"))
    tokens = [t.content for t in tokenizer.get_added_tokens_decoder().values()][-12:]
    rng = random.Random(f"{name} {seed}")
    texts = FIXED + [random_text(rng, tokens) for _ in range(count - len(FIXED))]
    vocab = tokenizer.get_vocab_size()
    with (folder / f"{name}.jsonl").open("w", encoding="ascii") as out:
        def write(row, ids):
            row["ids_special"] = ids
            row["decoded"] = tokenizer.decode(ids, skip_special_tokens=False)
            row["decoded_skip"] = tokenizer.decode(ids, skip_special_tokens=True)
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
        for text in texts:
            write({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}, tokenizer.encode(text).ids)
        for i in range(count // 3):
            ids = tokenizer.encode(random_text(rng, tokens)).ids
            start = rng.randint(0, len(ids))
            cut = ids[start:start + rng.randint(1, 10)]
            write({}, cut if i % 2 else [rng.randrange(vocab + 2) for _ in range(rng.randint(0, 12))])


def write_normalization(path, count, seed):
    rng = random.Random(seed)
    names = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]
    with path.open("w", encoding="ascii") as out:
        for i in range(count):
            text = random_text(rng, [])
            if i % 2:
                text = "".join(rng.choice([chr(rng.choice(MARKS)), chr(rng.randint(*rng.choice(RANGES))), rng.choice("aeKIͅ각각")])
                               for _ in range(rng.randint(1, 12)))
            row = {"text": text}
            for name in names:
                row[name] = getattr(normalizers, name)().normalize_str(text)
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--count", type=int, default=60)
    args.add_argument("--seed", type=int, default=1)
    a = args.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    for make in FAMILIES:
        write_family(a.out, make, a.count, a.seed)
    write_normalization(a.out / "normalization.jsonl", a.count * 2, a.seed)


if __name__ == "__main__":
    main()
