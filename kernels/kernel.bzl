"""Rules of kernels: kernel_package, a folder of operations in one library, and kernel, one operation with its own.

Operation NAME is laid out as kernels/README.md says: NAME.h is what callers see; NAME.cc checks arguments and chooses
the backend; cpu/NAME.cc, unless NAME.cc has it too, and sm80/NAME.cu are the fast versions. Operations of a
kernel_package that belong together may share these files, under the name of the group. backends.h declares the fast
versions of all operations of the folder, in namespaces cpu and cuda; it only names the operations' structs and includes
no header of theirs. NAME_cases.cc tests any backend against NAME_reference() of testing/references.h, and is linked into
NAME_test and NAME_gpu_test.
"""

load("//bazel:cuda_library.bzl", "cuda_library")
load("//bazel:tests.bzl", "device_tests", "nvllm_benchmark", "test_sources")

AVX512_COPTS = [
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    # GCC 12 warns about operands that its own intrinsics leave undefined on purpose. Clang does not
    # know this warning.
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-unknown-warning-option",
]

CUDA_DEFINES = select({
    "@cuda_config//:enabled": ["NVLLM_CUDA"],
    "//conditions:default": [],
})

_CPU_DEPS = ["//kernels/common:arguments", "//kernels/common:cpu_vector", "//kernels/common:e4m3_vector", "//base", "//device"]
_CUDA_DEPS = ["//kernels/common:arguments", "//kernels/common:cuda_headers", "//base", "//device"]

def if_cuda(labels):
    return select({
        "@cuda_config//:enabled": labels,
        "//conditions:default": [],
    })

def kernel_tests(name, lib, operations, deps = [], data = []):
    """NAME_test and NAME_gpu_test of operations in the library lib.

    name: of what all their cases are compiled to. operations: each with its sources beside NAME_cases.cc.
    """
    test_sources(
        name = name,
        srcs = [operation + "_cases.cc" for operation in operations] + [src for srcs in operations.values() for src in srcs],
        deps = [lib, "//kernels/testing:case_support", "//base", "//device:backend_under_test"] + deps,
    )
    for operation, srcs in operations.items():
        device_tests(
            name = operation,
            srcs = [operation + "_cases.cc"] + srcs,
            data = data,
            sources = ":" + name,
            test_size = "large",  # with the address sanitizer some take minutes where cores are shared
        )

def kernel_benchmark(name, lib, deps = []):
    """Measures operations in the library lib with NAME.cc."""
    nvllm_benchmark(
        name = name,
        srcs = [name + ".cc"],
        deps = [lib, "//kernels/testing:bench_support", "//base", "//device", "//testing:bench_backend"] + deps,
    )

def kernel_package(name, deps = [], cuda_header_deps = []):
    """All operations of this folder as one library.

    NAME_headers: the headers alone, for who only names types and limits. NAME_cuda_headers: *.cuh, what other kernels
    fuse with. deps: of the headers, so of everything.
    """
    native.cc_library(
        name = name + "_headers",
        hdrs = native.glob(["*.h"]),
        deps = ["//kernels/common:arguments", "//device", "//device:tensor"] + deps,
    )
    native.cc_library(
        name = name,
        srcs = native.glob(
            ["*.cc", "cpu/*.cc"],
            exclude = ["*_bench.cc", "*_cases.cc", "*_test.cc"],
        ),
        local_defines = CUDA_DEFINES,
        deps = [":%s_headers" % name] + _CPU_DEPS + if_cuda([":%s_cuda" % name]),
    )
    cuda_library(
        name = name + "_cuda_headers",
        srcs = [],
        hdrs = native.glob(["sm*/*.cuh"]),
        deps = [":%s_headers" % name, "//kernels/common:cuda_headers"] + cuda_header_deps,
    )
    cuda_library(
        name = name + "_cuda",
        srcs = native.glob(["sm*/*.cu"]),
        visibility = ["//kernels:__subpackages__"],
        deps = [":%s_cuda_headers" % name] + _CUDA_DEPS,
    )

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
    """One operation as a library.

    deps: of NAME.h, so of everything. cpu_srcs, cuda_srcs: beside cpu/NAME.cc and sm80/NAME.cu. test_srcs: beside
    NAME_cases.cc. bench: whether there is NAME_bench.cc.
    """
    native.cc_library(
        name = name,
        srcs = [name + ".cc"] + native.glob(["cpu/%s.cc" % name]) + cpu_srcs,
        hdrs = [name + ".h", "backends.h"],
        local_defines = CUDA_DEFINES,
        deps = _CPU_DEPS + deps + cpu_deps + if_cuda([":%s_cuda" % name]),
    )
    cuda_library(
        name = name + "_cuda",
        srcs = ["sm80/%s.cu" % name] + cuda_srcs,
        hdrs = [name + ".h", "backends.h"],
        visibility = ["//kernels:__subpackages__"],
        deps = _CUDA_DEPS + deps + cuda_deps,
    )
    kernel_tests(name + "_cases", ":" + name, {name: test_srcs}, test_deps, test_data)
    if bench:
        kernel_benchmark(name + "_bench", ":" + name, bench_deps)
