// Programs load cuBLASLt and NCCL on first use. So they start, and run on the CPU, on machines
// without these libraries.
//
// load_cublaslt() or load_nccl() must have returned nullptr before any function of <cublasLt.h> or
// <nccl.h> is called; an earlier call aborts. Callers use the libraries' own headers.
#pragma once

#include <string>

namespace nvllm {

// Both return nullptr, or the reason why the library cannot be loaded. Thread-safe.
const char* load_cublaslt();
const char* load_nccl();

// The library version on this machine.
struct LibraryState {
  std::string version;  // "2.27.7"
  std::string error;    // why it cannot be loaded; empty: it can
};
LibraryState find_cublaslt();
LibraryState find_nccl();

}  // namespace nvllm
