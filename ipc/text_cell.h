// TextCell: a short text in shared memory that one thread writes and any process reads, at any
// time, even after the writer has died in the middle of a write.
//
// There are two versions; `published` is a counter whose lowest bit selects the complete one. The
// writer fills the other one and then publishes it, so it never waits and never leaves a
// half-written version published. A reader takes a copy of version published & 1 and accepts it if
// `published` has not changed: that version is written to again only after the next one was
// published. All words are atomic: the writer's data stores are releases and the reader's data
// loads acquires, so a reader that saw any word of a later write also sees the count that makes it
// try again.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace nvllm::ipc {

// Bytes: maximum length of the text; longer ones are truncated. Zeroed memory is a valid empty
// cell.
template <std::size_t Bytes>
class alignas(64) TextCell {
  static_assert(Bytes % 8 == 0);
  static constexpr std::size_t kWords = Bytes / 8;

 public:
  struct Value {
    std::uint64_t number = 0;
    std::int64_t since_ns = 0;
    std::uint32_t length = 0;
    std::array<char, Bytes> text;

    std::string_view view() const { return {text.data(), std::min<std::size_t>(length, Bytes)}; }
  };

  // Called by one thread at a time.
  void write(std::uint64_t number, std::int64_t since_ns, std::string_view text) {
    text = text.substr(0, Bytes);
    const std::uint64_t next = published_.load(std::memory_order_relaxed) + 1;
    Version& version = versions_[next & 1];
    version.number.store(number, std::memory_order_release);
    version.since_ns.store(since_ns, std::memory_order_release);
    version.length.store(static_cast<std::uint32_t>(text.size()), std::memory_order_release);
    for (std::size_t at = 0; at < text.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
      version.words[at / 8].store(word, std::memory_order_release);
    }
    published_.store(next, std::memory_order_release);
  }

  // If the writer never pauses, it gives up after many attempts and returns the last copy, which
  // may then mix two texts.
  Value read() const {
    Value value;
    for (int attempt = 0; attempt < 10'000; ++attempt) {
      const std::uint64_t published = published_.load(std::memory_order_acquire);
      const Version& version = versions_[published & 1];
      value.number = version.number.load(std::memory_order_acquire);
      value.since_ns = version.since_ns.load(std::memory_order_acquire);
      value.length = version.length.load(std::memory_order_acquire);
      const std::size_t length = std::min<std::size_t>(value.length, Bytes);
      for (std::size_t at = 0; at < length; at += 8) {
        const std::uint64_t word = version.words[at / 8].load(std::memory_order_acquire);
        std::memcpy(value.text.data() + at, &word, 8);
      }
      if (published_.load(std::memory_order_acquire) == published) break;
    }
    return value;
  }

 private:
  struct Version {
    std::atomic<std::uint64_t> number;
    std::atomic<std::int64_t> since_ns;
    std::atomic<std::uint32_t> length;
    std::array<std::atomic<std::uint64_t>, kWords> words;
  };
  std::atomic<std::uint64_t> published_;
  std::array<Version, 2> versions_;
};

}  // namespace nvllm::ipc
