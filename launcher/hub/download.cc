#include "launcher/hub/download.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace nvllm::launcher {
namespace {

constexpr std::size_t kConnections = 8;
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
// Pieces that may start while the first incomplete one is not done; bounds the memory of those that
// must wait for it.
constexpr std::size_t kWindow = 2 * kConnections;

// A part of a file, fetched by one request.
struct Piece {
  BlobWriter* blob = nullptr;
  std::uint64_t begin = 0, end = 0;
  std::atomic<std::size_t>* left = nullptr;  // pieces of the file that are not complete
};

// Delays a piece until it is not too far ahead of the others.
class Window {
 public:
  explicit Window(std::size_t pieces) : done_(pieces) {}

  void wait_for(std::size_t piece) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || piece < first_ + kWindow; });
    if (ended_) throw NetworkStopped("stopped");
  }
  void complete(std::size_t piece) {
    const std::lock_guard lock(mutex_);
    done_[piece] = true;
    while (first_ < done_.size() && done_[first_]) ++first_;
    changed_.notify_all();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> done_;
  std::size_t first_ = 0;  // the first piece that is not complete
  bool ended_ = false;
};

struct PieceReceiver : BodyReceiver {
  explicit PieceReceiver(const std::function<void(std::uint64_t)>& on_bytes) : on_bytes(on_bytes) {}
  void on_body(std::string_view piece) override {
    bytes.append(piece);
    on_bytes(piece.size());
  }
  std::string bytes;
  const std::function<void(std::uint64_t)>& on_bytes;
};

// The number of attempts restarts whenever bytes have arrived.
void fetch_bytes(HubClient& client, HttpSession& session, const Piece& piece,
                 PieceReceiver& receiver) {
  while (piece.begin + receiver.bytes.size() < piece.end) {
    client.with_attempts([&] {
      const std::size_t before = receiver.bytes.size();
      try {
        client.fetch(session, piece.blob->file(), piece.begin + before, piece.end, receiver);
      } catch (const NetworkError&) {
        if (before == receiver.bytes.size()) throw;
      }
    });
  }
}

void fetch_piece(HubClient& client, HttpSession& session, const Piece& piece,
                 const std::function<void(std::uint64_t)>& on_bytes) {
  PieceReceiver receiver(on_bytes);
  receiver.bytes.reserve(piece.end - piece.begin);
  try {
    fetch_bytes(client, session, piece, receiver);
  } catch (...) {
    piece.blob->put(piece.begin, std::move(receiver.bytes));  // another run continues from here
    throw;
  }
  piece.blob->put(piece.begin, std::move(receiver.bytes));
  if (--*piece.left == 0) piece.blob->finish();
}

}  // namespace

void run_in_threads(std::size_t count, const std::function<void()>& stop,
                    const std::function<void(HttpSession& session, std::size_t number)>& work,
                    Network& network) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run = [&] {
    try {
      HttpSession session(network);
      for (std::size_t number; (number = next++) < count;) work(session, number);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!first_error) first_error = std::current_exception();
      stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < std::min(count, kConnections); ++i) {
      threads.push_back(start_thread<std::jthread>("of a download", run));
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

void download(HubClient& client, Network& network,
              const std::vector<std::unique_ptr<BlobWriter>>& blobs,
              const std::function<void()>& stop,
              const std::function<void(std::uint64_t bytes)>& on_bytes) {
  std::vector<Piece> pieces;
  std::vector<std::atomic<std::size_t>> left(blobs.size());
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    const std::uint64_t size = blobs[i]->file().size;
    for (std::uint64_t begin = blobs[i]->size_at_start(); begin < size; begin += kPieceBytes) {
      pieces.push_back({blobs[i].get(), begin, std::min(size, begin + kPieceBytes), &left[i]});
      ++left[i];
    }
    if (left[i] == 0) blobs[i]->finish();
  }
  Window window(pieces.size());
  const auto stop_all = [&] {
    window.end();
    stop();
  };
  const auto fetch_one = [&](HttpSession& session, std::size_t number) {
    window.wait_for(number);
    fetch_piece(client, session, pieces[number], on_bytes);
    window.complete(number);
  };
  run_in_threads(pieces.size(), stop_all, fetch_one, network);
}

}  // namespace nvllm::launcher
