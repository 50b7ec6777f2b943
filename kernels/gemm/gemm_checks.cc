// What a GEMM must be given.
#include "base/error.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_steps.h"

namespace nvllm::kernels {
namespace {

void check_type(const TensorView& tensor, const char* name, DType type) {
  if (tensor.dtype != type) {
    fail("gemm: ", name, " is ", tensor.describe(), ", but weight is ", name_of(type),
         "; all tensors must be of one type, except that out may be float32");
  }
  // The types have the size of their alignment.
  if (!tensor.aligned(size_of(tensor.dtype))) {
    fail("gemm: ", name, " lies at ", tensor.data, ", which is no address of a ",
         name_of(tensor.dtype));
  }
}

void check_dense(const TensorView& tensor, const char* name, DType type) {
  require_contiguous(tensor, "gemm", name);
  check_type(tensor, name, type);
}

// Checks the shape, and that rows are dense, in ascending order and disjoint.
void check_rows(const TensorView& tensor, const char* name, const char* shape, std::int64_t rows,
                std::int64_t columns) {
  if (tensor.rank != 2 || tensor.shape[0] != rows || tensor.shape[1] != columns) {
    fail("gemm: ", name, " is ", tensor.describe(), "; it must be ", shape, ", [", rows, ", ",
         columns, "]");
  }
  if (tensor.elements() == 0) return;
  if ((columns > 1 && tensor.stride[1] != 1) || (rows > 1 && tensor.stride[0] < columns)) {
    fail("gemm: ", name, " is ", tensor.describe(), " with strides [", tensor.stride[0], ", ",
         tensor.stride[1], "]; its rows must be dense, and may lie apart but not overlap");
  }
}

// Values and scales, as quantized_weight.h says.
void check_quantized(const GemmWeight& weight) {
  const QuantizedShape shape = weight.quantized_shape();
  const std::int64_t group = shape.group, min_group = shape.format == WeightFormat::int4 ? 32 : 16;
  bool fits = group >= min_group && group <= 128 && 128 % group == 0;
  if (shape.format == WeightFormat::fp8) fits = group == kFp8Group;
  if (shape.format == WeightFormat::mxfp4) fits = group == kMxfp4Group;
  if (!fits) {
    fail("gemm: weight has groups of ", group, " inputs, which ", name_of(shape.format),
         " does not have");
  }
  check_rows(weight.values, "weight", "[outputs, bytes of a row]", shape.outputs,
             shape.row_bytes());
  check_dense(weight.values, "weight", DType::u8);
  check_rows(weight.quantized.scales, "scales", "[outputs, groups]", shape.outputs,
             shape.scale_columns());
  check_dense(weight.quantized.scales, "scales", shape.scale_type());
  format_of(weight.type());  // an Error if it is no type of x
}

void check_vector(const TensorView& tensor, const char* name, std::int64_t columns, DType type) {
  if (tensor.rank != 1 || tensor.shape[0] != columns) {
    fail("gemm: ", name, " is ", tensor.describe(), "; with this weight it must be [", columns,
         "]");
  }
  check_dense(tensor, name, type);
}

// Checks for memory of at least this many rows, which a separate prologue or epilogue kernel needs.
void check_memory(const TensorView& tensor, const char* name, const char* what, std::int64_t rows,
                  std::int64_t columns, DType type) {
  if (tensor.rank != 2 || tensor.shape[0] < rows || tensor.shape[1] != columns) {
    fail("gemm: ", name, " is ", tensor.describe(), "; ", what, " needs [at least ", rows, ", ",
         columns, "]");
  }
  check_dense(tensor, name, type);
}

void check_deferred(const DeferredNorm& norm, const char* weighted, const char* squares,
                    std::int64_t rows, std::int64_t columns, DType type) {
  check_rows(norm.weighted, weighted, "[rows, columns]", rows, columns);
  check_dense(norm.weighted, weighted, type);
  if (rows > kSquaresRows || columns % kSquaresColumns != 0) {
    fail("gemm: ", squares, " is ", norm.squares.describe(), " for [", rows, ", ", columns,
         "]; a norm is deferred for up to ", kSquaresRows, " rows of a multiple of ",
         kSquaresColumns, " columns");
  }
  check_rows(norm.squares, squares, "[columns / 64, 128]", columns / kSquaresColumns, kSquaresRows);
  require_contiguous(norm.squares, "gemm", squares);
  check_type(norm.squares, squares, DType::f32);
}

void check_prologue(const GemmCall& call, DType type) {
  const GemmOperands::PrologueOperands& prologue = call.operands.prologue;
  const Prologue wanted = call.plan.shape.fusion.prologue;
  const std::int64_t rows = call.operands.x.shape[0], inputs = call.weight.inputs();
  if (prologue.deferred.exists()) {
    if (wanted == Prologue::gated_activation) {
      fail("gemm: prologue.deferred.squares is ", prologue.deferred.squares.describe(),
           "; a gated activation as the prologue has no norm");
    }
    check_deferred(prologue.deferred, "prologue.deferred.weighted", "prologue.deferred.squares",
                   rows, inputs, type);
  }
  if (wanted == Prologue::none) return;
  check_memory(prologue.prepared, "prologue.prepared", "the prologue", rows, inputs, type);
  if (wanted == Prologue::gated_activation)
    return check_gated_activation(prologue_activation(call));
  check_rms_norm(norm_of(call));
}

void check_epilogue(const GemmCall& call, DType type) {
  const GemmOperands& operands = call.operands;
  const GemmOperands::EpilogueOperands& epilogue = operands.epilogue;
  const std::int64_t rows = operands.out.shape[0], outputs = call.weight.outputs();
  if (epilogue.deferred.exists()) {
    check_deferred(epilogue.deferred, "epilogue.deferred.weighted", "epilogue.deferred.squares",
                   rows, operands.out.shape[1], type);
    check_vector(epilogue.norm_weight, "epilogue.norm_weight", operands.out.shape[1], type);
  }
  if (call.plan.shape.fusion.epilogue == Epilogue::none) return;
  if (operands.out.dtype != type) {  // the rows ahead of the activation are of out's type
    fail("gemm: out is ", operands.out.describe(), ", but weight is ", name_of(type),
         "; with a gated activation as the epilogue they must be of one type");
  }
  if (operands.residual.data != nullptr) {
    fail("gemm: residual is ", operands.residual.describe(),
         "; with a gated activation as the epilogue there is none");
  }
  check_memory(epilogue.gate_up, "epilogue.gate_up", "the epilogue", rows, outputs, type);
  check_gated_activation(epilogue_activation(call));
}

// Values, and scales if there are.
void check_weight(const GemmWeight& weight) {
  if (weight.values.rank != 2) {
    fail("gemm: weight is ", weight.values.describe(), "; it must be [outputs, inputs]");
  }
  if (is_quantized(weight.format)) {
    check_quantized(weight);
  } else if (format_of(weight.type()) != weight.format) {
    fail("gemm: weight is ", weight.values.describe(), ", which is not its format");
  } else {
    check_dense(weight.values, "weight", weight.type());
  }
}

}  // namespace

void check_gemm(const GemmCall& call) {
  const GemmOperands& operands = call.operands;
  const GemmFusion& fusion = call.plan.shape.fusion;
  const DType type = call.weight.type();
  check_weight(call.weight);
  const std::int64_t outputs = call.weight.outputs(), inputs = call.weight.inputs();
  const bool gated = fusion.prologue == Prologue::gated_activation;
  const std::int64_t rows = operands.x.rank == 2 ? operands.x.shape[0] : 0;
  check_rows(operands.x, "x", gated ? "[rows, 2 * inputs]" : "[rows, inputs]", rows,
             gated ? 2 * inputs : inputs);
  check_type(operands.x, "x", type);
  const bool gates = fusion.epilogue == Epilogue::gated_activation;
  check_rows(operands.out, "out", gates ? "[rows of x, outputs / 2]" : "[rows of x, outputs]", rows,
             gates ? outputs / 2 : outputs);
  check_type(operands.out, "out", operands.out.dtype == DType::f32 ? DType::f32 : type);
  if (call.weight.bias.data != nullptr) check_vector(call.weight.bias, "bias", outputs, type);
  if (operands.residual.data != nullptr) {
    check_rows(operands.residual, "residual", "[rows of x, outputs]", rows, outputs);
    check_type(operands.residual, "residual", type);
  }
  check_prologue(call, type);
  check_epilogue(call, type);
  if (operands.kv_prefetch.kv.keys.data != nullptr) check_kv_prefetch(operands.kv_prefetch, "gemm");
}

void check_grouped_gemm(const GroupedGemm& grouped) {
  const GemmWeight& weight = grouped.weight;
  const DType type = weight.type();
  check_weight(weight);
  if (grouped.start.rank != 1 || grouped.start.shape[0] < 2 || grouped.start.dtype != DType::i32) {
    fail("gemm: start is ", grouped.start.describe(), "; it must be int32 [groups + 1]");
  }
  require_contiguous(grouped.start, "gemm", "start");
  if (weight.outputs() % grouped.groups() != 0) {
    fail("gemm: weight is ", weight.values.describe(),
         "; it must be [groups * outputs, inputs] of ", grouped.groups(), " groups");
  }
  const bool gathers = grouped.source_rows.data != nullptr;
  const std::int64_t x_rows = grouped.x.rank == 2 ? grouped.x.shape[0] : 0;
  const std::int64_t rows = gathers ? grouped.source_rows.elements() : x_rows;
  check_rows(grouped.x, "x", "[rows, inputs]", x_rows, weight.inputs());
  check_dense(grouped.x, "x", type);
  if (gathers) {
    if (grouped.source_rows.rank != 1 || grouped.source_rows.dtype != DType::i32) {
      fail("gemm: source_rows is ", grouped.source_rows.describe(), "; it must be int32 [rows]");
    }
    require_contiguous(grouped.source_rows, "gemm", "source_rows");
    check_memory(grouped.gathered, "gathered", "a gather", rows, weight.inputs(), type);
  }
  if (grouped.epilogue == Epilogue::none) {
    check_rows(grouped.out, "out", "[rows of x, outputs]", rows, grouped.outputs());
  } else {
    if (grouped.outputs() % 2 != 0) {
      fail("gemm: weight is ", weight.values.describe(), " of ", grouped.groups(),
           " groups; ahead of a gated activation each must have an even number of outputs");
    }
    check_rows(grouped.out, "out", "[rows of x, outputs / 2]", rows, grouped.outputs() / 2);
    check_memory(grouped.gate_up, "gate_up", "the epilogue", rows, grouped.outputs(), type);
  }
  check_dense(grouped.out, "out", type);
  if (weight.bias.data != nullptr) check_vector(weight.bias, "bias", weight.outputs(), type);
}

void check_segmented_gemm(const SegmentedGemm& gemm) {
  check_tree_sum(gemm.sum);
  check_weight(gemm.weight);
  const std::int64_t segments = gemm.segments(), inputs = gemm.weight.inputs();
  if (gemm.weight.outputs() != segments * gemm.outputs() || gemm.weight.bias.data != nullptr) {
    fail("gemm: weight is ", gemm.weight.values.describe(), "; of ", segments,
         " segments it must have ", segments * gemm.outputs(), " outputs, without bias");
  }
  check_rows(gemm.x, "x", "[rows of out, segments * inputs]", gemm.m(), segments * inputs);
  check_type(gemm.x, "x", gemm.weight.type());
  for (std::int64_t n = 0; n < segments; ++n) {
    if (gemm.sum.blocks[static_cast<std::size_t>(n)] == n) continue;
    fail("gemm: segment ", n, " is block ", int{gemm.sum.blocks[static_cast<std::size_t>(n)]},
         " of the sum; it must be its own");
  }
}

}  // namespace nvllm::kernels
