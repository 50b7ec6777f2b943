"""kernel: the rules of one operation, NAME.

NAME.h is what callers see. NAME.cc checks arguments, holds the reference and chooses the backend;
cpu/NAME.cc and sm80/NAME.cu are the fast versions, declared in the room's backends.h and chosen among by NAME.cc alone.
NAME_cases.cc tests any backend and is linked into NAME_test and NAME_gpu_test; NAME_bench.cc measures.
"""

load("//bazel:cuda_library.bzl", "cuda_library")
load("//bazel:tests.bzl", "device_tests", "nvllm_benchmark")

AVX512_COPTS = [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    # GCC 12 warns of operands that its own intrinsics leave undefined on purpose. Clang does not know the
    # warning.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-unknown-warning-option",
]

def kernel(
        name,
        deps = [],
        cpu_srcs = [],
        cpu_deps = [],
        cuda_srcs = [],
        cuda_deps = [],
        test_srcs = [],
        test_deps = [],
        test_data = [],
        bench = True,
        bench_deps = []):
    """deps: of NAME.h, so of everything. cpu_srcs, cuda_srcs: beside cpu/NAME.* and sm80/NAME.*. test_srcs: beside NAME_cases.cc. bench: whether there is NAME_bench.cc."""
    native.cc_library(
        name = name,
        srcs = [name + ".cc", "cpu/%s.cc" % name] + cpu_srcs,
        hdrs = [name + ".h"] + native.glob(["cpu/%s.h" % name]),
        local_defines = select({
            "@cuda_config//:enabled": ["NVLLM_CUDA"],
            "//conditions:default": [],
        }),
        deps = ["//kernels/common:arguments", "//kernels/common:cpu_vector", "//base", "//device"] + deps + cpu_deps + select({
            "@cuda_config//:enabled": [":%s_cuda" % name],
            "//conditions:default": [],
        }),
    )
    cuda_library(
        name = name + "_cuda",
        srcs = ["sm80/%s.cu" % name] + cuda_srcs,
        hdrs = [name + ".h"] + native.glob(["sm80/%s.h" % name]),
        visibility = ["//kernels:__subpackages__"],
        deps = ["//kernels/common:arguments", "//kernels/common:cuda_headers", "//base", "//device"] + deps + cuda_deps,
    )
    device_tests(
        name = name,
        srcs = [name + "_cases.cc"] + test_srcs,
        data = test_data,
        deps = [":" + name, "//kernels/testing:case_support", "//base", "//device:backend_under_test"] + test_deps,
    )
    if bench:
        nvllm_benchmark(
            name = name + "_bench",
            srcs = [name + "_bench.cc"],
            deps = [":" + name, "//kernels/testing:bench_support", "//base", "//device", "//testing:bench_backend"] + bench_deps,
        )
