#include "cluster/box_link.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system_files.h"

namespace nvllm::cluster {
namespace {

constexpr const char* kLibrary = "libmpi.so.40";
constexpr int kTag = 1;
constexpr int kAnySource = -1;      // MPI_ANY_SOURCE
constexpr int kThreadFunneled = 1;  // MPI_THREAD_FUNNELED
constexpr int kVersionText = 256;   // MPI_MAX_LIBRARY_VERSION_STRING
constexpr int kErrorText = 256;     // MPI_MAX_ERROR_STRING

// The paths of the library: where OPAL_PREFIX points, next to the program that has started the
// launcher (for an Open MPI other than the system's, such as a wheel's), and the system's search
// path.
std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  if (const char* prefix = ::getenv("OPAL_PREFIX")) {
    paths.push_back(std::string(prefix) + "/lib/" + kLibrary);
  }
  std::error_code unreadable;
  if (const auto starter = number_after(str("/proc/", ::getppid(), "/status"), "PPid:")) {
    const auto program = std::filesystem::read_symlink(str("/proc/", *starter, "/exe"), unreadable);
    const auto beside = program.parent_path().parent_path() / "lib" / kLibrary;
    if (std::filesystem::exists(beside, unreadable)) paths.push_back(beside.string());
  }
  paths.emplace_back(kLibrary);
  return paths;
}

void* open_library() {
  std::string why;
  for (const std::string& path : candidates()) {
    // Its plugins look up its functions globally.
    if (void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    if (const char* text = ::dlerror()) why = text;
  }
  fail("Open MPI is needed for a group over boxes: ", why,
       "; install it on every box (Debian: openmpi-bin), or set OPAL_PREFIX to where it is");
}

}  // namespace

template <typename Function>
void Mpi::find(void* library, const char* name, Function*& function) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) fail(kLibrary, " has no ", name, "; use Open MPI 4.1 or 5.0");
  function = reinterpret_cast<Function*>(found);
}

Mpi Mpi::load() {
  void* const library = open_library();
  Mpi mpi;
  find(library, "MPI_Init_thread", mpi.init_thread_);
  find(library, "MPI_Finalize", mpi.finalize_);
  find(library, "MPI_Comm_set_errhandler", mpi.set_errhandler_);
  find(library, "MPI_Comm_rank", mpi.rank_);
  find(library, "MPI_Comm_size", mpi.size_);
  find(library, "MPI_Isend", mpi.isend_);
  find(library, "MPI_Irecv", mpi.irecv_);
  find(library, "MPI_Test", mpi.test_);
  find(library, "MPI_Iprobe", mpi.iprobe_);
  find(library, "MPI_Error_string", mpi.error_string_);
  find(library, "MPI_Get_library_version", mpi.version_);
  // MPI_COMM_WORLD and similar constants are addresses of these.
  for (const auto& [name, handle] :
       {std::pair{"ompi_mpi_comm_world", &mpi.world_}, std::pair{"ompi_mpi_byte", &mpi.byte_},
        std::pair{"ompi_mpi_errors_return", &mpi.errors_return_}}) {
    *handle = ::dlsym(library, name);
    if (*handle == nullptr) fail(kLibrary, " has no ", name, "; use Open MPI 4.1 or 5.0");
  }
  std::array<char, kVersionText + 1> text{};
  int length = 0;
  mpi.version_(text.data(), &length);
  const std::string_view version(text.data());
  if (!version.starts_with("Open MPI v4.1.") && !version.starts_with("Open MPI v5.0.")) {
    fail("the MPI library is '", version.substr(0, version.find(',')),
         "'; use Open MPI 4.1 or 5.0");
  }
  return mpi;
}

void Mpi::check(int code, const char* what) {
  if (code == 0) return;
  std::array<char, kErrorText + 1> text{};
  int length = 0;
  error_string_(code, text.data(), &length);
  fail(what, ": ", text.data());
}

void Mpi::init() {
  int provided = 0;
  check(init_thread_(nullptr, nullptr, kThreadFunneled, &provided), "MPI_Init_thread");
  check(set_errhandler_(world_, errors_return_), "MPI_Comm_set_errhandler");
}

void Mpi::finalize() {
  check(finalize_(), "MPI_Finalize");
}

int Mpi::rank() {
  int rank = 0;
  check(rank_(world_, &rank), "MPI_Comm_rank");
  return rank;
}

int Mpi::size() {
  int size = 0;
  check(size_(world_, &size), "MPI_Comm_size");
  return size;
}

Mpi::Request Mpi::send(const void* data, std::size_t bytes, int to) {
  if (bytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    fail("a message of ", bytes, " bytes is too long for MPI_Isend");
  }
  Request request = nullptr;
  check(isend_(data, static_cast<int>(bytes), byte_, to, kTag, world_, &request), "MPI_Isend");
  return request;
}

Mpi::Request Mpi::receive(void* data, std::size_t bytes, int from) {
  Request request = nullptr;
  check(irecv_(data, static_cast<int>(bytes), byte_, from, kTag, world_, &request), "MPI_Irecv");
  return request;
}

bool Mpi::done(Request& request) {
  int done = 0;
  MpiStatus status;
  check(test_(&request, &done, &status), "MPI_Test");
  return done != 0;
}

bool Mpi::probe(MpiStatus& status) {
  int found = 0;
  check(iprobe_(kAnySource, kTag, world_, &found, &status), "MPI_Iprobe");
  return found != 0;
}

BoxLink::BoxLink(Mpi mpi, int box, int boxes) : mpi_(mpi) {
  mpi_.init();
  if (mpi_.rank() != box || mpi_.size() != boxes) {
    fail("MPI says that this is task ", mpi_.rank(), " of ", mpi_.size(), ", and its environment ",
         box, " of ", boxes, "; start all boxes with one mpirun or srun of the same Open MPI");
  }
}

void BoxLink::send(int to, std::vector<std::byte> message) {
  sending_.push_back({.request = nullptr, .box = to, .bytes = std::move(message)});
  Transfer& transfer = sending_.back();
  transfer.request = mpi_.send(transfer.bytes.data(), transfer.bytes.size(), to);
}

std::size_t BoxLink::sending() {
  // In order: a later one that is complete is detected when those before it are.
  while (!sending_.empty() && mpi_.done(sending_.front().request)) sending_.pop_front();
  return sending_.size();
}

bool BoxLink::receive(const OnMessage& on_message) {
  if (receiving_.empty()) {
    MpiStatus status;
    // The first probe may find nothing but makes MPI progress, which may receive it.
    if (!mpi_.probe(status) && !mpi_.probe(status)) return false;
    Transfer& transfer = receiving_.emplace_back();
    transfer.box = status.source;
    transfer.bytes.resize(status.bytes);
    transfer.request = mpi_.receive(transfer.bytes.data(), transfer.bytes.size(), status.source);
  }
  if (!mpi_.done(receiving_.front().request)) return false;
  const Transfer transfer = std::move(receiving_.front());
  receiving_.clear();
  on_message(transfer.box, transfer.bytes);
  return true;
}

}  // namespace nvllm::cluster
