#include "kernels/block_pattern.h"

#include <algorithm>

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
    return std::vector<int64_t>{p.block,        p.local_blocks, p.stride,      p.near_stride, p.phase_step,
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

BlockLayout block_layout(const BlockPattern& pattern, const BlockSpan& span) {
  BlockLayout layout{.heads = same_for_all_heads(pattern) ? 1 : span.heads};
  for (int64_t h = 0; h < layout.heads; ++h) {
    std::vector<int32_t> counts(static_cast<size_t>(span.columns), 0);
    const size_t begin = layout.columns.size();
    layout.row_starts.push_back(static_cast<int32_t>(begin));
    for (int64_t row = 0; row < span.rows; ++row) {
      const size_t from = layout.columns.size();
      pattern.append_columns(span.first_head + h, span.first_row + row, span.first_column, span.first_column + span.columns,
                             layout.columns);
      for (size_t i = from; i < layout.columns.size(); ++i) {
        layout.columns[i] -= static_cast<int32_t>(span.first_column);
        ++counts[static_cast<size_t>(layout.columns[i])];
      }
      layout.row_starts.push_back(static_cast<int32_t>(layout.columns.size()));
    }
    // The same pairs by column: rows go to the places that the counts give.
    std::vector<size_t> next(static_cast<size_t>(span.columns));
    size_t at = begin;
    for (int64_t column = 0; column < span.columns; ++column) {
      layout.column_starts.push_back(static_cast<int32_t>(at));
      next[static_cast<size_t>(column)] = at;
      at += static_cast<size_t>(counts[static_cast<size_t>(column)]);
    }
    layout.column_starts.push_back(static_cast<int32_t>(at));
    layout.rows.resize(at);
    const size_t starts = static_cast<size_t>(h * (span.rows + 1));
    for (int64_t row = 0; row < span.rows; ++row)
      for (int32_t i = layout.row_starts[starts + static_cast<size_t>(row)]; i < layout.row_starts[starts + static_cast<size_t>(row) + 1]; ++i)
        layout.rows[next[static_cast<size_t>(layout.columns[static_cast<size_t>(i)])]++] = static_cast<int32_t>(row);
  }
  return layout;
}

}  // namespace cairn::kernels
