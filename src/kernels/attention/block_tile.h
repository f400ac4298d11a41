// The building blocks of block-sparse CPU attention: strips of 16 keys, panels of 64 queries, and which of them see each other.
//
// Every pattern block is a whole number of strips. A panel of queries lies in one row of the pattern where blocks have 64 positions or
// more; with blocks of 16 or 32 it covers up to four rows (merge-Q): it goes over the union of their columns, and each strip says which
// rows see it. A row has at least 16 queries, so a vector of queries never straddles two rows: a row that does not see a strip skips whole
// vectors. Strips are gathered from anywhere: six of them are worked on at a time, whether or not they adjoin.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "kernels/attention/attention_tile.h"
#include "kernels/block_pattern.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace cairn::kernels {

inline constexpr int kQueries = 64;  // in a panel
inline constexpr int kStrip = 16;    // keys in a strip
inline constexpr int kStripsAtOnce = 6;
inline constexpr int kPanelRows = kQueries / kStrip;  // pattern rows in a panel, at most

// Register tiles as in attention_tile.h, whose heights divide a strip and whose widths suit panels of 64.
template <int W>
struct BlockTile;
template <>
struct BlockTile<16> {
  static constexpr int kScoreRows = 4, kScoreVectors = 4, kRows = 4, kVectors = 4;
};
template <>
struct BlockTile<8> {
  static constexpr int kScoreRows = 4, kScoreVectors = 2, kRows = 4, kVectors = 2;
};
#if defined(__aarch64__)
template <>
struct BlockTile<4> {
  static constexpr int kScoreRows = 8, kScoreVectors = 2, kRows = 8, kVectors = 2;
};
#else
template <>
struct BlockTile<4> {
  static constexpr int kScoreRows = 4, kScoreVectors = 2, kRows = 4, kVectors = 2;
};
#endif

// Keys and values of the blocks that a task visits.
struct Strip {
  int32_t key = 0;      // the first key, counted from the problem's first
  uint8_t rows = 0;     // bit r: the panel's row r sees it
  bool masked = false;  // some pair is not seen
};

// A panel of queries and the strips that it sees.
struct BlockPanel {
  int64_t query = 0, count = 0;  // lanes behind `count` are padding
  int64_t first_row = 0;         // of the pattern
  int row_count = 1;
  int row_shift = 6;  // lane i is in row i >> row_shift of the panel
  std::array<int32_t, kQueries> documents = {};
  std::vector<Strip> strips = {};

  bool sees(const Strip& strip, int64_t lane) const { return (strip.rows >> (lane >> row_shift)) & 1; }
};

// Finds the panels and strips of a task. Keeps its memory from panel to panel.
class BlockWalk {
 public:
  BlockWalk(const AttentionProblem& problem, const AttentionTask& task) : p_(problem), t_(task) {}

  // Calls visit(panel) for every panel of the task whose queries see a key of the task.
  template <class Visit>
  CAIRN_INLINE void panels(const Visit& visit) {
    for (int64_t query = t_.query_begin; query < t_.query_end; query += kQueries) {
      set_panel(query, std::min<int64_t>(kQueries, t_.query_end - query));
      visit(panel_);
    }
  }

  // One byte for each block of keys from the problem's first: whether some query of the task sees it.
  std::vector<uint8_t> visited_columns() {
    std::vector<uint8_t> visited(static_cast<size_t>(columns_end()), 0);
    const int64_t block = p_.pattern->block, first = (p_.query_offset + t_.query_begin) / block,
                  last = (p_.query_offset + t_.query_end - 1) / block;
    for (int64_t row = first; row <= last; ++row) {
      columns_[0].clear();
      append_columns(row, columns_[0]);
      for (const int32_t column : columns_[0]) visited[static_cast<size_t>(column - first_column())] = 1;
    }
    return visited;
  }

 private:
  int64_t first_column() const { return p_.key_offset / p_.pattern->block; }
  int64_t columns_end() const { return (t_.key_end + p_.pattern->block - 1) / p_.pattern->block; }  // from the problem's first
  void append_columns(int64_t row, std::vector<int32_t>& columns) const {
    p_.pattern->append_columns(p_.first_kv_head + t_.kv_head, row, first_column() + t_.key_begin / p_.pattern->block,
                               first_column() + columns_end(), columns);
  }

