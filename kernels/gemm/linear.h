// Linear: products with weight matrices, and what may be done in the same pass before and after.
//
//   auto matmul = create_matmul(*backend);
//   matmul->linear({.out = q, .x = hidden, .weight = w, .bias = b}, *stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "device/backend.h"
#include "device/tensor_view.h"
#include "kernels/gemm/kv_prefetch.h"
#include "kernels/pointwise/activation.h"
#include "kernels/sampling/sample_tokens.h"

namespace nvllm::kernels {

// The first half of an RMSNorm of rows, left by the product that makes them, for the one that reads them through the
// norm: that has a factor for each row to find then, and no pass over all of them lies between.
struct BegunNorm {
  TensorView
      weighted;  // [rows, columns], dense, of the rows' type: times the norm's weight, rounded once
  TensorView
      squares;  // [columns / kSquaresColumns, kSquaresRows], float32: each row's over so many columns
};
inline constexpr std::int64_t kSquaresColumns = 64, kSquaresRows = 128;

// out = [residual +] after(before(x) · weightᵀ [+ bias])
//
// Sums are taken in float32 (order unspecified) and rounded to out's type once; or again when a
// bias or a residual is added. With bfloat16, subnormal values (below 1.2e-38) may count as zero, as
// processors have it. All tensors are of one type (float32, bfloat16 or float16), but out may
// be float32 whatever the others are. Any number of rows, outputs and inputs, also 0 (with 0 inputs the
// product is 0). Rows of x, out and residual may lie apart (stride[0] >= columns), those of x only with
// nothing before; everything else is dense.
//
// weight, bias and norm_weight are constants: kernels read them ahead of the work that is enqueued
// before theirs. Who writes them waits for that (Stream::synchronize) before the first product.
struct Linear {
  TensorView out;       // [rows, outputs]; after a gated activation [rows, outputs / 2]
  TensorView x;         // [rows, inputs]; before a gated activation [rows, 2 * inputs], gate first
  TensorView weight;    // [outputs, inputs], as checkpoints hold it
  TensorView bias;      // [outputs]; data == nullptr: none
  TensorView residual;  // [rows, outputs], of x's type, may be out; data == nullptr: none

  // What happens to x first, with exactly the roundings of the operation itself: nothing, RMSNorm
  // (kernels/pointwise/rmsnorm.h) or a gated activation (kernels/pointwise/activation.h). Fused where that is
  // faster; else the result goes to `scratch`, which must not overlap the others. Without anything
  // before, norm_weight and scratch are not looked at.
  enum class Before : std::uint8_t { nothing, rms_norm, gated_activation };
  Before before = Before::nothing;
  TensorView norm_weight;  // [inputs]
  float epsilon = 1e-6f;
  Activation activation = Activation::silu;
  TensorView scratch;  // [at least rows, inputs], of x's type
  // Of x's norm, if data are not nullptr. `weighted` may be scratch. Kernels go on from there, or from x: in the first
  // case a row of the product is that of `weighted` times 1 / sqrt(sum of its squares / inputs + epsilon).
  BegunNorm begun;

  // What happens to the product then: nothing, or the first half of the outputs are gates of the second half, with
  // the roundings of kernels/pointwise/activation.h, and of the product before. All tensors are of one type then, and
  // there is no residual. Fused where that is faster; else the product goes to `product`, which must not
  // overlap the others. Without anything after, `product` is not looked at.
  enum class After : std::uint8_t { nothing, gated_activation };
  After after = After::nothing;
  TensorView product;  // [at least rows, outputs]

  // Of out's norm to come, by this weight; only where Matmul::begins_norm() says so. data == nullptr: none.
  BegunNorm begins;
  TensorView next_norm_weight;  // [outputs]

  // What attention will read before long, when the product has ended; it changes nothing of the product. Some kernels
  // fetch of it while they end. Its table and lengths are read like x.
  KvAhead ahead;
};

// What Matmul::tune() chose, as text: by what it holds for (the device, its libraries, a kind of product and a
// number of rows) how such products are computed.
using ProductChoices = std::map<std::string, std::string>;

// Products of one rank: the handles, tuned choices and workspaces that they keep between calls.
// Used by one thread and for one stream at a time.
class Matmul {
 public:
  virtual ~Matmul() = default;

  // Enqueues it: no allocation, no synchronisation; may be captured in a graph. An argument that does
  // not fit is an Error that names it.
  virtual void linear(const Linear& args, Stream& stream) = 0;

  // Whether an activation after a product like this is fused into it. Else it is best left to what reads it.
  virtual bool fuses_after(const Linear& /*args*/) { return false; }

  // Whether a product like this, but for what it begins, can begin the norm of its result.
  virtual bool begins_norm(const Linear& /*args*/) { return false; }

  // Enqueues a product together with the drawing of tokens from its rows, which are draw.rows.logits and need not be written
  // down: they are worth nothing afterwards. The tokens are those of linear() and sample_tokens(). False, with nothing
  // done, where the two are as good.
  virtual bool draw(const Linear& /*product*/, const SampleTokens& /*draw*/, Stream& /*stream*/) {
    return false;
  }

  // Chooses the fastest way for products like these, of which there is at least one, with about as many rows,
  // by measuring where that is worth it and has not been done. They differ in nothing but where their tensors
  // lie; it is best to give those of all layers. Optional; without it the choice is made from what is known of
  // the shape. May allocate and waits for the stream. Nothing of what args point to is changed but `out` and
  // `scratch`.
  virtual void tune(std::span<const Linear> alike, Stream& stream) = 0;
  void tune(const Linear& one, Stream& stream) { tune(std::span(&one, 1), stream); }

  // What tune() has found.
  virtual ProductChoices choices() const { return {}; }
  // What it found in earlier runs, here or elsewhere; before the first product. What does not hold here, or
  // is no choice at all, counts for nothing.
  virtual void adopt(ProductChoices /*choices*/) {}
  // How many of those may hold here. May wait until libraries have been loaded.
  virtual std::size_t known() { return 0; }
};

std::unique_ptr<Matmul> create_matmul(Backend& backend);

// Device memory that one takes from its start on. (On the CPU it takes some as it needs it.)
std::size_t matmul_bytes(DeviceKind device);

// What linear() checks first.
void check_linear(const Linear& args);

// The plain definition, run at once by the caller: what every fast version is compared with.
void linear_reference(const Linear& args);
// Begins the norm of out as it is.
void begin_norm_reference(const Linear& args);

}  // namespace nvllm::kernels
