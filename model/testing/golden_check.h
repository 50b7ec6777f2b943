// GoldenCheck: a whole model against transformers' numbers in tests/data/golden-models.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/testing/test_model.h"
#include "testing/golden.h"

namespace nvllm::model {

struct GoldenPrompt {
  std::vector<std::int32_t> ids, continuation;
  std::vector<float> margins;
  std::vector<float> last_logits;
};

// What is expected of a model. With dynamic NTK scaling that is the one table for all lengths;
// `unstretched`: what transformers computes of the first prompt, which with its continuation is
// within the original length.
struct GoldenModel {
  explicit GoldenModel(const std::string& name, bool unstretched = false);

  std::string folder;
  std::map<std::string, testing::GoldenTensor> tensors;
  bool dynamic;
  std::vector<GoldenPrompt> prompts;
};

// How far logits and hidden states may be off: see what transformers' own bfloat16 is off by,
// doubled.
struct GoldenLimits {
  float logits, logits_rms, hidden, margin;
};

// A model under test, and the first thing that is wrong with it.
class GoldenCheck {
 public:
  struct How {
    bool paged = true;
    bool keep_quantized = false;  // weights that are so in the checkpoint
    bool unstretched = false;     // without RoPE scaling
    bool expert_parallel = false;
    bool tp_invariant = false;
  };
  GoldenCheck(testing::DeviceRank& rank, const std::string& name, DType dtype, const How& how);

  ModelConfig config_of(const How& how) const;

  bool keeps_some() const { return model_.decoder().quantized(); }
  // All logits and hidden states of the first prompt.
  std::string first_prompt();
  // Prompts together, then token by token, together; the expected tokens are given, whatever was
  // chosen.
  std::string continuations();
  // The last prompt in pieces of this size; 0: of many.
  std::string in_pieces(std::size_t size = 0);
  // The last logits of the prompts together; none on stages without the head.
  std::vector<std::vector<float>> last_logits() {
    return model_.forward(prompts(), TestModel::Logits::last);
  }
  // A step of all sequences as a graph: the bits of the same at once.
  std::string in_a_graph();
  // Every GEMM configuration that tuning can choose must be as right as the untuned one.
  std::string tuned() {
    model_.tune(prompts(), TestModel::Logits::all);
    model_.tune({prompts()[0]}, TestModel::Logits::last);
    const std::string wrong = first_prompt();
    return wrong.empty() ? continuations() : wrong;
  }

 private:
  std::string compare(const std::string& what, const std::vector<float>& got,
                      const std::vector<float>& right, float limit, float limit_rms) const;
  std::string compare_logits(const std::string& what, const std::vector<float>& got,
                             const std::vector<float>& right) const {
    return compare(what, got, right, limits_.logits, limits_.logits_rms);
  }
  TestModel::Parts prompts() const;

  std::string name_;
  GoldenModel expected_;
  GoldenLimits limits_;
  Checkpoint checkpoint_;
  TestModel model_;
};

}  // namespace nvllm::model
