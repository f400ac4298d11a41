// S2-Attention's pattern (arXiv:2407.17678): which blocks of keys each key head sees. Kernels visit only these; a KV cache keeps only what
// is still seen.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn::kernels {

class BlockListCache;  // attention/block_attention_cuda.cpp

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
  int64_t kv_heads = 1;                          // of the whole model: heads are numbered over all ranks
  int64_t dense_heads = 0;                       // the last of these see everything before them
  bool homogeneous = false;                      // all heads have the first one's phase
  std::shared_ptr<const BlockTable> table = {};  // replaces the formula
  std::shared_ptr<BlockListCache> lists = {};    // what GPU kernels made for earlier calls; copies share it. Null: made at every call

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

// What one call covers, in global positions and heads. The offsets are multiples of a block.
struct BlockSpan {
  int64_t query_offset = 0, queries = 0, key_offset = 0, keys = 0;
  int64_t first_head = 0, heads = 1;
  bool operator==(const BlockSpan&) const = default;
};

// The seen pairs of a call as lists that kernels on a GPU walk: pairs of a panel of 64 queries and a tile of `tile_keys` keys, by panel
// (forward, dq) and by tile (dk, dv). With blocks of 16 or 32 a panel covers several rows of the pattern; bit r of a pair says that its row
// r sees the tile.
struct BlockPairs {
  static constexpr int64_t kPanel = 64, kRowBits = 4;
  int64_t heads = 1;  // 1 where all heads see the same
  int64_t panels = 0, tiles = 0, tile_keys = 64;
  std::vector<int32_t> panel_starts = {}, of_panel = {};  // [heads, panels + 1] into tile << kRowBits | rows, ascending
  std::vector<int32_t> tile_starts = {}, of_tile = {};    // [heads, tiles + 1] into panel << kRowBits | rows, ascending
};
BlockPairs block_pairs(const BlockPattern& pattern, const BlockSpan& span);
std::shared_ptr<BlockListCache> make_block_list_cache();  // null in a build without CUDA

}  // namespace cairn::kernels
