#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"

namespace cairn::kernels {
struct AttentionOptions;
}

namespace cairn::model {

// How a sequence of `length` positions is sharded along cp: pieces[c] are the global intervals of coordinate c, in storage order
// (mesh/splits.h: split_zigzag gives two each; a contiguous or uneven split gives one each, or none).
struct ContextSplit {
  int64_t length = 0;
  std::vector<std::vector<mesh::Interval>> pieces;
  bool operator==(const ContextSplit&) const = default;
};

// Refuses a split with another number of coordinates, or one that does not cover [0, length) exactly once.
void check(const ContextSplit& split, int parts);

// The number of positions of a coordinate.
int64_t held(const ContextSplit& split, int coordinate);

// Positions that are consecutive both in the sequence and in a coordinate's storage, where they begin at row `row`.
struct Segment {
  mesh::Interval positions;
  int64_t row = 0;
  bool operator==(const Segment&) const = default;
};

// The non-empty segments of a coordinate; adjacent pieces are merged.
std::vector<Segment> segments(const ContextSplit& split, int coordinate);

// The keys in [0, length) that some query of `queries` may see by the causal mask and the window; documents may hide more.
mesh::Interval seen_keys(const kernels::AttentionOptions& options, mesh::Interval queries, int64_t length);

// Whether a query of coordinate `reader` may see a key of coordinate `owner`. The keys may be split in another way than the queries.
bool sees(const ContextSplit& split, const kernels::AttentionOptions& options, int reader, int owner);
bool sees(const ContextSplit& queries, const ContextSplit& keys, const kernels::AttentionOptions& options, int reader, int owner);

// The queries in [0, length) that may see some key of `keys`: the counterpart of seen_keys.
mesh::Interval seeing_queries(const kernels::AttentionOptions& options, mesh::Interval keys, int64_t length);

// Pairs of a query and a key that it may see by the causal mask and the window; documents may hide more.
int64_t seen_pairs(const kernels::AttentionOptions& options, mesh::Interval queries, mesh::Interval keys);

// The intersection of two intervals; its length is not positive where they are disjoint.
mesh::Interval overlap(mesh::Interval a, mesh::Interval b);

}  // namespace cairn::model
