#pragma once

#include "launcher/console.h"
#include "launcher/load_progress.h"
#include "runtime/model/model_loading.h"

namespace nvllm::launcher {

// Shows on standard error how far loading is, as long as it lives.
class LoadDisplay {
 public:
  explicit LoadDisplay(Console& console);  // which must outlive it
  LoadDisplay(const LoadDisplay&) = delete;
  LoadDisplay& operator=(const LoadDisplay&) = delete;
  ~LoadDisplay();

  void show(const runtime::LoadState& state);

 private:
  Console& console_;
  LoadProgressText text_;
};

}  // namespace nvllm::launcher
