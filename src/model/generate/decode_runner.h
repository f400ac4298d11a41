#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::model {

// One token of one sequence in a decode step.
struct DecodeRow {
  int32_t token = 0;
  int64_t position = 0;
  int64_t cache_row = 0;  // the sequence's row of the KV cache
};

// What generate() runs on: a model with a KV cache, one row per sequence. The model may lie on one rank or be sharded over several.
class DecodeRunner {
 public:
  virtual ~DecodeRunner() = default;
  // The adapter of each row of the KV cache; -1: none. Called once, before the first prompt, where a request has one.
  virtual void set_adapters(std::vector<int32_t> of_row);
  // Runs a whole prompt into one row. Returns the logits [vocab] after it, fp32 on the CPU.
  virtual at::Tensor prefill(const std::vector<int32_t>& prompt, int64_t row) = 0;
  // Copies the first positions of a row to another row.
  virtual void copy(int64_t from, int64_t to, int64_t positions) = 0;
  // Runs one token for each of some rows. Returns logits [rows, vocab], fp32 on the CPU, valid until the next call.
  virtual at::Tensor decode(std::span<const DecodeRow> rows) = 0;
};

// Rows that go through the blocks in one call: [first, first + count) of a decode step.
struct RowGroup {
  size_t first = 0, count = 1;
};
// The groups of a step: one row each, or (`together`) up to `most` adjacent rows at the same position.
std::vector<RowGroup> group_rows(std::span<const DecodeRow> rows, bool together, size_t most);

}  // namespace cairn::model
