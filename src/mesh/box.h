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

// A rectangular part of a logical tensor: one interval per dim. What a rank holds, saves or fetches is a list of boxes. Boxes are ordered
// by where they begin, the first dim counting most.
struct Box {
  std::vector<Interval> dims;
  int64_t elements() const;
  auto operator<=>(const Box&) const = default;
};

// The whole of a tensor of this shape.
Box whole(const std::vector<int64_t>& shape);

// What two boxes share, in the logical tensor's indices; nothing where they do not meet.
std::optional<Box> intersect(const Box& a, const Box& b);

// What of `a` lies outside `b`, as boxes that do not meet.
std::vector<Box> subtract(const Box& a, const Box& b);

bool contains(const Box& outer, const Box& inner);

// The box cut along its longest dim into at most `parts` even parts; fewer where it has not that many indices there.
std::vector<Box> cut(const Box& box, int64_t parts);

// "[0:4, 8:16]", for messages and saved plans.
std::string to_string(const Box& box);

// The even split of [0, size) into `parts`: part `index`. The first (size mod parts) are one longer than the others.
Interval even_part(int64_t size, int64_t parts, int64_t index);

}  // namespace cairn::mesh
