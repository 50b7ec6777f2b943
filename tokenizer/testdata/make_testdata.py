#!/usr/bin/env python3
"""Small tokenizers of every supported family, and what Hugging Face tokenizers makes of texts with them.

    make_testdata.py --out DIR [--count 60] [--seed 1]      needs pip install tokenizers==0.23.3

Writes NAME.json (a tokenizer.json) and NAME.jsonl: {"text", "ids", "ids_special", "decoded", "decoded_skip"}, where
ids = encode(text, add_special_tokens=False), ids_special = encode(text), and decoded and decoded_skip are of
ids_special with skip_special_tokens False and True. Lines without text are id sequences cut anywhere:
{"ids_special", "decoded", "decoded_skip"}. A NAME.json that is there already is kept (training breaks some ties by
chance) and its texts are made anew. More than the committed 60 lines make a longer comparison:
golden_test.cc reads the folder that NVLLM_TOKENIZER_TESTDATA names.
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
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# DeepSeek's tokenizers before V3. The letters are those with two cases, as of some version of Unicode; escaped, since
# normalizing this file would change the set.
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
DEEPSEEK_LLM = [
    "[\r\n]",
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
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


def tekken():
    tokenizer = byte_level([TEKKEN], ignore_merges=True)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])
    tokenizer.post_processor = bos_template(tokenizer, "<s>")
    return tokenizer


def deepseek_llm():
    tokenizer = byte_level(DEEPSEEK_LLM, digits=True)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.post_processor = bos_template(tokenizer, "<｜begin▁of▁sentence｜>")
    return tokenizer


def deepseek_coder():
    tokenizer = byte_level(DEEPSEEK_CODER, digits=True)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|EOT|>"])
    tokenizer.add_tokens([AddedToken("<｜fim▁hole｜>", normalized=False)])
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


FAMILIES = [llama3, qwen, gpt2, smollm, deepseek, tekken, deepseek_llm, deepseek_coder, prefix_space, llama2, mistral, gemma, unknown, fused_unknown, added, words,
            split_behaviors, o200k, possessive]
FIXED = ["", " ", "a", "  two  spaces  ", "Don't you'LL we'Ve 'ſ", "tabs\t\tand\n\n\nlines \n x", "12345678 1,234.5 ٣٤٥",
         "HelloWORLDHello's camelCase", "你好，世界！こんにちは", "🙂👩‍👩‍👧🏳️‍🌈", "é e\u0301 ﬁ Å \u1e9b\u0323", "a\u0000b", "<s>a</s> <unk>"]

# What has broken tokenizers before.
NASTY = [
    "1234567890" * 4, "1" * 31 + " " + "9" * 33, "3.14159,2.71828;1e-10 0x1F 1_000_000 ١٢٣٤٥٦ १२३ ①②③ ⅷ ½¾ 五千",
    "I'm you're he'd we'll they've it's isn't O'Neil's 'tis rock'n'roll I'M YOU'RE HE'D WE'LL THEY'VE ’s ‘t don''t '",
    " " * 33 + "x" + " " * 16 + "\t" * 17 + "y  ", " \t \t\t  \u00a0\u2003 \u3000 a\u200bb \ufeffc\u2060d\u180ee ",
    "one\r\ntwo\rthree\n\rfour\r\n\r\n  five \r\n \n\n\n   six\n \x0b\x0c\x85\u2028\u2029seven\n", "\r\n", "\n ", "\t\n \r",
    "e\u0301e\u0323\u0302 a\u0308\u0304 o\u031b\u0309 \u0301 alone \u0301\u0302\u0303 q" + "\u0307\u0323" * 12 + " Å Å Å ﬁ ﬃ ſ \u1e9b\u0323 \u212b \u212a \u2126 \u1f7d \u1fd3 \u1fdb \u1fbe \u0344 \u0f73 \ufb2c \ua791 \uab30",
    "각 \u1100\u1161\u11a8 가\u11a8 ᄀᄀ가 קֵ שׂ क़ क़ ড় ড় 〱゙ が が ｶﾞ", "👩‍👩‍👧‍👦 👩🏽‍🚀 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 🇩🇪🇫🇷🇩 ☺️☺ #️⃣ 🙂🙂🙂 ❤️‍🔥",
    "مرحبا، \u202bكيف\u202c \u200f؟ שלום\u200e עליכם \u2067x\u2069 ﷽ لا", "Zażółć gęślą JAŹŃ İstanbul ıIiİ ǅ ǆ Ǆ ß ẞ straße STRASSE ΣΑΣ ς",
    "\ufffd \ufffd\ufffe\uffff \U0010ffff \ue000 \U000f0000 \x00\x01\x1f\x7f\x80\x9f", "▁ ▁▁ a▁b ▁a ▁ ▁\n▁", "<unk><s></s> <0x41> <0xFF> Ġ Ċ ĠĠ [PAD3]",
    "def f(x):\n\treturn x**2  # ok\n\n\nif __name__=='__main__':\n    print(f\"{f(3)!r}\")\n", "https://user@example.com:8080/a/b?c=d&e=%20#f C:\\temp\\x //// ---- ==== ...… !!!???",
    "日本語テキスト、ｶﾀｶﾅ １２３ＡＢＣ。「引用」 中文，测试！한국어 텍스트 ไทยภาษา ພາສາ မြန်မာ", "𝐀𝑏𝒞 𝟘𝟙𝟚 𐐀𐐨 𒀀 𠜎𠝹 🀄 ⁴₅ ™ © № ㎏ ﬀ ℀", "aA" * 40, "(((" * 10 + ")" * 31 + "'" * 7 + '"' * 5]


def write_family(folder, make, count, seed):
    name = make.__name__
    if not (folder / f"{name}.json").exists():
        (folder / f"{name}.json").write_text(json.dumps(json.loads(make().to_str()), ensure_ascii=False, separators=(",", ":")),
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
        for text in NASTY:
            write({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}, tokenizer.encode(text).ids)


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
