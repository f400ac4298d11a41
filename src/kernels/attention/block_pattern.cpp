#include "kernels/block_pattern.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace cairn::kernels {
namespace {

int64_t floor_mod(int64_t a, int64_t b) { return (a % b + b) % b; }

const uint8_t* table_row(const BlockTable& table, int64_t head, int64_t row) {
  CAIRN_CHECK(row < table.blocks, "block {} of a pattern of {}", row, table.blocks);
  return table.seen.data() + ((table.heads == 1 ? 0 : head) * table.blocks + row) * table.blocks;
}

// Appends the columns of [first, last) on the stride.
void append_strided(int64_t phase, int64_t stride, int64_t first, int64_t last, std::vector<int32_t>& columns) {
  for (int64_t j = first + floor_mod(-(first + phase), stride); j < last; j += stride) columns.push_back(static_cast<int32_t>(j));
}

bool same_for_all_heads(const BlockPattern& pattern) {
  if (pattern.table) return pattern.table->heads == 1;
  return (pattern.homogeneous && pattern.dense_heads == 0) || pattern.dense_heads >= pattern.kv_heads || pattern.is_dense(0);
}

}  // namespace

bool BlockPattern::sees(int64_t head, int64_t row, int64_t column) const {
  if (column > row) return false;
  if (table) return table_row(*table, head, row)[column] != 0;
  if (column == row || is_dense(head)) return true;
  return floor_mod(column + phase(head), row - column < local_blocks ? near_stride : stride) == 0;
}

void BlockPattern::append_columns(int64_t head, int64_t row, int64_t first, int64_t last, std::vector<int32_t>& columns) const {
  last = std::min(last, row + 1);
  if (table) {
    const uint8_t* seen = table_row(*table, head, row);
    for (int64_t j = first; j < last; ++j)
      if (seen[j] != 0) columns.push_back(static_cast<int32_t>(j));
    return;
  }
  if (is_dense(head)) return append_strided(0, 1, first, last, columns);
  const int64_t near = std::max<int64_t>(0, row - local_blocks + 1);
  append_strided(phase(head), stride, first, std::min(last, near), columns);
  append_strided(phase(head), near_stride, std::max(first, near), std::min(last, row), columns);
  if (first <= row && last > row) columns.push_back(static_cast<int32_t>(row));  // a row always sees itself
}

bool BlockPattern::operator==(const BlockPattern& other) const {
  const auto formula = [](const BlockPattern& p) {
    return std::vector<int64_t>{p.block,        p.local_blocks, p.stride,      p.near_stride,        p.phase_step,
                                p.phase_offset, p.kv_heads,     p.dense_heads, p.homogeneous ? 1 : 0};
  };
  const bool same_table = table == other.table || (table && other.table && *table == *other.table);
  return same_table && formula(*this) == formula(other);
}

std::vector<int64_t> uncovered_remainders(const BlockPattern& pattern) {
  std::vector<int64_t> missing;
  if (pattern.table || pattern.dense_heads > 0) return missing;
  std::vector<bool> covered(static_cast<size_t>(pattern.stride), false);
  for (int64_t head = 0; head < pattern.kv_heads; ++head)
    covered[static_cast<size_t>(floor_mod(-pattern.phase(head), pattern.stride))] = true;
  for (int64_t r = 0; r < pattern.stride; ++r)
    if (!covered[static_cast<size_t>(r)]) missing.push_back(r);
  return missing;
}

bool drops_for_good(const BlockPattern& pattern, int64_t blocks) {
  const int64_t heads = same_for_all_heads(pattern) ? 1 : pattern.kv_heads;
  for (int64_t head = 0; head < heads; ++head)
    for (int64_t row = 1; row + 1 < blocks; ++row)
      for (int64_t column = 0; column < row; ++column)  // strictly below the diagonal
        if (pattern.sees(head, row + 1, column) && !pattern.sees(head, row, column)) return false;
  return true;
}

int64_t seen_pairs(const BlockPattern& pattern, int64_t blocks) {
  int64_t pairs = 0;
  std::vector<int32_t> columns;
  for (int64_t head = 0; head < pattern.kv_heads; ++head)
    for (int64_t row = 0; row < blocks; ++row) {
      columns.clear();
      pattern.append_columns(head, row, 0, blocks, columns);
      pairs += static_cast<int64_t>(columns.size());
    }
  return pairs;
}

BlockPairs block_pairs(const BlockPattern& pattern, const BlockSpan& span) {
  const int64_t block = pattern.block, panel_size = BlockPairs::kPanel;
  BlockPairs pairs{.heads = same_for_all_heads(pattern) ? 1 : span.heads, .tile_keys = std::min(block, panel_size)};
  pairs.panels = (span.queries + panel_size - 1) / panel_size;
  pairs.tiles = (span.keys + pairs.tile_keys - 1) / pairs.tile_keys;
  const int64_t first_tile = span.key_offset / pairs.tile_keys, columns_end = (span.key_offset + span.keys + block - 1) / block;
  std::vector<int32_t> columns;
  for (int64_t h = 0; h < pairs.heads; ++h) {
    std::vector<std::vector<int32_t>> of_tile(static_cast<size_t>(pairs.tiles));
    pairs.panel_starts.push_back(static_cast<int32_t>(pairs.of_panel.size()));
    for (int64_t panel = 0; panel < pairs.panels; ++panel) {
      const int64_t begin = span.query_offset + panel * panel_size, end = std::min(begin + panel_size, span.query_offset + span.queries);
      std::map<int64_t, int32_t> rows_of;  // tile, from the span's first: rows that see it
      for (int64_t row = begin / block; row * block < end; ++row) {
        columns.clear();
        pattern.append_columns(span.first_head + h, row, span.key_offset / block, columns_end, columns);
        for (const int32_t column : columns)
          for (int64_t key = column * block; key < std::min((column + 1) * block, end); key += pairs.tile_keys)
            rows_of[key / pairs.tile_keys - first_tile] |= 1 << (row - begin / block);
      }
      for (const auto& [tile, rows] : rows_of) {
        if (tile >= pairs.tiles) break;
        pairs.of_panel.push_back(static_cast<int32_t>(tile << BlockPairs::kRowBits) | rows);
        of_tile[static_cast<size_t>(tile)].push_back(static_cast<int32_t>(panel << BlockPairs::kRowBits) | rows);
      }
      pairs.panel_starts.push_back(static_cast<int32_t>(pairs.of_panel.size()));
    }
    pairs.tile_starts.push_back(static_cast<int32_t>(pairs.of_tile.size()));
    for (const std::vector<int32_t>& panels : of_tile) {
      pairs.of_tile.insert(pairs.of_tile.end(), panels.begin(), panels.end());
      pairs.tile_starts.push_back(static_cast<int32_t>(pairs.of_tile.size()));
    }
  }
  return pairs;
}

}  // namespace cairn::kernels
