#include "base/error.h"
#include "device/cuda/stream.h"
#include "device/cuda/stream_impl.h"

namespace nvllm::cuda {
namespace {

using CudaGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(&cudaGraphDestroy)>;

// Runs `work` with the stream in capture. A capture that fails is ended and thrown away.
CudaGraph record(cudaStream_t stream, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream, &graph), "capturing a graph");
  return {graph, &cudaGraphDestroy};
}

// Gives the host calls to the graph, and with it to what is instantiated from it and launched.
void hand_over(cudaGraph_t graph, std::unique_ptr<GraphCalls> calls) {
  cudaUserObject_t object = nullptr;
  const auto destroy = [](void* data) { delete static_cast<GraphCalls*>(data); };
  check(cudaUserObjectCreate(&object, calls.get(), destroy, 1, cudaUserObjectNoDestructorSync),
        "keeping host calls for a graph");
  static_cast<void>(calls.release());  // the object's now
  check(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
        "keeping host calls for a graph");
}

}  // namespace

Graph::Graph(nvllm::Stream& stream, const std::function<void()>& work, Captures& captures) {
  auto calls = std::make_unique<GraphCalls>();
  captures.begin(calls.get());
  CudaGraph graph(nullptr, &cudaGraphDestroy);
  try {
    graph = record(cuda::native(stream), work);
  } catch (...) {
    captures.end();
    throw;
  }
  captures.end();
  if (!calls->calls.empty()) {
    errors_ = calls->errors;
    hand_over(graph.get(), std::move(calls));
  }
  check(cudaGraphInstantiate(&graph_, graph.get(), 0), "instantiating a graph");
  // The first launch would do it, and be slow.
  if (const cudaError_t error = cudaGraphUpload(graph_, cuda::native(stream));
      error != cudaSuccess) {
    cudaGraphExecDestroy(graph_);
    fail_cuda(error, "uploading a graph");
  }
}

Graph::~Graph() {
  cudaGraphExecDestroy(graph_);  // launches in flight run to their end
}

void Graph::launch(nvllm::Stream& stream) {
  check(cudaGraphLaunch(graph_, cuda::native(stream)), "launching a graph");
  if (errors_ != nullptr) static_cast<Stream&>(stream).adopt(errors_);
}

}  // namespace nvllm::cuda
