#include "tokenizer/gguf_pre.h"

#include "base/error.h"

namespace nvllm::tokenizer {
namespace {

constexpr const char* kNfc = R"({"type": "NFC"})";
// What every byte-level pre-tokenizer ends with; the pattern has been applied before.
constexpr const char* kToBytes =
    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
// GPT-2's own pattern.
constexpr const char* kGpt2Bytes =
    R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})";
constexpr const char* kSingleDigits = R"({"type": "Digits", "individual_digits": true})";

constexpr const char* kOneDigit =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})re";
constexpr const char* kThreeDigits =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})re";
constexpr const char* kTekken =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})re";
constexpr const char* kDeepSeekNumbers =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\p{N}{1,3}"}})re";
constexpr const char* kDeepSeekIdeographs =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "[一-龥぀-ゟ゠-ヿ]+"}})re";
constexpr const char* kDeepSeekWords =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}})re";
// The same before version 3.
constexpr const char* kLineBreaks =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "[\r\n]"}})re";
constexpr const char* kCoderWords =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\s?\\p{L}+"}})re";
constexpr const char* kCoderPunctuation =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\s?\\p{P}+"}})re";
constexpr const char* kOldIdeographs =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "[\u4e00-\u9fa5\u0800-)re"
    R"re(\u4e00\uac00-\ud7ff]+"}})re";
// Letters of two cases, as of some version of Unicode.
constexpr const char* kLlmWords =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\s?[A-Za-z\u00b5\u00c0-)re"
    R"re(\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373)re"
    R"re(\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5)re"
    R"re(\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-)re"
    R"re(\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d)re"
    R"re(\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4)re"
    R"re(\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec)re"
    R"re(\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128)re"
    R"re(\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-)re"
    R"re(\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f)re"
    R"re(\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-)re"
    R"re(\uff5a\ud801\udc00-\ud801\udc4f\ud801\udcb0-\ud801\udcd3\ud801\udcd8-\ud801\udcfb\ud803)re"
    R"re(\udc80-\ud803\udcb2\ud803\udcc0-\ud803\udcf2\ud806\udca0-\ud806\udcdf\ud83a\udd00-\ud83a)re"
    R"re(\udd43]+"}})re";
constexpr const char* kLlmPunctuation =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\s?[!-/:-~\uff01-\uff0f)re"
    R"re(\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"}})re";
constexpr const char* kSpacesAtEnd =
    R"re({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\s+$"}})re";

const std::vector<GgufPre>& known_pres() {
  static const std::vector<GgufPre> known = {
      {.names = {"gpt-2", "gpt2"}, .steps = {kGpt2Bytes}},
      {.names = {"smollm"}, .steps = {kSingleDigits, kGpt2Bytes}},
      {.names = {"qwen2", "deepseek-r1-qwen"}, .normalizer = kNfc, .steps = {kOneDigit, kToBytes}},
      {.names = {"llama-bpe", "llama3", "llama-v3"},
       .steps = {kThreeDigits, kToBytes},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"tekken"}, .steps = {kTekken, kToBytes}, .ignore_merges = true, .add_bos = true},
      {.names = {"deepseek-v3"},
       .steps = {kDeepSeekNumbers, kDeepSeekIdeographs, kDeepSeekWords, kToBytes}},
      {.names = {"deepseek-llm"},
       .steps = {kLineBreaks, kLlmWords, kLlmPunctuation, kSpacesAtEnd, kOldIdeographs,
                 kSingleDigits, kToBytes}},
      {.names = {"deepseek-coder"},
       .steps = {kLineBreaks, kCoderWords, kCoderPunctuation, kOldIdeographs, kSingleDigits,
                 kToBytes}},
  };
  return known;
}

}  // namespace

const GgufPre& find_gguf_pre(const std::optional<std::string>& name) {
  std::string names;
  for (const GgufPre& pre : known_pres()) {
    for (const char* known : pre.names) {
      if (name == known) return pre;
      names += str(names.empty() ? "" : ", ", known);
    }
  }
  if (!name) {
    fail(
        "tokenizer.ggml.pre is missing, so how text is cut into words is not known; supported are ",
        names);
  }
  fail("tokenizer.ggml.pre \"", *name, "\" is not supported; supported are ", names);
}

}  // namespace nvllm::tokenizer
