// ArchiveWriter and ArchiveReader: serialize values to the bytes of a message, and back.
//
//   ArchiveWriter out;                 struct Request {
//   out(std::string("echo"), 7);         std::vector<int> tokens;
//   ArchiveReader in(out.bytes());       template <class Archive>
//   auto name = in.get<std::string>();   void serialize(Archive& archive) { archive(tokens); }
//                                      };
//
// Both ends run the same build on the same kind of machine, so numbers are sent in their memory
// representation; a version at the start of each message rejects anything else. Supported: bool,
// numbers, enums, std::string, vector, array, optional, pair, tuple, map, structs with serialize(),
// and structs declared kArchiveAsBytes. A writer also takes string_view, string literals and span,
// which are read as string and vector.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace nvllm::ipc {

inline constexpr std::uint32_t kArchiveVersion = 0x4e56'0001;  // "NV", then the version

// Declares that a struct may be copied byte by byte: it holds no pointers, and every bit pattern is
// a valid value.
//   template <> inline constexpr bool kArchiveAsBytes<Token> = true;
template <typename T>
inline constexpr bool kArchiveAsBytes = false;

namespace archive_internal {

template <typename T>
inline constexpr bool kIsBytes = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) ||
                                 std::is_enum_v<T> || kArchiveAsBytes<T>;

template <typename T, template <typename...> class Template>
inline constexpr bool kIs = false;
template <template <typename...> class Template, typename... Args>
inline constexpr bool kIs<Template<Args...>, Template> = true;

template <typename T>
inline constexpr bool kIsArray = false;
template <typename T, std::size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;

template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T, std::size_t N>
inline constexpr bool kIsSpan<std::span<T, N>> = true;

template <typename T, typename Archive>
concept Serializable = requires(T& value, Archive& archive) {
  value.serialize(archive);
};

template <typename T>
inline constexpr bool kUnknownType = false;

}  // namespace archive_internal

// Not thread-safe.
class ArchiveWriter {
 public:
  ArchiveWriter() { clear(); }

  // Starts a new message in the same buffer.
  void clear();
  std::span<const std::byte> bytes() const { return {buffer_.get(), size_}; }

  template <typename... T>
  ArchiveWriter& operator()(const T&... values) {
    (write(values), ...);
    return *this;
  }

 private:
  void append(const void* data, std::size_t bytes) {
    if (bytes > capacity_ - size_) grow(bytes);
    if (bytes != 0) std::memcpy(buffer_.get() + size_, data, bytes);
    size_ += bytes;
  }
  void grow(std::size_t bytes);

  template <typename T>
  void write_range(const T* data, std::size_t size) {
    write(static_cast<std::uint64_t>(size));
    if constexpr (archive_internal::kIsBytes<T>) {
      append(data, size * sizeof(T));
    } else {
      for (std::size_t i = 0; i < size; ++i) write(data[i]);
    }
  }

  template <typename T>
  void write(const T& value) {
    using namespace archive_internal;
    if constexpr (std::is_same_v<T, bool>) {
      write(static_cast<std::uint8_t>(value));
    } else if constexpr (kIsBytes<T>) {
      static_assert(std::is_trivially_copyable_v<T>);
      append(&value, sizeof(T));
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      const std::string_view text = value;
      write_range(text.data(), text.size());
    } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
      write(static_cast<std::uint64_t>(value.size()));
      for (const bool bit : value) write(bit);
    } else if constexpr (kIs<T, std::vector> || kIsSpan<T>) {
      write_range(value.data(), value.size());
    } else if constexpr (kIsArray<T>) {
      for (const auto& element : value) write(element);
    } else if constexpr (kIs<T, std::optional>) {
      write(value.has_value());
      if (value) write(*value);
    } else if constexpr (kIs<T, std::pair> || kIs<T, std::tuple>) {
      std::apply([this](const auto&... parts) { (write(parts), ...); }, value);
    } else if constexpr (kIs<T, std::map>) {
      write(static_cast<std::uint64_t>(value.size()));
      for (const auto& [key, mapped] : value) write(key), write(mapped);
    } else if constexpr (Serializable<T, ArchiveWriter>) {
      const_cast<T&>(value).serialize(
          *this);  // one serialize() for both directions; this one reads
    } else {
      static_assert(kUnknownType<T>, "give the type a serialize() or declare it kArchiveAsBytes");
    }
  }

  std::unique_ptr<std::byte[]> buffer_;  // not a vector, which would zero memory that is
                                         // overwritten next
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
};

// Reads what a writer wrote, from bytes that must outlive the reader. Malformed bytes are an Error;
// every length is checked against the bytes that are left before it is used.
class ArchiveReader {
 public:
  explicit ArchiveReader(std::span<const std::byte> bytes);

  template <typename... T>
  ArchiveReader& operator()(T&... values) {
    (read(values), ...);
    return *this;
  }
  template <typename T>
  T get() {
    T value{};
    read(value);
    return value;
  }
  // An Error if there are bytes left.
  void finish() const;

 private:
  // Every element takes at least one byte (structs without members are not supported in
  // containers).
  std::size_t read_size(std::size_t bytes_per_element);
  const std::byte* take(std::size_t bytes);
  void read(bool& value);
  [[noreturn]] static void fail_too_deep();

  template <typename T>
  void read(T& value) {
    using namespace archive_internal;
    if constexpr (kIsBytes<T>) {
      static_assert(std::is_trivially_copyable_v<T>);
      std::memcpy(&value, take(sizeof(T)), sizeof(T));
    } else if constexpr (std::is_same_v<T, std::string>) {
      const std::size_t size = read_size(1);
      value.assign(reinterpret_cast<const char*>(take(size)), size);
    } else if constexpr (kIs<T, std::vector>) {
      read_vector(value);
    } else if constexpr (kIsArray<T>) {
      for (auto& element : value) read(element);
    } else if constexpr (kIs<T, std::optional>) {
      value.reset();
      if (get<bool>()) read(value.emplace());
    } else if constexpr (kIs<T, std::pair> || kIs<T, std::tuple>) {
      std::apply([this](auto&... parts) { (read(parts), ...); }, value);
    } else if constexpr (kIs<T, std::map>) {
      value.clear();
      for (std::size_t left = read_size(1); left != 0; --left) {
        auto key = get<typename T::key_type>();
        read(value[std::move(key)]);
      }
    } else if constexpr (Serializable<T, ArchiveReader>) {
      constexpr int kDeepest = 64;  // maximum nesting: a struct may hold vectors of itself
      if (++depth_ > kDeepest) fail_too_deep();
      value.serialize(*this);
      --depth_;
    } else {
      static_assert(kUnknownType<T>, "give the type a serialize() or declare it kArchiveAsBytes");
    }
  }

  template <typename T>
  void read_vector(std::vector<T>& value) {
    if constexpr (archive_internal::kIsBytes<T>) {
      const std::size_t size = read_size(sizeof(T));
      const std::byte* from = take(size * sizeof(T));
      value.resize(size);
      if (size != 0) std::memcpy(value.data(), from, size * sizeof(T));
    } else {
      value.clear();
      for (std::size_t left = read_size(1); left != 0; --left) value.push_back(get<T>());
    }
  }

  std::span<const std::byte> left_;
  int depth_ = 0;
};

}  // namespace nvllm::ipc
