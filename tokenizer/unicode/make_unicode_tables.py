#!/usr/bin/env python3
"""Writes unicode_tables.inc, the properties of characters for tokenizer/unicode/unicode.cc.

    make_unicode_tables.py --out unicode_tables.inc     needs Unicode 16.0 (pip install unicodedata2==16.0.0)
    make_unicode_tables.py --check                      compares with the Python package tokenizers

Ids must be those of Hugging Face tokenizers, so each table has the Unicode version of the library that is
behind the operation there: 16.0 in regexes, 17.0 in Rust's char methods, about 11 in normalization, 8 in
punctuation. The differences are listed here by hand, and --check finds them if they change.
"""
import argparse
import sys
import unicodedata as python_unicode

try:
    import unicodedata2 as ucd
except ImportError:
    ucd = python_unicode

# In the order of Category and of the bits of CharFlag in unicode.h.
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn").split()
FLAGS = ("WhiteSpace RegexWord RustWord Punctuation Numeric Mark NfcUnstable NfkcUnstable Canonical Compat "
         "Lower").split()


def code_points(ranges):
    for item in ranges.split():
        first, _, last = item.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


WHITE_SPACE = set(code_points("9-d 20 85 a0 1680 2000-200a 2028-2029 202f 205f 3000"))

# Characters younger than the normalization tables of the reference.
UNKNOWN_CANONICAL = set(code_points("105c9 105e4 11383 11385 1138e 11391 113c5 113c7-113c8 11938 16121-16128 16d68-16d6a"))
UNKNOWN_COMPAT = UNKNOWN_CANONICAL | set(code_points(
    "32ff a7f2-a7f4 ab69 10781-10785 10787-107b0 107b2-107ba 1ccd6-1ccf9 1e030-1e06d 1f16c 1fbf0-1fbf9"))
UNKNOWN_CCC = set(code_points(
    "7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1ace 1df6-1dfa a82c 10d24-10d27 10d69-10d6d 10eab-10eac "
    "10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 113ce-113d0 1145e 11839-1183a 1193d-1193e 11943 119e0 11a34 "
    "11a47 11a99 11d42 11d44-11d45 11d97 11f41-11f42 1612f 16ff0-16ff1 1e08f 1e130-1e136 1e2ae 1e2ec-1e2ef "
    "1e4ec-1e4ef 1e5ee-1e5ef"))
UNKNOWN_MARK = set(code_points(
    "7fd 897-89f 8ca-8d3 9fe afa-aff b55 c04 c3c cf3 d00 d3b-d3c d81 eba ece 1715 180f 1abf-1ace 1cf7 1df6-1dfa a82c "
    "a8ff 10d24-10d27 10d69-10d6d 10eab-10eac 10efc-10eff 10f46-10f50 10f82-10f85 11070 11073-11074 110c2 11145-11146 "
    "111c9 111ce-111cf 11241 1133b 113b8-113c0 113c2 113c5 113c7-113ca 113cc-113d0 113d2 113e1-113e2 1145e "
    "1182c-1183a 11930-11935 11937-11938 1193b-1193e 11940 11942-11943 119d1-119d7 119da-119e0 119e4 11a01-11a0a "
    "11a33-11a39 11a3b-11a3e 11a47 11a51-11a5b 11a8a-11a99 11d31-11d36 11d3a 11d3c-11d3d 11d3f-11d45 11d47 "
    "11d8a-11d8e 11d90-11d91 11d93-11d97 11ef3-11ef6 11f00-11f01 11f03 11f34-11f3a 11f3e-11f42 11f5a 13440 "
    "13447-13455 1611e-1612f 16f4f 16f7f-16f87 16fe4 16ff0-16ff1 1cf00-1cf2d 1cf30-1cf46 1e08f 1e130-1e136 1e2ae "
    "1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef"))
EXTRA_MARK = set(code_points("1cf2-1cf3"))
UNKNOWN_PUNCTUATION = set(code_points(
    "61d 9fd a76 c77 c84 1b4e-1b4f 1b7d-1b7f 2e43-2e4f 2e52-2e5d 10d6e 10ead 10f55-10f59 10f86-10f89 113d4-113d5 "
    "113d7-113d8 1144b-1144f 1145a-1145b 1145d 11660-1166c 116b9 1183b 11944-11946 119e2 11a3f-11a46 11a9a-11a9c "
    "11a9e-11aa2 11b00-11b09 11be1 11c41-11c45 11c70-11c71 11ef7-11ef8 11f43-11f4f 11fff 12ff1-12ff2 16d6d-16d6f "
    "16e97-16e9a 16fe2 1e5ff 1e95e-1e95f"))
