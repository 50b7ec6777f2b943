"""cc_tools: the C++ compiler and its features, for rules that compile with it."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def cc_tools(ctx):
    """(toolchain, feature configuration) of a rule that names the C++ toolchain type."""
    toolchain = find_cpp_toolchain(ctx)
    return toolchain, cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
