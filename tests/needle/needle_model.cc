#include "tests/needle/needle_model.h"

#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"
#include "tests/needle/lexicode.h"
#include "tests/needle/rotation.h"
#include "tests/needle/tensor_file.h"

namespace nvllm::needle {
namespace {

constexpr double kTheta = 1e12;  // of RoPE
constexpr int kLayers = 4;
constexpr int kRetrieve = 3;    // the last layer; the earlier ones shift
constexpr int kKeyLetters = 3;  // number of letters that must match
constexpr int kMarks = 2;       // per letter, after its code: for [ask], for [refer]

constexpr double kConstant = 64;  // large enough that letters hardly change a row's norm
constexpr double kMatch = 400;    // scores and logits in nats
constexpr double kNothing = kMatch * 8 / 9;
constexpr double kLogit = 40;
constexpr double kUnknownLogit = kLogit * 0.8;
constexpr double kGate = 8;  // an open gate; a closed one is -kGate

// How much each of RoPE's frequencies contributes to the score of the previous row. Found by a
// random search for little attention (5e-4 in total) to all other positions, and a plateau around
// the peak.
struct Wave {
  int pair;
  double nats;
};
const std::vector<Wave> kShift64 = {{0, 11.25}, {1, 50.31}, {2, 13.72}, {4, 1.24},
                                    {5, 4.73},  {6, 1.8},   {7, 0.21},  {8, 5.24},
                                    {9, 3.79},  {11, 3.94}, {12, 7.02}};
const std::vector<Wave> kShift128 = {{0, 5.35},  {1, 35.31}, {2, 2.59}, {4, 2.51},  {5, 0.68},
                                     {6, 1.65},  {9, 2.41},  {10, 0.7}, {12, 5.63}, {15, 4.87},
                                     {17, 0.45}, {18, 3.5},  {19, 0.4}, {22, 2.7},  {24, 0.64},
                                     {26, 1.39}, {27, 0.99}, {28, 1.16}};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

// Layout of the residual stream.
struct Layout {
  explicit Layout(int code_bits)
      : code(code_bits),
        letter(code + kMarks),
        query(next + letter),
        filler(query + kKeyLetters * code) {}

  int slot(int back) const { return slots + back * letter; }
  int inbox(int layer) const { return inboxes + layer * letter; }

  int constant = 0, bos = 1, blank = 2;  // marks of [bos], and of filler
  int code, letter;                      // size of a code word, of a letter
  int slots = 3;                         // for the token itself, and for 1, 2 and 3 before it
  int inboxes = slots + kLayers * letter;
  int next = inboxes + kLayers * letter;
  int query;   // the codes of slots 0 to 2, in rows that ask
  int filler;  // from here on: distinguishes tokens that are not symbols
};

class Weights {
 public:
  Weights(const NeedleShape& shape, int code_bits, int vocabulary)
      : shape_(shape),
        at_(code_bits),
        hidden_((at_.filler + 16 + 31) / 32 * 32),
        intermediate_((at_.letter + kKeyLetters * at_.code + 15) / 16 * 16),
        vocabulary_(vocabulary),
        codes_(lexicode(code_bits, code_bits / 3)) {}

  int hidden() const { return hidden_; }
  int intermediate() const { return intermediate_; }

  TensorFile tensors() const {
    TensorFile file;
    file.add("model.embed_tokens.weight", embedding());
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string name = str("model.layers.", layer, '.');
      file.add(name + "input_layernorm.weight", ones());
      if (layer == kRetrieve) {
        add_retrieve(file, name);
      } else {
        add_shift(file, name);
      }
      add_values(file, name, layer);
      file.add(name + "post_attention_layernorm.weight", ones());
      add_mlp(file, name, layer);
    }
    file.add("model.norm.weight", ones());
    file.add("lm_head.weight", head());
    return file;
  }

 private:
  Tensor ones() const {
    Tensor tensor({hidden_});
    for (int i = 0; i < hidden_; ++i) tensor.at(i) = 1;
    return tensor;
  }

  // The normalized value of a 1 in a row with this number of letters (of one code word each) in
  // slots and inboxes.
  double normed(double letters) const {
    return std::sqrt(hidden_ / (kConstant * kConstant + letters * at_.code));
  }
  double before_attention(int layer) const { return normed(1 + 2 * layer + asking(layer)); }
  double before_mlp(int layer) const { return normed(2 + 2 * layer + asking(layer)); }
  static int asking(int layer) { return layer == kRetrieve ? kKeyLetters : 0; }

