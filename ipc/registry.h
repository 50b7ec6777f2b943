// Registry: the methods that others may call in this process, by name.
//
//   registry.bind<&Worker::echo>("echo", &worker);
//   registry.bind("add", [](int a, int b) { return a + b; });
//
// A call is a message: name, hash of the argument types, arguments (write_call). dispatch() runs it
// and writes the reply: true and the result, or false and the error text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ipc/archive.h"

namespace nvllm::ipc {

// --- Names of argument types, by which caller and callee compare them ---

// The type as which an argument is read: text of any kind as string, a span as vector.
template <typename T>
struct Canonical {
  using type = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, T>;
};
template <typename T, std::size_t N>
struct Canonical<std::span<T, N>> {
  using type = std::vector<std::remove_cv_t<T>>;
};
template <typename T>
using CanonicalType = typename Canonical<std::decay_t<T>>::type;

// The compiler's name for T.
template <typename T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, std::string>) {
    return "string";
  } else {
    const std::string_view text =
        __PRETTY_FUNCTION__;  // "... [with T = int; ...]", "... [T = int]"
    const std::size_t start = text.find("T = ") + 4;
    const std::size_t semicolon = text.find(';', start);
    return text.substr(start, std::min(semicolon, text.size() - 1) - start);
  }
}

// "(int, string)"
template <typename... Args>
std::string signature_text() {
  std::string text = "(";
  [[maybe_unused]] const char* separator = "";
  ((text.append(separator).append(type_name<CanonicalType<Args>>()), separator = ", "), ...);
  return text + ")";
}

// The FNV-1a hash of signature_text().
template <typename... Args>
constexpr std::uint64_t signature_hash() {
  std::uint64_t hash = 14695981039346656037U;
  [[maybe_unused]] const auto mix = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    hash = (hash ^ 0xffU) * 1099511628211U;
  };
  (mix(type_name<CanonicalType<Args>>()), ...);
  return hash;
}

// Appends a call to a message.
template <typename... Args>
void write_call(ArchiveWriter& message, std::string_view method, const Args&... args) {
  message(method, signature_hash<Args...>(), args...);
}

// Bind only at startup; afterwards one thread at a time may use dispatch().
class Registry {
 public:
  // The object must outlive the registry. A name can be bound once.
  template <auto Method, typename Object>
  void bind(std::string name, Object* object) {
    add(std::move(name), method_of(object, Method));
  }
  template <typename Callable>
  void bind(std::string name, Callable callable) {
    add(std::move(name), std::function(std::move(callable)));
  }

  // Runs the call that follows in the message. True: appends true and the result to the reply.
  // False: appends false and an error text; the method threw, is unknown, or takes other types.
  // Errors that concern the whole group (GroupAborted, PeerTimeout) are rethrown instead.
  bool dispatch(ArchiveReader& message, ArchiveWriter& reply) const;

 private:
  struct Method {
    std::uint64_t signature = 0;
    std::string signature_text;
    std::function<void(ArchiveReader&, ArchiveWriter&)> run;
  };

  template <typename Object, typename Class, typename Return, typename... Args>
  static std::function<Return(Args...)> method_of(Object* object,
                                                  Return (Class::*method)(Args...)) {
    return std::bind_front(method, object);
  }
  template <typename Object, typename Class, typename Return, typename... Args>
  static std::function<Return(Args...)> method_of(Object* object,
                                                  Return (Class::*method)(Args...) const) {
    return std::bind_front(method, object);
  }

  template <typename Return, typename... Args>
  void add(std::string name, std::function<Return(Args...)> function) {
    insert(std::move(name),
           {signature_hash<Args...>(), signature_text<Args...>(),
            [function = std::move(function)](ArchiveReader& message, ArchiveWriter& reply) {
              std::tuple<CanonicalType<Args>...> args;
              message(args);
              message.finish();
              if constexpr (std::is_void_v<Return>) {
                std::apply(function, std::move(args));
                reply(true);
              } else {
                // Computed first: if the method throws, no part of a success has been written.
                const auto result = std::apply(function, std::move(args));
                reply(true, result);
              }
            }});
  }
  void insert(std::string name, Method method);
  void run(ArchiveReader& message, ArchiveWriter& reply) const;

  std::unordered_map<std::string, Method> methods_;
};

}  // namespace nvllm::ipc
