#include "device/cuda/stream.h"

#include <sched.h>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda/stream_impl.h"

namespace nvllm::cuda {
namespace {

// synchronize_for() polls without pause for this long, which covers a step; then at intervals.
constexpr std::int64_t kEagerNs = 20'000'000;
constexpr timespec kNap = {0, 50'000};

const Event& event_of(const nvllm::Event& event) {
  const auto* own = dynamic_cast<const Event*>(&event);
  NVLLM_CHECK(own != nullptr, "not an event of the CUDA backend");
  return *own;
}

Stream& stream_of(nvllm::Stream& stream) {
  NVLLM_CHECK(stream.kind() == DeviceKind::cuda, "not a stream of the CUDA backend");
  return static_cast<Stream&>(stream);
}

void run_host_call(HostCall& call) {
  try {
    call.function();
  } catch (...) {
    call.errors->put(std::current_exception());
  }
}

// Whether work is done, by the result of cudaStreamQuery or cudaEventQuery.
bool is_done(cudaError_t status, const char* what) {
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, what);
  return true;
}

}  // namespace

void fail_cuda(cudaError_t error, std::string_view what) {
  cudaGetLastError();  // clears the error, so that it is not reported by the next call
  fail(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

cudaStream_t native(nvllm::Stream& stream) {
  return stream_of(stream).native();
}

void Captures::begin(GraphCalls* calls) {
  const std::lock_guard lock(mutex_);
  if (!captures_.emplace(std::this_thread::get_id(), calls).second) {
    fail("this thread is already capturing a graph; end that capture first");
  }
}

void Captures::end() {
  const std::lock_guard lock(mutex_);
  captures_.erase(std::this_thread::get_id());
}

GraphCalls* Captures::of_this_thread() {
  const std::lock_guard lock(mutex_);
  const auto found = captures_.find(std::this_thread::get_id());
  return found == captures_.end() ? nullptr : found->second;
}

Stream::Stream(StreamPriority priority, Captures& captures) : captures_(captures) {
  int low = 0, high = 0;
  check(cudaDeviceGetStreamPriorityRange(&low, &high), "asking for stream priorities");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                     priority == StreamPriority::high ? high : low),
        "creating a stream");
}

Stream::~Stream() {
  cudaStreamDestroy(stream_);  // enqueued work still completes
}

void Stream::wait(const nvllm::Event& event) {
  check(cudaStreamWaitEvent(stream_, event_of(event).native(), cudaEventWaitDefault),
        "waiting for an event");
}

void Stream::host_call(std::function<void()> function) {
  auto call = std::make_unique<HostCall>(HostCall{std::move(function), errors_});
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &status), "enqueueing a host call");
  GraphCalls* graph = captures_.of_this_thread();
  if (status == cudaStreamCaptureStatusNone || graph == nullptr) {
    const auto run_once = [](void* data) {
      const std::unique_ptr<HostCall> owned(static_cast<HostCall*>(data));
      run_host_call(*owned);
    };
    check(cudaLaunchHostFunc(stream_, run_once, call.get()), "enqueueing a host call");
    static_cast<void>(call.release());  // owned by run_once
    return;
  }
  call->errors = graph->errors;
  const auto run_again = [](void* data) { run_host_call(*static_cast<HostCall*>(data)); };
  check(cudaLaunchHostFunc(stream_, run_again, call.get()), "capturing a host call");
  graph->calls.push_back(std::move(call));
}

void Stream::synchronize() {
  check(cudaStreamSynchronize(stream_), "work of a stream");
  rethrow();
}

bool Stream::synchronize_for(Nanoseconds limit) {
  const std::int64_t start = now_ns();
  while (!idle()) {
    const std::int64_t waited = now_ns() - start;
    if (waited >= limit.count()) return false;
    if (waited < kEagerNs) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
  rethrow();
  return true;
}

bool Stream::idle() {
  return is_done(cudaStreamQuery(stream_), "work of a stream");
}

void Stream::adopt(const std::shared_ptr<ErrorSlot>& errors) {
  for (const auto& slot : adopted_) {
    if (slot == errors) return;
  }
  adopted_.push_back(errors);
}

void Stream::rethrow() {
  const auto adopted = std::exchange(adopted_, {});
  errors_->rethrow();
  for (const auto& errors : adopted) errors->rethrow();
}

Event::Event(bool timing) {
  check(cudaEventCreateWithFlags(&event_, timing ? cudaEventDefault : cudaEventDisableTiming),
        "creating an event");
}

Event::~Event() {
  cudaEventDestroy(event_);
}

void Event::record(nvllm::Stream& stream) {
  check(cudaEventRecord(event_, stream_of(stream).native()), "recording an event");
}

bool Event::reached() const {
  return is_done(cudaEventQuery(event_), "work before an event");
}

void Event::synchronize() const {
  check(cudaEventSynchronize(event_), "work before an event");
}

double Event::seconds_since(const nvllm::Event& earlier) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, event_of(earlier).native(), event_),
        "the time between two events");
  return milliseconds * 1e-3;
}

namespace {

using CudaGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(&cudaGraphDestroy)>;

// Captures the work that `work` enqueues on the stream. A failed capture is ended and discarded.
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

// Transfers the host calls to the graph, and thereby to its instantiations and launches.
void hand_over(cudaGraph_t graph, std::unique_ptr<GraphCalls> calls) {
  cudaUserObject_t object = nullptr;
  const auto destroy = [](void* data) { delete static_cast<GraphCalls*>(data); };
  check(cudaUserObjectCreate(&object, calls.get(), destroy, 1, cudaUserObjectNoDestructorSync),
        "keeping host calls for a graph");
  static_cast<void>(calls.release());  // owned by the user object
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
  // Otherwise the first launch would do it, and be slow.
  if (const cudaError_t error = cudaGraphUpload(graph_, cuda::native(stream));
      error != cudaSuccess) {
    cudaGraphExecDestroy(graph_);
    fail_cuda(error, "uploading a graph");
  }
}

Graph::~Graph() {
  cudaGraphExecDestroy(graph_);  // launches in flight still complete
}

void Graph::launch(nvllm::Stream& stream) {
  check(cudaGraphLaunch(graph_, cuda::native(stream)), "launching a graph");
  if (errors_ != nullptr) static_cast<Stream&>(stream).adopt(errors_);
}

}  // namespace nvllm::cuda
