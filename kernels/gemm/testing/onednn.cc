#include "kernels/gemm/testing/onednn.h"

#include "base/error.h"

#if __has_include(<dnnl.h>)
#include <dlfcn.h>
#include <dnnl.h>

#include <vector>
#endif

namespace nvllm::kernels {

// The interface of version 2, that of Debian 12 and Ubuntu 22.04; version 3 has another one.
#if defined(DNNL_VERSION_MAJOR) && DNNL_VERSION_MAJOR == 2

namespace {

constexpr const char* kLibrary = "libdnnl.so.2";

// The functions of the library that are used here. It stays loaded: its threads would not survive
// the end of their code.
struct Api {
  void* library = dlopen(kLibrary, RTLD_NOW);
#define NVLLM_FUNCTION(name) \
  decltype(&::dnnl_##name) name = reinterpret_cast<decltype(&::dnnl_##name)>(find("dnnl_" #name))
  NVLLM_FUNCTION(engine_create);
  NVLLM_FUNCTION(engine_destroy);
  NVLLM_FUNCTION(stream_create);
  NVLLM_FUNCTION(stream_destroy);
  NVLLM_FUNCTION(stream_wait);
  NVLLM_FUNCTION(memory_desc_init_by_tag);
  NVLLM_FUNCTION(memory_create);
  NVLLM_FUNCTION(memory_destroy);
  NVLLM_FUNCTION(matmul_desc_init);
  NVLLM_FUNCTION(primitive_desc_create);
  NVLLM_FUNCTION(primitive_desc_destroy);
  NVLLM_FUNCTION(primitive_desc_query_md);
  NVLLM_FUNCTION(primitive_create);
  NVLLM_FUNCTION(primitive_destroy);
  NVLLM_FUNCTION(primitive_execute);
#undef NVLLM_FUNCTION

 private:
  void* find(const char* name) const {
    void* function = library != nullptr ? dlsym(library, name) : nullptr;
    if (library != nullptr && function == nullptr) fail(kLibrary, " has no ", name);
    return function;
  }
};

void require(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) fail("oneDNN: ", what, " gives status ", static_cast<int>(status));
}

class MatmulPrimitive final : public OneDnnGemm {
 public:
  MatmulPrimitive(const Api& api, dnnl_data_type_t type, std::int64_t m, std::int64_t outputs,
                  std::int64_t inputs, Weights weights)
      : api_(api) {
    require(api_.engine_create(&engine_, dnnl_cpu, 0), "engine_create");
    require(api_.stream_create(&stream_, engine_, dnnl_stream_default_flags), "stream_create");
    const auto form = weights == Weights::plain ? dnnl_ba : dnnl_format_tag_any;
    const auto x = describe(m, inputs, type, dnnl_ab);
    const auto weight = describe(inputs, outputs, type, form);
    const auto out = describe(m, outputs, type, dnnl_ab);
    dnnl_matmul_desc_t matmul{};
    require(api_.matmul_desc_init(&matmul, &x, &weight, nullptr, &out), "matmul_desc_init");
    require(api_.primitive_desc_create(&chosen_, &matmul, nullptr, engine_, nullptr),
            "primitive_desc_create");
    require(api_.primitive_create(&primitive_, chosen_), "primitive_create");
    add(DNNL_ARG_SRC, dnnl_query_src_md);
    add(DNNL_ARG_WEIGHTS, dnnl_query_weights_md);
    add(DNNL_ARG_DST, dnnl_query_dst_md);
  }

  ~MatmulPrimitive() override {
    for (const dnnl_exec_arg_t& argument : arguments_) api_.memory_destroy(argument.memory);
    api_.primitive_destroy(primitive_);
    api_.primitive_desc_destroy(chosen_);
    api_.stream_destroy(stream_);
    api_.engine_destroy(engine_);
  }

  void run() override {
    const int count = static_cast<int>(arguments_.size());
    require(api_.primitive_execute(primitive_, stream_, count, arguments_.data()),
            "primitive_execute");
    require(api_.stream_wait(stream_), "stream_wait");
  }

 private:
  dnnl_memory_desc_t describe(std::int64_t rows, std::int64_t columns, dnnl_data_type_t type,
                              dnnl_format_tag_t form) const {
    dnnl_memory_desc_t description{};
    const dnnl_dims_t shape = {rows, columns};
    require(api_.memory_desc_init_by_tag(&description, 2, shape, type, form), "memory_desc_init");
    return description;
  }

  // Memory for an argument, in the form that was chosen for it. What is in it does not matter.
  void add(int argument, dnnl_query_t query) {
    dnnl_memory_t memory = nullptr;
    const auto* description = api_.primitive_desc_query_md(chosen_, query, 0);
    require(api_.memory_create(&memory, description, engine_, DNNL_MEMORY_ALLOCATE),
            "memory_create");
    arguments_.push_back({argument, memory});
  }

  const Api& api_;
  dnnl_engine_t engine_ = nullptr;
  dnnl_stream_t stream_ = nullptr;
  dnnl_primitive_desc_t chosen_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace

std::unique_ptr<OneDnnGemm> OneDnnGemm::create(DType type, std::int64_t m, std::int64_t outputs,
                                               std::int64_t inputs, Weights weights,
                                               std::string* why_not) {
  static const Api api;
  if (api.library == nullptr) {
    *why_not = std::string("there is no ") + kLibrary;
    return nullptr;
  }
  try {
    return std::make_unique<MatmulPrimitive>(api, type == DType::f32 ? dnnl_f32 : dnnl_bf16, m,
                                             outputs, inputs, weights);
  } catch (const Error& error) {
    *why_not = error.what();
    return nullptr;
  }
}

#else

std::unique_ptr<OneDnnGemm> OneDnnGemm::create(DType, std::int64_t, std::int64_t, std::int64_t,
                                               Weights, std::string* why_not) {
  *why_not = "this program was built without the headers of oneDNN 2";
  return nullptr;
}

#endif

}  // namespace nvllm::kernels