EXTRA_PUNCTUATION = set(code_points("166d 111c9"))
EXTRA_NUMERIC = set(code_points("11de0-11de9 16ff4-16ff6"))
EXTRA_WORD = set(code_points("24b6-24e9 1f130-1f149 1f150-1f169 1f170-1f189"))  # Other_Alphabetic symbols
REGEX_WORD = set(code_points("b2-b3 b9 bc-be"))  # Oniguruma's only
RUST_WORD = set(code_points("200c-200d"))  # Rust's only

# Lower case newer than Python 3.11's Unicode 14.
NEW_LOWER = {0x1C89: 0x1C8A, 0xA7CB: 0x264, 0xA7CC: 0xA7CD, 0xA7CE: 0xA7CF, 0xA7D2: 0xA7D3, 0xA7D4: 0xA7D5,
             0xA7DA: 0xA7DB, 0xA7DC: 0x19B}
NEW_LOWER.update({c: c + 0x20 for c in range(0x10D50, 0x10D66)})
NEW_LOWER.update({c: c + 0x1B for c in range(0x16EA0, 0x16EB9)})

SCALARS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def lower(c):
    return chr(NEW_LOWER[c]) if c in NEW_LOWER else chr(c).lower()


def ccc(c):
    return 0 if c in UNKNOWN_CCC else ucd.combining(chr(c))


def is_hangul_syllable(c):
    return 0xAC00 <= c <= 0xD7A3


def decomposition(c, form, unknown):
    text = ucd.normalize(form, chr(c))
    return None if text == chr(c) or c in unknown or is_hangul_syllable(c) else text


def compositions():
    """(first, second) -> composed, without Hangul."""
    pairs = {}
    for c in SCALARS:
        parts = ucd.decomposition(chr(c)).split()
        if len(parts) == 2 and parts[0][0] != "<" and c not in UNKNOWN_CANONICAL:
            first, second = (int(part, 16) for part in parts)
            if ucd.normalize("NFC", chr(first) + chr(second)) == chr(c):
                pairs[first, second] = c
    return pairs


def record(c, seconds):
    category = "Cs" if 0xD800 <= c <= 0xDFFF else ucd.category(chr(c))
    if category == "Cs":
        return CATEGORIES.index(category), 0, 0
    mark = (category[0] == "M" and c not in UNKNOWN_MARK) or c in EXTRA_MARK
    punctuation = ((category[0] == "P" and c not in UNKNOWN_PUNCTUATION) or c in EXTRA_PUNCTUATION
                   or (c < 128 and category[0] == "S"))
    word = category[0] in "LM" or category in ("Nd", "Nl", "Pc") or c in EXTRA_WORD
    canonical = is_hangul_syllable(c) or decomposition(c, "NFD", UNKNOWN_CANONICAL)
    compat = is_hangul_syllable(c) or decomposition(c, "NFKD", UNKNOWN_COMPAT)
    maybe = ccc(c) or c in seconds or 0x1161 <= c <= 0x1175 or 0x11A8 <= c <= 0x11C2
    flags = {
        "WhiteSpace": c in WHITE_SPACE,
        "RegexWord": word or c in REGEX_WORD,
        "RustWord": word or c in RUST_WORD,
        "Punctuation": punctuation,
        "Numeric": category[0] == "N" or c in EXTRA_NUMERIC,
        "Mark": mark,
        "NfcUnstable": maybe or (canonical and ucd.normalize("NFC", chr(c)) != chr(c)),
        "NfkcUnstable": maybe or (compat and ucd.normalize("NFKC", chr(c)) != chr(c)),
        "Canonical": canonical,
        "Compat": compat,
        "Lower": lower(c) != chr(c),
    }
    return CATEGORIES.index(category), ccc(c), sum(1 << i for i, name in enumerate(FLAGS) if flags[name])


def two_stage(values, bits):
    """Equal blocks of 1 << bits values are stored once."""
    size = 1 << bits
    blocks, index, stage1 = [], {}, []
    for start in range(0, len(values), size):
        block = tuple(values[start:start + size])
        if block not in index:
            index[block] = len(blocks)
            blocks.append(block)
        stage1.append(index[block])
    return stage1, [value for block in blocks for value in block]


def array(out, kind, name, values):
    out.write(f"constexpr {kind} {name}[{len(values)}] = {{\n")
    line = ""
    for value in values:
        if len(line) + len(str(value)) > 98:
            out.write(line + "\n")
            line = ""
        line += f"{value},"
    out.write(line + "};\n")


def runs(values):
    """Pairs of a value and how often it follows itself, flattened."""
    pairs = []
    for value in values:
        if pairs and pairs[-1][0] == value:
            pairs[-1][1] += 1
        else:
            pairs.append([value, 1])
    return [x for pair in pairs for x in pair]


