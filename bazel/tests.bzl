"""nvllm_test and nvllm_benchmark: one definition serves `bazel test` and the packaged runners.

Each makes a library NAME_lib that registers its cases and a program NAME of its own. The packaged
runners, //tests:gpu_tests and //benchmarks:nvllm-bench, link such libraries together, to carry one
program to a machine without Bazel.
"""

load("//bazel:cuda_library.bzl", "CUDA_ONLY")

def nvllm_test(name, srcs, deps = [], gpu = False, tags = [], visibility = [], **kwargs):
    """A doctest test.

    gpu: its cases need GPUs. They skip themselves, with the reason, where there is none; such a run is
    never cached ("external"), and never shares the GPU with another test ("exclusive").
    """
    native.cc_library(
        name = name + "_lib",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        target_compatible_with = CUDA_ONLY if gpu else [],
        visibility = ["//tests:__pkg__"],
        deps = deps + [
            "//testing:skip",
            "//third_party:doctest",
        ],
    )
    native.cc_test(
        name = name,
        tags = tags + (["exclusive", "external", "gpu"] if gpu else []),
        target_compatible_with = CUDA_ONLY if gpu else [],
        deps = [":%s_lib" % name, "//testing:doctest_main"],
        **kwargs
    )

def nvllm_benchmark(name, srcs, deps = [], **kwargs):
    """A Google Benchmark program; its benchmarks are also part of //benchmarks:nvllm-bench."""
    native.cc_library(
        name = name + "_lib",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        visibility = ["//benchmarks:__pkg__"],
        deps = deps + ["//third_party:benchmark"],
    )
    native.cc_binary(
        name = name,
        testonly = True,
        deps = [":%s_lib" % name, "//testing:benchmark_main"],
        **kwargs
    )
