#include "launcher/hub/sha256.h"

#include <doctest/doctest.h>

namespace nvllm::launcher {
namespace {

TEST_CASE("SHA-256 gives the standard's own examples") {
  CHECK(sha256_of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_of(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 is the same however the bytes are cut, and without instructions of its own") {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  const std::string whole = sha256_of(text);
  for (std::size_t cut = 1; cut < 140; ++cut) {
    for (const bool portable : {false, true}) {
      Sha256 hash(portable);
      for (std::size_t at = 0; at < text.size(); at += cut) {
        hash.add(std::string_view(text).substr(at, cut));
      }
      CHECK(hash.finish() == whole);
    }
  }
}

}  // namespace
}  // namespace nvllm::launcher
