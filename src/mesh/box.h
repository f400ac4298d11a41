#pragma once
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cairn::mesh {

// A half-open range of indices along one dim.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
  auto operator<=>(const Interval&) const = default;
};

// A rectangular part of a logical (whole) tensor: one interval per dim. What a rank holds, saves or fetches is a list of boxes. Boxes are
// ordered by where they begin; the first dim counts most.
struct Box {
  std::vector<Interval> dims;
  int64_t elements() const;
  auto operator<=>(const Box&) const = default;
};

// The box that covers a tensor of this shape.
Box whole(const std::vector<int64_t>& shape);

// The common part of two boxes; nothing where they do not overlap.
std::optional<Box> intersect(const Box& a, const Box& b);

// The part of `a` outside `b`, as disjoint boxes.
std::vector<Box> subtract(const Box& a, const Box& b);

bool contains(const Box& outer, const Box& inner);

// Cuts a box along its longest dim into `parts` even parts; into fewer where that dim has fewer indices.
std::vector<Box> cut(const Box& box, int64_t parts);

// "[0:4, 8:16]".
std::string to_string(const Box& box);

// Part `index` of the even split of [0, size) into `parts`. The first (size mod parts) parts are one longer than the others.
Interval even_part(int64_t size, int64_t parts, int64_t index);

}  // namespace cairn::mesh
