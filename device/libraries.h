// Programs load cuBLASLt and NCCL when they first need them. So they start, and run on the CPU, on
// machines where these libraries are not installed.
//
// load_cublaslt() or load_nccl() must have returned nullptr before any function of <cublasLt.h> or
// <nccl.h> is called; an earlier call aborts. Callers use the libraries' own headers.
#pragma once

#include <string>

namespace nvllm {

// Both return nullptr, or why the library cannot be loaded. Thread-safe.
const char* load_cublaslt();
const char* load_nccl();

// Which version this machine has.
struct LibraryState {
  std::string version;  // "2.27.7"
  std::string error;    // why it cannot be loaded; empty: it can
};
LibraryState find_cublaslt();
LibraryState find_nccl();

}  // namespace nvllm
