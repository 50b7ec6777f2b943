// Compiled when a program is linked, not with its library (linkstamp in BUILD.bazel), and so the
// only thing that a new label builds again. BUILD_EMBED_LABEL is what --embed_label says, with
// --stamp; without it, "redacted".
namespace nvllm::launcher {

extern const char* const kBuildLabel;
const char* const kBuildLabel = BUILD_EMBED_LABEL;

}  // namespace nvllm::launcher