def mapping(out, name, table):
    """Sorted code points as steps from one to the next, the lengths of their texts, and all texts in one piece."""
    keys = sorted(table)
    array(out, "std::uint32_t", f"k{name}Steps", [b - a for a, b in zip([0] + keys, keys)])
    array(out, "std::uint8_t", f"k{name}Sizes", [len(table[c]) for c in keys])
    array(out, "char32_t", f"k{name}To", [ord(x) for c in keys for x in table[c]])


def write(out):
    pairs = compositions()
    seconds = {second for _, second in pairs}
    all_records = [record(c, seconds) for c in range(0x110000)]
    records = sorted(set(all_records))
    index = {r: i for i, r in enumerate(records)}
    stage1, stage2 = two_stage([index[r] for r in all_records], 7)
    stage1, stage0 = two_stage(stage1, 5)[::-1]
    out.write("// Generated; do not edit. The command that writes this file:\n"
              "// tokenizer/unicode/make_unicode_tables.py --out tokenizer/unicode/unicode_tables.inc\n"
              "// clang-format off\n")
    array(out, "CharRecord", "kRecords", ["{%d,%d,%d}" % r for r in records])
    array(out, "std::uint16_t", "kStage0", stage0)
    array(out, "std::uint16_t", "kStage1", stage1)
    assert len(records) <= 256
    out.write(f"constexpr std::size_t kStage2Size = {len(stage2)};\n")
    array(out, "std::uint16_t", "kStage2Runs", runs(stage2))
    canonical = {c: t for c in SCALARS if (t := decomposition(c, "NFD", UNKNOWN_CANONICAL))}
    compat = {c: t for c in SCALARS if (t := decomposition(c, "NFKD", UNKNOWN_COMPAT)) and t != canonical.get(c)}
    mapping(out, "Canonical", canonical)
    mapping(out, "Compat", compat)  # where it differs from the canonical one
    mapping(out, "Lower", {c: lower(c) for c in SCALARS if lower(c) != chr(c)})
    array(out, "Composition", "kCompositions", ["{%d,%d,%d}" % (*p, pairs[p]) for p in sorted(pairs)])


def check():
    from tokenizers import Regex, normalizers, pre_tokenizers
    seconds = {second for _, second in compositions()}
    records = {c: record(c, seconds) for c in SCALARS}

    def flagged(name):
        return {c for c in SCALARS if records[c][2] >> FLAGS.index(name) & 1}

    def removed(pre_tokenizer):
        return {c for c in SCALARS if not pre_tokenizer.pre_tokenize_str(chr(c))}

    def same(name, ours, theirs):
        wrong = sorted(ours ^ theirs)
        print(f"{name}: {len(wrong)} differ", [hex(c) for c in wrong[:10]])
        return not wrong

    ok = all([same(category, {c for c in SCALARS if CATEGORIES[records[c][0]] == category},
                   removed(pre_tokenizers.Split(Regex(r"\p{%s}" % category), "removed")))
              for category in CATEGORIES if category != "Cs"])
    ok &= same("\\s", flagged("WhiteSpace"), removed(pre_tokenizers.Split(Regex(r"\s"), "removed")))
    ok &= same("\\w", flagged("RegexWord"), removed(pre_tokenizers.Split(Regex(r"\w"), "removed")))
    ok &= same("Punctuation", flagged("Punctuation"), removed(pre_tokenizers.Punctuation("removed")))
    ok &= same("Digits", flagged("Numeric"), {
        c for c in SCALARS if len(pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("a" + chr(c))) == 2})
    ok &= same("StripAccents", flagged("Mark"), {c for c in SCALARS if not normalizers.StripAccents().normalize_str(chr(c))})
    ok &= same("Lowercase", {c for c in SCALARS if normalizers.Lowercase().normalize_str(chr(c)) != lower(c)}, set())
    for form, unknown in (("NFD", UNKNOWN_CANONICAL), ("NFKD", UNKNOWN_COMPAT)):
        normalizer = getattr(normalizers, form)()
        ok &= same(form, {c for c in SCALARS if not is_hangul_syllable(c) and
                          normalizer.normalize_str(chr(c)) != (decomposition(c, form, unknown) or chr(c))}, set())
    sys.exit(not ok)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out")
    args.add_argument("--check", action="store_true")
    a = args.parse_args()
    if ucd.unidata_version != "16.0.0":
        sys.exit(f"Unicode {ucd.unidata_version}: this needs 16.0.0; pip install unicodedata2==16.0.0")
    if a.check:
        check()
    if not a.out:
        args.error("--out or --check")
    with open(a.out, "w", encoding="ascii") as out:
        write(out)


if __name__ == "__main__":
    main()
