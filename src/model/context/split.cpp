#include "model/context/split.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/attention.h"

namespace cairn::model {
namespace {

// sum of min(max(x, 0), most) for x in [begin, end)
int64_t clamped_sum(int64_t begin, int64_t end, int64_t most) {
  const int64_t a = std::max<int64_t>(begin, 0), b = std::max(a, std::min(end, most));  // where x counts as it is
  const int64_t full = std::max<int64_t>(0, end - std::max(begin, most));               // where it counts as `most`
  return (a + b - 1) * (b - a) / 2 + full * most;
}

}  // namespace

void check(const ContextSplit& split, int parts) {
  if (static_cast<int>(split.pieces.size()) != parts)
    base::fail_input("a context split for {} ranks among {}: give each rank along cp its pieces", split.pieces.size(), parts);
  std::vector<mesh::Interval> all;
  for (const std::vector<mesh::Interval>& pieces : split.pieces)
    for (const mesh::Interval& piece : pieces) {
      if (piece.length() < 0)
        base::fail_input("a context split with the piece [{}:{}]: the end lies before the begin", piece.begin, piece.end);
      if (piece.length() > 0) all.push_back(piece);
    }
  std::sort(all.begin(), all.end());
  int64_t reached = 0;
  for (const mesh::Interval& piece : all) {
    if (piece.begin != reached)
      base::fail_input(
          "a context split of {} positions: a piece begins at {} where the pieces before it end at {}; each position belongs to one rank",
          split.length, piece.begin, reached);
    reached = piece.end;
  }
  if (reached != split.length) base::fail_input("a context split of {} positions whose pieces end at {}", split.length, reached);
}

int64_t held(const ContextSplit& split, int coordinate) {
  int64_t count = 0;
  for (const mesh::Interval& piece : split.pieces[static_cast<size_t>(coordinate)]) count += piece.length();
  return count;
}

std::vector<Segment> segments(const ContextSplit& split, int coordinate) {
  std::vector<Segment> found;
  int64_t row = 0;
  for (const mesh::Interval& piece : split.pieces[static_cast<size_t>(coordinate)]) {
    if (piece.length() == 0) continue;
    if (!found.empty() && found.back().positions.end == piece.begin)
      found.back().positions.end = piece.end;
    else
      found.push_back({piece, row});
    row += piece.length();
  }
  return found;
}

mesh::Interval seen_keys(const kernels::AttentionOptions& options, mesh::Interval queries, int64_t length) {
  const int64_t begin = options.window > 0 ? std::max<int64_t>(0, queries.begin - options.window + 1) : 0;
  return {begin, options.causal ? std::min(length, queries.end) : length};
}

bool sees(const ContextSplit& split, const kernels::AttentionOptions& options, int reader, int owner) {
  return sees(split, split, options, reader, owner);
}

bool sees(const ContextSplit& queries, const ContextSplit& keys, const kernels::AttentionOptions& options, int reader, int owner) {
  const std::vector<Segment> there = segments(keys, owner);
  for (const Segment& here : segments(queries, reader)) {
    const mesh::Interval seen = seen_keys(options, here.positions, queries.length);
    if (std::any_of(there.begin(), there.end(), [&](const Segment& key) { return overlap(seen, key.positions).length() > 0; })) return true;
  }
  return false;
}

mesh::Interval seeing_queries(const kernels::AttentionOptions& options, mesh::Interval keys, int64_t length) {
  if (keys.length() <= 0) return {0, 0};
  return {options.causal ? keys.begin : 0, options.window > 0 ? std::min(length, keys.end + options.window - 1) : length};
}

int64_t seen_pairs(const kernels::AttentionOptions& options, mesh::Interval queries, mesh::Interval keys) {
  const int64_t n = keys.length();
  if (n <= 0 || queries.length() <= 0) return 0;
  const int64_t upto = options.causal ? clamped_sum(queries.begin + 1 - keys.begin, queries.end + 1 - keys.begin, n) : n * queries.length();
  if (options.window <= 0) return upto;
  const int64_t shift = keys.begin + options.window - 1;  // key j is out of sight where j <= q - window
  return upto - clamped_sum(queries.begin - shift, queries.end - shift, n);
}

mesh::Interval overlap(mesh::Interval a, mesh::Interval b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace cairn::model