  void set_panel(int64_t query, int64_t count) {
    const int64_t block = p_.pattern->block, position = p_.query_offset + query;
    panel_.query = query, panel_.count = count;
    panel_.first_row = position / block;
    panel_.row_shift = block >= kQueries ? 6 : block == 32 ? 5 : 4;
    panel_.row_count = static_cast<int>((position + count - 1) / block - panel_.first_row + 1);
    panel_.documents.fill(-2);  // an id that no key has
    int32_t lowest = 0, highest = 0;
    if (p_.query_documents != nullptr) {
      const int32_t* ids = p_.query_documents + t_.batch * p_.q_len + query;
      std::copy(ids, ids + count, panel_.documents.begin());
      const auto [low, high] = std::minmax_element(ids, ids + count);
      lowest = *low, highest = *high;
    }
    panel_.strips.clear();
    for (int r = 0; r < panel_.row_count; ++r) {
      columns_[static_cast<size_t>(r)].clear();
      append_columns(panel_.first_row + r, columns_[static_cast<size_t>(r)]);
    }
    std::array<size_t, kPanelRows> next = {};
    while (true) {  // the union of the rows' columns, ascending
      int32_t column = std::numeric_limits<int32_t>::max();
      for (int r = 0; r < panel_.row_count; ++r) {
        const auto& of_row = columns_[static_cast<size_t>(r)];
        if (next[static_cast<size_t>(r)] < of_row.size()) column = std::min(column, of_row[next[static_cast<size_t>(r)]]);
      }
      if (column == std::numeric_limits<int32_t>::max()) break;
      uint8_t rows = 0;
      for (int r = 0; r < panel_.row_count; ++r) {
        const auto& of_row = columns_[static_cast<size_t>(r)];
        if (next[static_cast<size_t>(r)] < of_row.size() && of_row[next[static_cast<size_t>(r)]] == column)
          rows |= static_cast<uint8_t>(1 << r), ++next[static_cast<size_t>(r)];
      }
      add_strips((column - first_column()) * block, rows, lowest, highest);
    }
  }

  void add_strips(int64_t key, uint8_t rows, int32_t lowest, int32_t highest) {
    const int64_t end = std::min({key + p_.pattern->block, t_.key_end, p_.keys_seen(panel_.query + panel_.count)});
    for (; key < end; key += kStrip) {
      bool masked = rows != (1 << panel_.row_count) - 1 || key + kStrip > p_.k_len || key + kStrip - 1 > panel_.query + p_.shift;
      if (p_.key_documents != nullptr) {
        const int32_t* ids = p_.key_documents + t_.batch * p_.k_len + key;
        const auto [low, high] = std::minmax_element(ids, ids + std::min<int64_t>(kStrip, p_.k_len - key));
        if (*low > highest || *high < lowest) continue;
        masked = masked || lowest != highest || *low != *high;
      }
      panel_.strips.push_back({static_cast<int32_t>(key), rows, masked});
    }
  }

  const AttentionProblem& p_;
  const AttentionTask& t_;
  BlockPanel panel_;
  std::array<std::vector<int32_t>, kPanelRows> columns_;
};

// Up to kStripsAtOnce strips of a panel.
struct StripGroup {
  const Strip* strips = nullptr;
  int64_t count = 0;
  int64_t keys() const { return count * kStrip; }
};

template <class Visit>
CAIRN_INLINE void strip_groups(const BlockPanel& panel, const Visit& visit) {
  const auto strips = static_cast<int64_t>(panel.strips.size());
  for (int64_t s = 0; s < strips; s += kStripsAtOnce)
    visit(StripGroup{panel.strips.data() + s, std::min<int64_t>(kStripsAtOnce, strips - s)});
}

// Adjoining strips that row `row` of the panel sees.
struct StripRun {
  int64_t first = 0, count = 0;  // in the group
};

// Calls visit(run) for the longest runs of a group that the panel's row sees.
template <class Visit>
CAIRN_INLINE void strip_runs(const StripGroup& group, int64_t row, const Visit& visit) {
  for (int64_t s = 0; s < group.count;) {
    if (((group.strips[s].rows >> row) & 1) == 0) {
      ++s;
      continue;
    }
    int64_t end = s + 1;
    while (end < group.count && group.strips[end].key == group.strips[end - 1].key + kStrip && ((group.strips[end].rows >> row) & 1) != 0)
      ++end;
    visit(StripRun{s, end - s});
    s = end;
  }
}

