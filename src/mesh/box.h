#pragma once
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
  bool operator==(const Interval&) const = default;
};

// A rectangular part of a logical tensor: one interval per dim. What a rank holds, saves or fetches is a list of boxes.
struct Box {
  std::vector<Interval> dims;
  int64_t elements() const;
  bool operator==(const Box&) const = default;
};

// The whole of a tensor of this shape.
Box whole(const std::vector<int64_t>& shape);

// What two boxes share, in the logical tensor's indices; nothing where they do not meet.
std::optional<Box> intersect(const Box& a, const Box& b);

// "[0:4, 8:16]", for messages and saved plans.
std::string to_string(const Box& box);

}  // namespace cairn::mesh
