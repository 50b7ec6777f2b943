"""unity_library: a cc_library whose sources are compiled a dozen at a time, as one file that includes them.

Most of the time to compile a source of this project goes into the headers that it includes, so a dozen sources take
little more than twice the time of one. Names of the sources must not collide: what an unnamed namespace holds in one is
seen by those that follow. A source in `separate` is compiled by itself.
"""

load(":cc_tools.bzl", "cc_tools")

_SOURCES_PER_UNIT = 12

def _units(ctx, sources):
    """Files that include up to _SOURCES_PER_UNIT sources each, as even as possible."""
    count = (len(sources) + _SOURCES_PER_UNIT - 1) // _SOURCES_PER_UNIT
    units = []
    for i in range(count):
        part = sources[i * len(sources) // count:(i + 1) * len(sources) // count]
        if len(part) == 1:
            units += part
            continue
        unit = ctx.actions.declare_file("%s_unity%s.cc" % (ctx.label.name, i + 1 if count > 1 else ""))
        ctx.actions.write(unit, "".join(["#include \"%s\"\n" % source.short_path for source in part]))
        units.append(unit)
    return units

def _unity_library_impl(ctx):
    toolchain, features = cc_tools(ctx)
    sources = [file for file in ctx.files.srcs if file.extension == "cc"]
    others = [file for file in ctx.files.srcs if file.extension != "cc"]
    dependencies = [dep[CcInfo] for dep in ctx.attr.deps]
    _, outputs = cc_common.compile(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        srcs = _units(ctx, sources) + ctx.files.separate,
        private_hdrs = others,
        additional_inputs = sources,
        public_hdrs = ctx.files.hdrs,
        # Written with the backslashes that cc_library wants.
        local_defines = [define.replace("\\", "") for define in ctx.attr.local_defines],
        user_compile_flags = ctx.attr.copts,
        compilation_contexts = [dep.compilation_context for dep in dependencies],
    )

    # What users compile with: without the sources, so that a change of one does not compile its users again.
    headers = CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset(ctx.files.hdrs + others),
    ))
    linking_context, _ = cc_common.create_linking_context_from_compilation_outputs(
        name = ctx.label.name,
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = outputs,
        linking_contexts = [dep.linking_context for dep in dependencies],
        alwayslink = ctx.attr.alwayslink,
        user_link_flags = ctx.attr.linkopts,
        disallow_dynamic_library = True,
    )
    runfiles = ctx.runfiles()
    for dep in ctx.attr.deps:
        runfiles = runfiles.merge(dep[DefaultInfo].default_runfiles)
    compilation_context = cc_common.merge_cc_infos(cc_infos = [headers] + dependencies).compilation_context
    return [
        DefaultInfo(files = depset(outputs.objects + outputs.pic_objects), runfiles = runfiles),
        CcInfo(compilation_context = compilation_context, linking_context = linking_context),
        coverage_common.instrumented_files_info(
            ctx,
            source_attributes = ["srcs", "separate", "hdrs"],
            dependency_attributes = ["deps"],
            extensions = ["cc", "h"],
        ),
    ]

unity_library = rule(
    implementation = _unity_library_impl,
    attrs = {
        "alwayslink": attr.bool(),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = True),
        "linkopts": attr.string_list(),
        "local_defines": attr.string_list(),
        "separate": attr.label_list(allow_files = [".cc"], doc = "Sources that are compiled by themselves."),
        "srcs": attr.label_list(allow_files = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