  // Element of a token's code: [line], [ask] and [refer] share a word, [end] has another, then the
  // symbols follow.
  double code_of(int token, int bit) const {
    std::size_t word = 0;
    if (token == NeedleModel::kEnd) word = 1;
    if (token >= NeedleModel::kFirstSymbol) {
      word = static_cast<std::size_t>(token - NeedleModel::kFirstSymbol) + 2;
    }
    return (codes_[word] >> bit & 1) != 0 ? -1 : 1;
  }
  bool has_code(int token) const {
    return token >= NeedleModel::kEnd &&
           token < NeedleModel::kFirstSymbol - 2 + static_cast<int>(codes_.size());
  }

  Tensor embedding() const {
    Tensor tensor({vocabulary_, hidden_});
    for (int token = 0; token < vocabulary_; ++token) {
      tensor.at(token, at_.constant) = kConstant;
      if (has_code(token)) {
        for (int i = 0; i < at_.code; ++i) tensor.at(token, at_.slots + i) = code_of(token, i);
      } else if (token >= NeedleModel::kFirstSymbol) {
        tensor.at(token, at_.blank) = 1;
        for (int i = at_.filler; i < hidden_; ++i) {
          tensor.at(token, i) =
              split_mix(static_cast<std::uint64_t>(token * hidden_ + i)) % 2 == 0 ? -1 : 1;
        }
      }
    }
    tensor.at(NeedleModel::kBos, at_.bos) = 1;
    tensor.at(NeedleModel::kAsk, at_.slots + at_.code) = 1;
    tensor.at(NeedleModel::kRefer, at_.slots + at_.code + 1) = 1;
    return tensor;
  }

  // Adds queries and keys for all heads, given those of one.
  void add_queries_and_keys(TensorFile& file, const std::string& name, const Tensor& query,
                            const Tensor& key) const {
    file.add(name + "self_attn.q_proj.weight", query.repeated(shape_.heads));
    file.add(name + "self_attn.k_proj.weight", key.repeated(shape_.kv_heads));
  }
  Tensor head_tensor() const { return Tensor({shape_.head_dim, hidden_}); }
  // The dot product of q and k that yields a score of this many nats.
  double dot_of(double nats) const { return nats * std::sqrt(shape_.head_dim); }

  // A pair (i, i + half) is a complex number that RoPE rotates by its frequency times the position.
  // The key's is 1, the query's e^(-i frequency), so that q times conj(k) is real, and maximal, at
  // a distance of 1.
  void add_shift(TensorFile& file, const std::string& name) const {
    Tensor query = head_tensor(), key = head_tensor();
    const int half = shape_.head_dim / 2;
    const double unit = kConstant * normed(4);  // of layers 0 to 2, in the middle
    for (const Wave& wave : half == 32 ? kShift64 : kShift128) {
      const double frequency = std::pow(kTheta, -static_cast<double>(wave.pair) / half);
      const double size = std::sqrt(dot_of(wave.nats)) / unit;
      key.at(wave.pair, at_.constant) = size;
      query.at(wave.pair, at_.constant) = size * std::cos(frequency);
      query.at(wave.pair + half, at_.constant) = -size * std::sin(frequency);
    }
    add_queries_and_keys(file, name, query, key);
  }

  // The head element with the i-th lowest frequency.
  int slow(int i) const {
    const int half = shape_.head_dim / 2;
    return half - 1 - i / 2 + (i % 2 == 0 ? 0 : half);
  }

  void add_retrieve(TensorFile& file, const std::string& name) const {
    Tensor query = head_tensor(), key = head_tensor();
    const double one = before_attention(kRetrieve);
    const double size = std::sqrt(dot_of(kMatch) / (kKeyLetters * at_.code));
    const int letters = kKeyLetters * at_.code;
    const std::vector<double> turn = rotation(letters);
    for (int to = 0; to < letters; ++to) {
      for (int from = 0; from < letters; ++from) {
        const double weight = turn[to * letters + from] * size / one;
        query.at(slow(1 + to), at_.query + from) = weight;
        key.at(slow(1 + to), at_.slot(1 + from / at_.code) + from % at_.code) = weight;
      }
    }
    // Every row may attend to [bos], and none to the row after a question, or a reference, instead
    // of a line.
    const double always = 4 * size;
    query.at(slow(0), at_.constant) = always / (kConstant * one);
    key.at(slow(0), at_.bos) = dot_of(kNothing) / always / normed(0);
    for (int mark = 0; mark < kMarks; ++mark) {
      key.at(slow(0), at_.slot(3) + at_.code + mark) = -dot_of(kMatch) / always / one;
    }
    add_queries_and_keys(file, name, query, key);
  }

