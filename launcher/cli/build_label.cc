// Compiled when a program is linked, not with its library (linkstamp in BUILD.bazel), so a new
// label rebuilds only this file. BUILD_EMBED_LABEL is the value of --embed_label with --stamp;
// otherwise "redacted".
namespace nvllm::launcher {

extern const char* const kBuildLabel;
const char* const kBuildLabel = BUILD_EMBED_LABEL;

}  // namespace nvllm::launcher
