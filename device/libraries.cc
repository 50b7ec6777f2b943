#include "device/libraries.h"

#ifdef NVLLM_CUDA

#include <cublasLt.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/text.h"

// Each function listed here is defined below as one indirect jump, whose target the loader fills
// in. A function that is used but not listed causes a link error. x86-64 only.
#define CUBLASLT_SYMBOLS(X)                \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetVersion)                    \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoCapGetAttribute)     \
  X(cublasLtMatmulAlgoCheck)               \
  X(cublasLtMatmulAlgoConfigGetAttribute)  \
  X(cublasLtMatmulAlgoConfigSetAttribute)  \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulAlgoGetIds)              \
  X(cublasLtMatmulAlgoInit)                \
  X(cublasLtMatmulDescCreate)              \
  X(cublasLtMatmulDescDestroy)             \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)  \
  X(cublasLtMatrixLayoutInit_internal)     \
  X(cublasLtMatrixLayoutSetAttribute)
#define NCCL_SYMBOLS(X)     \
  X(ncclAllGather)          \
  X(ncclAllReduce)          \
  X(ncclBroadcast)          \
  X(ncclCommAbort)          \
  X(ncclCommDestroy)        \
  X(ncclCommFinalize)       \
  X(ncclCommGetAsyncError)  \
  X(ncclCommInitRank)       \
  X(ncclCommInitRankConfig) \
  X(ncclGetErrorString)     \
  X(ncclGetLastError)       \
  X(ncclGetUniqueId)        \
  X(ncclGetVersion)         \
  X(ncclGroupEnd)           \
  X(ncclGroupStart)         \
  X(ncclRecv)               \
  X(ncclReduceScatter)      \
  X(ncclSend)

extern "C" {
[[noreturn]] static void called_too_early() {
  std::fputs("called into cuBLASLt or NCCL before load_cublaslt() or load_nccl()\n", stderr);
  std::abort();
}

#define DEFINE_JUMP(symbol)                                                            \
  __attribute__((visibility("hidden"), used)) void* lazy_slot_##symbol =               \
      reinterpret_cast<void*>(&called_too_early);                                      \
  asm(".pushsection .text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol \
      ":\n\tjmp *lazy_slot_" #symbol "(%rip)\n.size " #symbol ", .-" #symbol "\n.popsection\n");
CUBLASLT_SYMBOLS(DEFINE_JUMP)
NCCL_SYMBOLS(DEFINE_JUMP)
#undef DEFINE_JUMP
}

namespace nvllm {
namespace {

// dlopen() of a shared library by name: in the system's search path, then in the CUDA toolkits
// named by $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. Returns nullptr, with the reason, if it is
// not found.
void* open_library(const char* name, std::string* why) {
  if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  *why = dlerror();
  std::vector<std::string> toolkits;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* toolkit = std::getenv(variable)) toolkits.emplace_back(toolkit);
  }
  toolkits.emplace_back("/usr/local/cuda");
  for (const std::string& toolkit : toolkits) {
    for (const char* folder : {"lib64", "lib"}) {
      const std::string path = toolkit + "/" + folder + "/" + name;
      std::error_code ignored;
      if (!std::filesystem::exists(path, ignored)) continue;
      if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      *why = dlerror();  // it exists but does not load: report this reason
    }
  }
  return nullptr;
}

struct Jump {
  const char* symbol;
  void** slot;
};

// Returns "", or an error; then no slot is filled in.
std::string bind(const char* library_name, const std::vector<Jump>& jumps) {
  std::string why;
  void* const library = open_library(library_name, &why);
  if (library == nullptr) return why;
  std::vector<void*> found;
  for (const Jump& jump : jumps) {
    found.push_back(dlsym(library, jump.symbol));
    if (found.back() == nullptr) return dlerror();
  }
  for (std::size_t i = 0; i < jumps.size(); ++i) *jumps[i].slot = found[i];
  return "";
}

std::string dotted(std::size_t version) {  // 22707 is 2.27.7, 130100 is 13.1.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

}  // namespace

#define JUMP(symbol) {#symbol, &lazy_slot_##symbol},
const char* load_cublaslt() {
  static const std::string error = bind("libcublasLt.so.13", {CUBLASLT_SYMBOLS(JUMP)});
  return error.empty() ? nullptr : error.c_str();
}

const char* load_nccl() {
  static const std::string error = bind("libnccl.so.2", {NCCL_SYMBOLS(JUMP)});
  return error.empty() ? nullptr : error.c_str();
}
#undef JUMP

LibraryState find_cublaslt() {
  if (const char* why = load_cublaslt()) return {.version = "", .error = why};
  return {.version = dotted(cublasLtGetVersion()), .error = ""};
}

LibraryState find_nccl() {
  if (const char* why = load_nccl()) return {.version = "", .error = why};
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return {.version = "?", .error = ""};
  return {.version = dotted(static_cast<std::size_t>(version)), .error = ""};
}

}  // namespace nvllm

#else

namespace nvllm {

const char* load_cublaslt() {
  return "this program was built without CUDA";
}

const char* load_nccl() {
  return "this program was built without NCCL";
}

LibraryState find_cublaslt() {
  return {.version = "", .error = load_cublaslt()};
}

LibraryState find_nccl() {
  return {.version = "", .error = load_nccl()};
}

}  // namespace nvllm

#endif
