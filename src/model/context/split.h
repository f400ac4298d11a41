#pragma once
#include <cstdint>
#include <vector>

#include "mesh/box.h"

namespace cairn::kernels {
struct AttentionOptions;
}

namespace cairn::model {

// How a sequence of `length` positions is shared out along cp: pieces[c] are the global intervals that coordinate c holds, in storage order
// (mesh/splits.h: split_zigzag gives two each; a contiguous or uneven split one each, or none).
struct ContextSplit {
  int64_t length = 0;
  std::vector<std::vector<mesh::Interval>> pieces;
  bool operator==(const ContextSplit&) const = default;
};

// Refuses a split that is not for so many coordinates, or does not cover [0, length) exactly once.
void check(const ContextSplit& split, int parts);

// How many positions a coordinate holds.
int64_t held(const ContextSplit& split, int coordinate);

// Positions that follow each other both in the sequence and in a coordinate's storage, from storage row `row` on.
struct Segment {
  mesh::Interval positions;
  int64_t row = 0;
  bool operator==(const Segment&) const = default;
};

// What a coordinate holds, pieces that touch as one; none of them empty.
std::vector<Segment> segments(const ContextSplit& split, int coordinate);

// The keys among [0, length) that some query of `queries` may see, as far as the causal mask and the window say; documents may hide more.
mesh::Interval seen_keys(const kernels::AttentionOptions& options, mesh::Interval queries, int64_t length);

// Whether a query of coordinate `reader` may see a key of coordinate `owner`.
bool sees(const ContextSplit& split, const kernels::AttentionOptions& options, int reader, int owner);

// What two intervals share; where they do not meet, its length is not positive.
mesh::Interval overlap(mesh::Interval a, mesh::Interval b);

}  // namespace cairn::model
