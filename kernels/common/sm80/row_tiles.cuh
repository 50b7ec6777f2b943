// Element-wise operations on rows, 16 bytes at a time: rows are cut into tiles, one per group of
// threads, with a few groups per block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/common/sm80/types.cuh"

namespace nvllm::kernels {

inline constexpr int kTileBlockThreads = 256;

// blockDim.x threads per tile, each with V vectors of it; blockDim.y rows per block.
struct RowTiles {
  long long rows = 0;
  long long columns = 0;
  long long vectors = 0;  // of a row; the last one may be partial
  unsigned tiles = 0;     // of a row

  dim3 block, grid;

  RowTiles(std::int64_t rows, std::int64_t columns, int elements_of_vector, int vectors_of_thread)
      : rows(rows),
        columns(columns),
        vectors((columns + elements_of_vector - 1) / elements_of_vector) {
    const long long wanted = (vectors + vectors_of_thread - 1) / vectors_of_thread;
    const int threads =
        static_cast<int>(std::min<long long>((wanted + 31) / 32 * 32, kTileBlockThreads));
    const int rows_of_block = kTileBlockThreads / threads;
    const long long tile = static_cast<long long>(threads) * vectors_of_thread;
    tiles = static_cast<unsigned>((vectors + tile - 1) / tile);
    block = dim3(threads, rows_of_block);
    grid = dim3(static_cast<unsigned>((rows + rows_of_block - 1) / rows_of_block * tiles));
  }
};

// A thread's position: its row, and the first of its vectors; the others follow at a stride of
// blockDim.x.
struct TilePlace {
  long long row;
  long long vector;
};

template <int V>
__device__ __forceinline__ TilePlace tile_place(unsigned tiles) {
  const unsigned row_block = blockIdx.x / tiles;
  const unsigned tile = blockIdx.x - row_block * tiles;
  return {static_cast<long long>(row_block) * blockDim.y + threadIdx.y,
          static_cast<long long>(tile) * (blockDim.x * V) + threadIdx.x};
}

// Vector number `vector` of a row of `columns` elements at `row`. kAligned: rows are whole vectors
// and start at multiples of 16 bytes; then the vector must exist.
template <bool kAligned, typename T>
__device__ __forceinline__ Vector<T> load_of_row(const T* row, long long vector,
                                                 long long columns) {
  constexpr int kElements = Vector<T>::kElements;
  const T* from = row + vector * kElements;
  if constexpr (kAligned) return load_vector(from);
  const long long left = columns - vector * kElements;
  return load_elements(from, static_cast<int>(left < kElements ? left : kElements));
}

template <bool kAligned, typename T>
__device__ __forceinline__ void store_of_row(T* row, long long vector, long long columns,
                                             const Vector<T>& value) {
  constexpr int kElements = Vector<T>::kElements;
  T* to = row + vector * kElements;
  if constexpr (kAligned) {
    store_vector(to, value);
  } else {
    const long long left = columns - vector * kElements;
    store_elements(to, value, static_cast<int>(left < kElements ? left : kElements));
  }
}

}  // namespace nvllm::kernels
