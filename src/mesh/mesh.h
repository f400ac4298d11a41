#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::mesh {

// One named direction of a mesh: `island, pp, dp, shard, cp, tp, ep`.
struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

// Where one rank stands along one axis, and how many stand there with it.
struct AxisCoordinate {
  std::string axis;
  int coordinate = 0;
  int extent = 1;
  bool operator==(const AxisCoordinate&) const = default;
};

// Ranks arranged along named axes, the outermost first, the innermost neighbours in rank order unless `ranks` permutes them. A value: it
// prints, parses and compares. An axis that is not listed has size 1.
//
// Unequal extents: where the coordinates of the last listed axis hold meshes of different shapes, `parts` has one mesh for each of them
// with the axes inside it. "island=(dp=4,tp=2|dp=2)" is two islands of 8 and 2 ranks; "dp=2,pp=(tp=4|tp=2)" is two pipelines, each with a
// first stage of 4 ranks and a second of 2. Parts may have parts.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int> ranks;   // rank at each position, row-major over the axes; empty: position i is rank i
  std::vector<Mesh> parts;  // empty: every coordinate is alike; else one for each coordinate of axes.back(), without ranks of their own

  int size() const;
  bool contains(int rank) const;
  std::vector<int> members() const;  // the ranks in the order of their positions

  // The size of an axis; refuses where parts differ in it (ask `extent_at` then).
  int extent(std::string_view axis) const;
  // The size of an axis where this rank stands.
  int extent_at(int rank, std::string_view axis) const;
  // Where a rank stands along an axis; 0 along an axis that is not there.
  int coordinate(int rank, std::string_view axis) const;
  // The rank's place on every axis that passes through it, the outermost first.
  std::vector<AxisCoordinate> axis_coordinates(int rank) const;

  // The ranks that differ from this one along `axis` only (or along several, flattened), in the order of their positions, itself included.
  // Where parts are unequal, a rank without a counterpart elsewhere is alone.
  std::vector<int> peers(int rank, std::string_view axis) const;
  std::vector<int> peers_along(int rank, const std::vector<std::string>& along) const;
  // Every such set of peers once, in the order of their first members.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& along) const;

  bool operator==(const Mesh&) const = default;
};

// A rank's coordinates on some axes, from its axis_coordinates; 0 on an axis that is not there.
std::vector<int> coordinates(const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<std::string>& axes);

// Whether a name is one of the seven axes.
bool is_axis(std::string_view name);
const std::vector<std::string>& axis_names();

// Refuses unknown or repeated axes, sizes below 1, parts that do not fit, and ranks that are not one per position.
void check(const Mesh& mesh);

// "pp=2,dp=4", "island=(dp=4|dp=2)", "dp=4 on [4-7]" and back; the mesh of one rank is "one rank". Refuses what `check` refuses.
Mesh parse_mesh(std::string_view text);
std::string to_string(const Mesh& mesh);

}  // namespace cairn::mesh
