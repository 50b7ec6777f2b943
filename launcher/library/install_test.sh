#!/bin/bash
# Builds the example outside of this workspace, with pkg-config and with CMake, and compares its
# output with the program's. The installation can be moved.
set -eu
root=$PWD
model=$root/tests/data/golden-models/qwen2-bias
first=451,475,38,128,489,129 second=1,2,3
run=(--device=cpu --kv-cache-memory-bytes=16M)

launcher/library/install launcher/library/libnvllm.a 0.2.7 "$TEST_TMPDIR/installed"
mv "$TEST_TMPDIR/installed" "$TEST_TMPDIR/moved"
prefix=$TEST_TMPDIR/moved
work=$TEST_TMPDIR/elsewhere
mkdir -p "$work"
cp -L examples/generate.cc examples/CMakeLists.txt "$work"
launcher/nvllm-launch generate --model "$model" --prompt-ids "$first" --prompt-ids "$second" --temperature 0 \
  --max-tokens 16 "${run[@]}" --log-level=error | sed 's/.*, "token_ids": \[\([^]]*\)\].*/\1/; s/,//g' >"$work/expected"
cd "$work"

check() {  # PROGRAM
  "$1" "$model" "$first" "$second" | sed 's/ $//' | diff expected -
  if "$1" nowhere 1,2 2>error; then exit 1; fi
  grep -q '^generate: --model nowhere: ' error
}

# Only symbols of the interface are visible, so that programs can use any other names. (u: static
# variables of inline functions, which never collide.)
visible=$(nm -gC --defined-only "$prefix/lib/libnvllm.a" | grep -E '^[0-9a-f]+ [^u] ' | grep -v ' nvllm::Session' |
  grep -v ' for nvllm::SessionError$' || true)
[[ ! $visible ]] || { echo "visible symbols that are not public: $visible" | head -5; exit 1; }

# The header alone is enough, with C++17 and warnings as errors.
echo '#include <nvllm/nvllm.h>' >alone.cc
${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only alone.cc

if ! command -v pkg-config >/dev/null; then
  echo "skipped: by pkg-config: it is not installed"
else
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  [[ $(pkg-config --modversion nvllm) == 0.2.7 ]]
  # shellcheck disable=SC2046
  ${CXX:-c++} -std=c++20 generate.cc -o by-pkg-config $(pkg-config --cflags --libs nvllm)
  check ./by-pkg-config
fi

if ! command -v cmake >/dev/null; then
  echo "skipped: by CMake: it is not installed"
else
  cmake -S . -B by-cmake -DCMAKE_PREFIX_PATH="$prefix" >cmake.log
  cmake --build by-cmake >>cmake.log
  check by-cmake/generate
  # Another minor version is refused.
  sed -i 's/find_package(nvllm 0.2 /find_package(nvllm 0.1 /' CMakeLists.txt
  if cmake -S . -B other -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1; then exit 1; fi
fi
