"""nvllm_test and nvllm_benchmark: one definition serves `bazel test` and the packaged runners.

Each makes a library NAME_lib that registers its cases and a program NAME of its own. The packaged
runners, //tests:gpu_tests and //benchmarks:nvllm-bench, link such libraries together, to carry one
program to a machine without Bazel.
"""

load("//bazel:cuda_library.bzl", "CUDA_ONLY")

def nvllm_test(name, srcs, deps = [], gpu = False, tags = [], visibility = [], **kwargs):
    """A doctest test.

    tags: "threads" for a test in which threads or processes share memory; --config=tsan runs these.
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

def device_tests(name, srcs, deps, on = "backend", test_size = "medium", data = [], tags = []):
    """The same cases on the CPU and on GPUs: NAME_test and NAME_gpu_test, both of NAME_cases.

    on: what the cases run on: "backend" (device/testing/backend_under_test.h), or "ranks" (testing/device_ranks.h).
    tags: of the test on the CPU.
    """
    native.cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    device = {"backend": "//device:%s_under_test", "ranks": "//testing:%s_ranks"}[on]
    for suffix, kind, gpu in [("_test", "cpu", False), ("_gpu_test", "cuda", True)]:
        nvllm_test(
            name = name + suffix,
            size = test_size,
            srcs = [],
            data = data,
            gpu = gpu,
            tags = [] if gpu else tags,
            deps = [":%s_cases" % name, device % kind],
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