// scores [keys][kQueries] = keys queries^T, for the vectors of queries that see their strip; the others stay as they are. `key_strips` has
// the strip of key k at (k - first_key) * head_dim, as [head_dim][kStrip].
template <int W>
CAIRN_INLINE void group_scores(const AttentionProblem& p, const BlockPanel& panel, const StripGroup& group, float* scores,
                               const float* key_strips, int64_t first_key, const float* query_panel) {
  using Tiles = BlockTile<W>;
  constexpr int kRows = Tiles::kScoreRows, kVectors = Tiles::kScoreVectors;
  const int64_t vectors = (panel.count + W - 1) / W;
  for (int64_t s = 0; s < group.count; ++s) {
    const Strip& strip = group.strips[s];
    const float* keys = key_strips + (strip.key - first_key) * p.head_dim;
    for (int64_t j = 0; j < kStrip; j += kRows) {
      const int64_t first = std::max<int64_t>(strip.key + j - p.shift - panel.query, 0) / W;
      for (int64_t v = first; v < vectors; v += kVectors) {
        const int64_t count = std::min<int64_t>(kVectors, vectors - v);
        if (strip.masked && !panel.sees(strip, v * W) && !panel.sees(strip, (v + count) * W - 1)) {
          bool any = false;  // four vectors of sixteen may lie in four rows
          for (int64_t u = v + 1; u + 1 < v + count; ++u) any = any || panel.sees(strip, u * W);
          if (!any) continue;
        }
        float* to = scores + (s * kStrip + j) * kQueries + v * W;
        const float* queries = query_panel + v * W;
        if (count == 1) tile_product<W, kRows, 1, Left::by_k, false>(to, kQueries, keys + j, kStrip, queries, kQueries, p.head_dim);
        if (count == 2) tile_product<W, kRows, 2, Left::by_k, false>(to, kQueries, keys + j, kStrip, queries, kQueries, p.head_dim);
        if constexpr (kVectors >= 4) {
          if (count == 3) tile_product<W, kRows, 3, Left::by_k, false>(to, kQueries, keys + j, kStrip, queries, kQueries, p.head_dim);
          if (count == 4) tile_product<W, kRows, 4, Left::by_k, false>(to, kQueries, keys + j, kStrip, queries, kQueries, p.head_dim);
        }
      }
    }
  }
}

// Which lanes of queries i .. i+W-1 of the panel see key j of the strip: all bits or none.
template <int W>
CAIRN_INLINE simd::Int<W> lanes_seen(const AttentionProblem& p, const AttentionTask& t, const BlockPanel& panel, const Strip& strip,
                                     int64_t j, int64_t i) {
  using namespace simd;
  const int64_t key = strip.key + j;
  const bool none = key >= p.k_len || !panel.sees(strip, i);
  const int64_t first = none ? W : std::clamp<int64_t>(key - p.shift - panel.query - i, 0, W);
  const int32_t document = p.key_documents == nullptr || none ? panel.documents[0] : p.key_documents[t.batch * p.k_len + key];
  Int<W> documents;  // without documents all lanes have the same
  std::memcpy(&documents, panel.documents.data() + i, sizeof documents);
  return (lane_indices<W>() >= static_cast<int32_t>(first)) & (documents == document);
}

// Packs the blocks of keys and values that are visited: strips of k^T, rows of v or of k, strips of v^T. Null where not wanted.
struct PackedKeys {
  float *key_strips = nullptr, *value_rows = nullptr, *key_rows = nullptr, *value_strips = nullptr;
};
template <int W>
CAIRN_INLINE void pack_keys(const AttentionProblem& p, const AttentionTask& t, const std::vector<uint8_t>& visited, int64_t width,
                            const PackedKeys& to) {
  for (int64_t key = t.key_begin; key < t.key_end; key += kStrip) {
    if (visited[static_cast<size_t>(key / p.pattern->block)] == 0) continue;
    const int64_t count = std::min<int64_t>(kStrip, t.key_end - key), at = key - t.key_begin;
    const float *k = p.k.at(t.batch, key, t.kv_head), *v = p.v.at(t.batch, key, t.kv_head);
    pack_transposed<W, kStrip>(to.key_strips + at * p.head_dim, k, p.k.row_stride, count, p.head_dim, 1);
    if (to.value_rows) pack_rows(to.value_rows + at * width, v, p.v.row_stride, count, kStrip, p.head_dim, width);
    if (to.key_rows) pack_rows(to.key_rows + at * width, k, p.k.row_stride, count, kStrip, p.head_dim, width);
    if (to.value_strips) pack_transposed<W, kStrip>(to.value_strips + at * p.head_dim, v, p.v.row_stride, count, p.head_dim, 1);
  }
}

}  // namespace cairn::kernels

#pragma GCC diagnostic pop
