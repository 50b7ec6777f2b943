// Calls of linear attention with their values on the host: the sequences of a step, the operands of
// the gated delta rule, and how a call runs on a backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/linear_attention/linear_attention.h"
#include "kernels/testing/cases.h"

namespace nvllm::kernels::testing {

// Sequences of a step: their rows, how many tokens were there before, and their slots.
struct Sequences {
  std::vector<std::int32_t> query_start = {0}, kv_length, slots;

  void add(std::int64_t rows, std::int64_t before, std::int64_t slot) {
    query_start.push_back(query_start.back() + static_cast<std::int32_t>(rows));
    kv_length.push_back(static_cast<std::int32_t>(before + rows));
    slots.push_back(static_cast<std::int32_t>(slot));
  }
  std::int64_t rows() const { return query_start.back(); }
  StateRows view() {
    const auto count = static_cast<std::int64_t>(slots.size());
    return {.query_start = {query_start.data(), DType::i32, {count + 1}},
            .kv_length = {kv_length.data(), DType::i32, {count}},
            .slots = {slots.data(), DType::i32, {count}}};
  }
};

// Some that start, some that go on, one without rows and some padding; slots in any order.
inline Sequences random_sequences(std::mt19937& random, std::int64_t slots,
                                  std::int64_t max_rows = 6) {
  Sequences sequences;
  std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::ranges::shuffle(order, random);
  for (const std::int64_t slot : order) {
    const auto rows = static_cast<std::int64_t>(random() % (max_rows + 1));
    sequences.add(rows, random() % 3 == 0 ? 0 : 1 + static_cast<std::int64_t>(random() % 9), slot);
  }
  sequences.add(1, 0, -1);
  sequences.add(2, 3, -1);
  return sequences;
}

template <typename T>
struct Delta {
  std::int64_t key_heads, group, dk, dv, slots;
  std::vector<float> a_log, dt_bias, norm, state;
  bool chunks = false;  // whether there is scratch memory for them

  Delta(std::int64_t key_heads, std::int64_t group, std::int64_t dk, std::int64_t dv,
        std::int64_t slots, unsigned seed)
      : key_heads(key_heads),
        group(group),
        dk(dk),
        dv(dv),
        slots(slots),
        a_log(normal_values<float>(heads(), seed)),
        dt_bias(normal_values<float>(heads(), seed + 1)),
        norm(normal_values<float>(dv, seed + 2, 1, 0.2f)),
        state(normal_values<float>(slots * heads() * dk * dv, seed + 3)) {}

  std::int64_t heads() const { return key_heads * group; }
  std::int64_t qkv_columns() const { return 2 * key_heads * dk + heads() * dv; }

  struct Inputs {
    std::vector<T> qkv, z;
    std::vector<float> ba;
  };
  Inputs inputs(std::int64_t rows, unsigned seed) const {
    return {normal_values<T>(rows * qkv_columns(), seed),
            normal_values<T>(rows * heads() * dv, seed + 1),
            normal_values<float>(rows * 2 * heads(), seed + 2, 0, 2)};
  }
  // The inputs of rows [begin, end).
  Inputs part(const Inputs& all, std::int64_t begin, std::int64_t end) const {
    const auto cut = [&](const auto& values, std::int64_t columns) {
      return std::decay_t<decltype(values)>(values.begin() + begin * columns,
                                            values.begin() + end * columns);
    };
    return {cut(all.qkv, qkv_columns()), cut(all.z, heads() * dv), cut(all.ba, 2 * heads())};
  }

  template <typename Run>
  std::vector<T> run(Inputs in, Sequences sequences, const Run& run) {
    const std::int64_t rows = sequences.rows();
    std::vector<T> out(static_cast<std::size_t>(rows * heads() * dv), from_float<T>(-9));
    std::vector<unsigned char> memory;
    if (chunks) {
      const std::int64_t bytes = delta_chunk_bytes(rows, std::ssize(sequences.slots), heads());
      memory.resize(static_cast<std::size_t>(bytes));
    }
    run(GatedDeltaRule{.out = {out.data(), dtype_of<T>, {rows, heads() * dv}},
                       .qkv = {in.qkv.data(), dtype_of<T>, {rows, qkv_columns()}},
                       .z = {in.z.data(), dtype_of<T>, {rows, heads() * dv}},
                       .ba = {in.ba.data(), DType::f32, {rows, 2 * heads()}},
                       .a_log = {a_log.data(), DType::f32, {heads()}},
                       .dt_bias = {dt_bias.data(), DType::f32, {heads()}},
                       .norm = {norm.data(), DType::f32, {dv}},
                       .state = {state.data(), DType::f32, {slots, heads(), dk, dv}},
                       .rows = sequences.view(),
                       .key_heads = key_heads,
                       .chunks = chunks ? TensorView(memory.data(), DType::u8, {std::ssize(memory)})
                                        : TensorView()});
    return out;
  }
};

inline std::vector<TensorView*> tensors_of(CausalConv& args) {
  return {&args.out, &args.x, &args.weight, &args.state};
}
inline std::vector<TensorView*> tensors_of(GatedDeltaRule& args) {
  std::vector<TensorView*> tensors = {&args.out,   &args.qkv,     &args.z,    &args.ba,
                                      &args.a_log, &args.dt_bias, &args.norm, &args.state};
  if (args.chunks.data != nullptr) tensors.push_back(&args.chunks);
  return tensors;
}

// A tensor of the host, in a backend's memory.
class There {
 public:
  There(Backend& backend, Stream& stream, TensorView& view)
      : here_(static_cast<unsigned char*>(view.data)), bytes_(backend, stream, bytes_of(view)) {
    view.data = bytes_.data();
  }

  void fetch() {
    const std::vector<unsigned char> bytes = bytes_.fetch();
    std::ranges::copy(bytes, here_);
  }

 private:
  static std::vector<unsigned char> bytes_of(const TensorView& view) {
    std::int64_t count = view.elements() > 0;
    for (int axis = 0; count > 0 && axis < view.rank; ++axis) {
      count += (view.shape[axis] - 1) * view.stride[axis];
    }
    const auto* const from = static_cast<const unsigned char*>(view.data);
    return {from, from + count * static_cast<std::int64_t>(size_of(view.dtype))};
  }

  unsigned char* here_;
  Placed<unsigned char> bytes_;
};

// The operation on a stream, with tensors of the host.
template <typename Operation>
auto on(Backend& backend, Stream& stream, const Operation& operation) {
  return [&backend, &stream, operation](auto args) {
    std::deque<There> there;
    std::vector<TensorView*> tensors = tensors_of(args);
    for (TensorView* row : {&args.rows.query_start, &args.rows.kv_length, &args.rows.slots}) {
      tensors.push_back(row);
    }
    for (TensorView* tensor : tensors) there.emplace_back(backend, stream, *tensor);
    stream.synchronize();
    operation(args, stream);
    for (There& tensor : there) tensor.fetch();
  };
}

}  // namespace nvllm::kernels::testing