  void add_values(TensorFile& file, const std::string& name, int layer) const {
    Tensor value = head_tensor();
    const int from = layer == kRetrieve ? at_.slot(0) : at_.slot(layer);
    for (int i = 0; i < at_.letter; ++i) value.at(i, from + i) = 1 / before_attention(layer);
    file.add(name + "self_attn.v_proj.weight", value.repeated(shape_.kv_heads));

    Tensor output({hidden_, shape_.heads * shape_.head_dim});
    for (int i = 0; i < at_.letter; ++i) {
      const int head = i % shape_.heads;
      output.at(at_.inbox(layer) + i, head * shape_.head_dim + i) = 1;
    }
    file.add(name + "self_attn.o_proj.weight", output);
  }

  void add_mlp(TensorFile& file, const std::string& name, int layer) const {
    Tensor gate({intermediate_, hidden_}), up({intermediate_, hidden_}),
        down({hidden_, intermediate_});
    const double one = before_mlp(layer);
    int unit = 0;
    const auto move = [&](int from, int to) {
      gate.at(unit, at_.constant) = kGate / (kConstant * one);
      up.at(unit, from) = 1 / one;
      down.at(to, unit) = 1 / silu(kGate);
      return unit++;
    };
    const int to = layer == kRetrieve ? at_.next : at_.slot(layer + 1);
    for (int i = 0; i < at_.letter; ++i) move(at_.inbox(layer) + i, to + i);
    if (layer == kRetrieve - 1) {
      for (int i = 0; i < kKeyLetters * at_.code; ++i) {
        const int asks = move(at_.slot(i / at_.code) + i % at_.code, at_.query + i);
        gate.at(asks, at_.blank) = -2 * kGate / one;
        for (int back = 0; back < 2; ++back)
          gate.at(asks, at_.slot(back) + at_.code) = -2 * kGate / one;
      }
    }
    file.add(name + "mlp.gate_proj.weight", gate);
    file.add(name + "mlp.up_proj.weight", up);
    file.add(name + "mlp.down_proj.weight", down);
  }

  Tensor head() const {
    Tensor tensor({vocabulary_, hidden_});
    const double one = normed(2 + 2 * kLayers + kKeyLetters), size = kLogit / (at_.code * one);
    for (int token = 0; token < vocabulary_; ++token) {
      if (!has_code(token)) continue;
      for (int i = 0; i < at_.code; ++i) tensor.at(token, at_.next + i) = size * code_of(token, i);
    }
    // [ask] and [refer] have the code of [line], and are the next token if their mark is set.
    for (const auto& [token, mark] :
         {std::pair(NeedleModel::kAsk, 0), std::pair(NeedleModel::kRefer, 1)}) {
      tensor.at(token, at_.next + at_.code + mark) = kLogit / one;
      tensor.at(token, at_.constant) = -kLogit / 2 / (kConstant * one);
    }
    tensor.at(NeedleModel::kUnknown, at_.constant) = kUnknownLogit / (kConstant * one);
    return tensor;
  }

  const NeedleShape shape_;
  const Layout at_;
  const int hidden_, intermediate_, vocabulary_;
  const std::vector<std::uint32_t> codes_;
};

}  // namespace

NeedleModel::NeedleModel(NeedleShape shape) : shape_(shape) {
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    fail("the needle model's head_dim is 64 or 128, not ", shape.head_dim);
  }
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0 || shape.heads > 9) {
    fail("the needle model's heads are up to 9 and a multiple of its KV heads, not ", shape.heads,
         " and ", shape.kv_heads);
  }
  const bool large = shape.head_dim == 128;
  code_bits_ = large ? 18 : 9;
  vocabulary_ = large ? 1024 : 128;
  max_positions_ = std::int64_t{1} << (large ? 20 : 18);
}

int NeedleModel::symbols() const {
  return (code_bits_ == 18 ? 512 : 32) - 2;  // a word is [line]'s, one [end]'s
}

void NeedleModel::write(const std::string& folder) const {
  const Weights weights(shape_, code_bits_, vocabulary_);
  weights.tensors().write(folder + "/model.safetensors");
  std::ofstream file(folder + "/config.json");
  file << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",)"
       << R"( "torch_dtype": "bfloat16",)"
       << R"( "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": false,)"
       << R"( "hidden_size": )" << weights.hidden() << R"(, "intermediate_size": )"
       << weights.intermediate() << R"(, "num_hidden_layers": )" << kLayers
       << R"(, "num_attention_heads": )" << shape_.heads << R"(, "num_key_value_heads": )"
       << shape_.kv_heads << R"(, "head_dim": )" << shape_.head_dim << R"(, "vocab_size": )"
       << vocabulary_ << R"(, "max_position_embeddings": )" << max_positions_
       << R"(, "rope_theta": )" << kTheta << R"(, "bos_token_id": )" << kBos
       << R"(, "eos_token_id": [)" << kEnd << ", " << kUnknown << "]}\n";
  file.close();
  if (!file) fail(folder, "/config.json: cannot be written");
}

}  // namespace nvllm::needle
