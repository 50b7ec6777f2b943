// Bazel compiles the label of a release into programs when it links them (build_label.cc); the
// merged library is linked by others, and has none.
#include "launcher/cli/program.h"

namespace nvllm::launcher {

const char* const kBuildLabel = "";

}  // namespace nvllm::launcher
