#pragma once
#include <cstddef>
#include <cstdint>

#include "mesh/axes.h"
#include "model/call.h"
#include "model/values.h"

namespace cairn::model {

class Model;

// Consecutive blocks of a model with their part of the KV cache, one row per sequence: all blocks, or those of a pipeline stage. Along tp
// the cache holds the local heads, because the blocks determine its shapes. Borrows all references.
class CachedBlocks {
 public:
  struct Parts {
    const Model& model;
    const Weights& weights;
    Buffers& buffers;
    const mesh::Axes& axes;
    size_t first = 0, last = 0;  // the blocks [first, last)
    int64_t rows = 0;            // of the cache
    int64_t length_max = 0;      // positions that the cache may grow to
  };
  explicit CachedBlocks(const Parts& parts) : parts_(parts) {}

  // Runs the blocks for `batch` adjacent rows of the cache, from position `begin` on. `values` holds what they read and receives what they
  // write. The model's last block computes logits for the last position only. The first call is for one row.
  void run(Values& values, int64_t begin, int64_t first_row, int64_t batch);
  // One of the blocks, by its place in the model; otherwise as run(). A block's part of the cache is made by its first call, which is for
  // one row.
  void run_one(size_t block, Values& values, int64_t begin, int64_t first_row, int64_t batch);
  // Copies the first positions of a row to another row.
  void copy(int64_t from, int64_t to, int64_t positions);
  // Makes room for positions before `end`. The cache doubles, up to length_max.
  void grow(int64_t end);

  KvCache& cache() { return cache_; }

 private:
  // Allocates what the cache does not have yet, after a block's first call, which has determined the shapes.
  void allocate(const KvCache& one, int64_t row);
  void run_range(size_t first, size_t last, Values& values, int64_t begin, int64_t first_row, int64_t batch);

  Parts parts_;
  KvCache cache_;
};

// Narrows a value [batch, length, ...] to its last position.
void keep_last_position(Values& values, const std::string& name);

}  // namespace cairn::model
