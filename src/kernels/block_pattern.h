// S2-Attention's pattern (arXiv:2407.17678): which blocks of keys each key head sees. Kernels visit only these; a KV cache keeps only what
// is still seen.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn::kernels {

// A pattern that a user gives: rows and columns of blocks for one head, or for each key head.
struct BlockTable {
  int64_t heads = 1, blocks = 0;
  std::vector<uint8_t> seen;  // [heads, blocks, blocks], 0 or 1
  bool operator==(const BlockTable&) const = default;
};

// Positions are cut into blocks at multiples of `block`, counted from the start of the sequence (absolute, so that a block that is out of
// sight stays out of sight). Queries of block i, of any query head that reads key head a, see keys of block j <= i if
//   i - j <  local_blocks and (j + phase(a)) mod near_stride == 0, or
//   i - j >= local_blocks and (j + phase(a)) mod stride == 0, or
//   j == i, where position masks within the block,
// with phase(a) = a * phase_step + phase_offset. With near_stride 1, which is usual, that is: a window, and every stride-th block of the
// whole past, with another phase for each head.
struct BlockPattern {
  int64_t block = 64;  // positions; a power of two, at least 16
  int64_t local_blocks = 16;
  int64_t stride = 8;
  int64_t near_stride = 1;
  int64_t phase_step = 1, phase_offset = 0;
  int64_t kv_heads = 1;      // of the whole model: heads are numbered over all ranks
  int64_t dense_heads = 0;   // the last of these see everything before them
  bool homogeneous = false;  // all heads have the first one's phase
  std::shared_ptr<const BlockTable> table = {};  // replaces the formula

  bool is_dense(int64_t head) const { return !table && (head >= kv_heads - dense_heads || (stride == 1 && near_stride == 1)); }
  int64_t phase(int64_t head) const { return (homogeneous ? 0 : head * phase_step) + phase_offset; }
  bool sees(int64_t head, int64_t row, int64_t column) const;
  // Appends the columns in [first, last) that `row` sees, ascending.
  void append_columns(int64_t head, int64_t row, int64_t first, int64_t last, std::vector<int32_t>& columns) const;
  bool operator==(const BlockPattern&) const;
};

// Remainders of j mod stride that no head sees beyond its window: part of the context is invisible to a layer of this pattern. Empty with a
// table.
std::vector<int64_t> uncovered_remainders(const BlockPattern& pattern);

// True if a block that a head no longer sees is never seen again, so that its keys and values may be dropped.
bool drops_for_good(const BlockPattern& pattern, int64_t blocks);

// Pairs of blocks that all key heads see in a sequence of `blocks`; dense causal attention has blocks (blocks + 1) / 2 for each.
int64_t seen_pairs(const BlockPattern& pattern, int64_t blocks);

// The part of a layout's rows and columns that one call covers, in global blocks and heads.
struct BlockSpan {
  int64_t first_row = 0, rows = 0, first_column = 0, columns = 0;
  int64_t first_head = 0, heads = 1;
};

// The seen pairs as lists, for kernels that walk them on a GPU. By rows (forward, dq) and by columns (dk, dv). Rows and columns count from the
// span's first.
struct BlockLayout {
  int64_t heads = 1;                               // 1 where all heads see the same
  std::vector<int32_t> row_starts, columns;        // [heads, rows + 1] into columns, which ascend
  std::vector<int32_t> column_starts, rows;        // [heads, columns + 1] into rows, which ascend
};
BlockLayout block_layout(const BlockPattern& pattern, const BlockSpan& span);

}  // namespace cairn::kernels
