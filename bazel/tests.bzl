"""nvllm_test and nvllm_benchmark: one definition serves `bazel test` and the packaged runners.

Each makes a library NAME_lib that registers its cases and a program NAME of its own. The packaged
runners, //tests:gpu_tests and //benchmarks:nvllm-bench, link such libraries together, to carry one
program to a machine without Bazel.
"""

load("//bazel:cuda_library.bzl", "CUDA_ONLY")
load("//bazel:unity.bzl", "unity_library")

def test_sources(name, srcs, deps, visibility = ["//visibility:private"], **kwargs):
    """The sources of several tests of a folder, compiled together; each nvllm_test runs its own."""
    unity_library(
        name = name,
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        # Tests are compiled to be compiled quickly, but for the kernels', which compare millions of numbers.
        copts = [] if native.package_name().startswith("kernels") else select({
            "//bazel:opt": ["-O1"],
            "//conditions:default": [],
        }),
        visibility = visibility,
        deps = depset(deps + ["//testing:skip", "//third_party:doctest"]).to_list(),
        **kwargs
    )

def _only(srcs, sources):
    """The option of a test program that runs the cases of srcs, which are among the sources of a test_sources."""
    compiled = native.existing_rule(sources[1:])
    for src in srcs:
        if ":" + src not in compiled["srcs"] + compiled["separate"]:
            fail("%s is not among the sources of %s" % (src, sources))
    files = ["*%s/%s" % (native.package_name(), src) for src in srcs if src.endswith(".cc")]
    return ["--source-file=" + ",".join(files)]

def nvllm_test(name, srcs, deps = [], sources = None, separate = [], gpu = False, tags = [], args = [], **kwargs):
    """A doctest test.

    sources: the test_sources that compile srcs and other tests' sources; without it srcs are compiled with deps.
    separate: sources that are compiled by themselves, see unity.bzl.
    tags: "threads" for a test in which threads or processes share memory; --config=tsan runs these.
    gpu: its cases need GPUs. They skip themselves, with the reason, where there is none; such a run is
    never cached ("external"), and never shares the GPU with another test ("exclusive").
    """
    if sources:
        args = args + _only(srcs, sources)
    else:
        sources = ":%s_lib" % name
        test_sources(
            name = name + "_lib",
            srcs = srcs,
            separate = separate,
            target_compatible_with = CUDA_ONLY if gpu else [],
            visibility = ["//tests:__pkg__"],
            deps = deps,
        )
    native.cc_test(
        name = name,
        tags = tags + (["exclusive", "external", "gpu"] if gpu else []),
        target_compatible_with = CUDA_ONLY if gpu else [],
        args = args,
        deps = [sources, "//testing:doctest_main"],
        **kwargs
    )

def device_tests(name, srcs, deps = [], sources = None, on = "backend", test_size = "medium", data = [], tags = []):
    """The same cases on the CPU and on GPUs: NAME_test and NAME_gpu_test, both of srcs.

    sources: as for nvllm_test; without it srcs are compiled with deps, as NAME_cases.
    on: what the cases run on: "backend" (device/testing/backend_under_test.h), or "ranks" (testing/device_ranks.h).
    tags: of the test on the CPU.
    """
    args = _only(srcs, sources) if sources else []
    if not sources:
        sources = ":%s_cases" % name
        test_sources(name = name + "_cases", srcs = srcs, deps = deps)
    device = {"backend": "//device:%s_under_test", "ranks": "//testing:%s_ranks"}[on]
    for suffix, kind, gpu in [("_test", "cpu", False), ("_gpu_test", "cuda", True)]:
        nvllm_test(
            name = name + suffix,
            size = test_size,
            srcs = [],
            data = data,
            gpu = gpu,
            tags = [] if gpu else tags,
            args = args,
            deps = [sources, device % kind],
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
