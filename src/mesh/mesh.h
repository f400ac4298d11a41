#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::mesh {

// One named direction of a mesh: `island, pp, dp, cp, tp, ep`.
struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

// Ranks arranged along named axes, the outermost first, the innermost neighbours in rank order unless `ranks` permutes
// them. A value: it prints, parses and compares. An axis that is not listed has size 1.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int> ranks;  // rank at each position, row-major over the axes; empty: position i is rank i

  int size() const;
  int extent(std::string_view axis) const;
  // Where a rank stands along an axis; 0 along an axis that is not there.
  int coordinate(int rank, std::string_view axis) const;
  // The ranks that differ from this one along `axis` only, in coordinate order, itself included.
  std::vector<int> peers(int rank, std::string_view axis) const;

  bool operator==(const Mesh&) const = default;
};

// "pp=2,dp=4" and back. Refuses unknown axes, sizes below 1 and repeated names.
Mesh parse_mesh(std::string_view text);
std::string to_string(const Mesh& mesh);

}  // namespace cairn::mesh
