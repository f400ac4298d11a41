#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::mesh {

// One named axis of a mesh: `island, pp, dp, shard, cp, tp, ep`.
struct Axis {
  std::string name;
  int size = 1;
  bool operator==(const Axis&) const = default;
};

// The coordinate of one rank along one axis, and the size of the axis there.
struct AxisCoordinate {
  std::string axis;
  int coordinate = 0;
  int extent = 1;
  bool operator==(const AxisCoordinate&) const = default;
};

// Ranks arranged along named axes: a device mesh. The outermost axis is listed first; ranks along the innermost axis are consecutive unless
// `ranks` permutes them. An axis that is not listed has size 1. A value: it prints, parses and compares.
//
// Unequal shapes: the coordinates of the last listed axis may hold different meshes. Then `parts` has one mesh per coordinate, with the
// axes inside it. "island=(dp=4,tp=2|dp=2)" is two islands of 8 and 2 ranks. "dp=2,pp=(tp=4|tp=2)" is two pipelines, each with a first
// stage of 4 ranks and a second of 2. Parts may have parts.
struct Mesh {
  std::vector<Axis> axes;
  std::vector<int> ranks;   // rank at each position, row-major over the axes; empty: position i is rank i
  std::vector<Mesh> parts;  // empty: all coordinates are equal; else one for each coordinate of axes.back(), without ranks of their own

  int size() const;
  bool contains(int rank) const;
  std::vector<int> members() const;  // the ranks in the order of their positions

  // The size of an axis. Refuses where parts differ in it; extent_at answers there.
  int extent(std::string_view axis) const;
  // The size of an axis in the part of this rank.
  int extent_at(int rank, std::string_view axis) const;
  // A rank's coordinate along an axis; 0 along an axis that the mesh does not list.
  int coordinate(int rank, std::string_view axis) const;
  // The rank's coordinates on all listed axes, the outermost first.
  std::vector<AxisCoordinate> axis_coordinates(int rank) const;

  // The process group of a rank along an axis (or along several, flattened): the ranks that differ from it only there, in the order of
  // their positions, itself included. Where parts are unequal, a rank without a counterpart elsewhere is alone.
  std::vector<int> peers(int rank, std::string_view axis) const;
  std::vector<int> peers_along(int rank, const std::vector<std::string>& along) const;
  // Every such group once, in the order of the first members.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& along) const;

  bool operator==(const Mesh&) const = default;
};

// The coordinates on some axes, picked from those of a rank; 0 on an axis that is not listed.
std::vector<int> coordinates(const std::vector<AxisCoordinate>& axis_coordinates, const std::vector<std::string>& axes);

// Whether a name is one of the seven axis names.
bool is_axis(std::string_view name);
const std::vector<std::string>& axis_names();

// Refuses unknown or repeated axes, sizes below 1, parts that do not fit, and ranks that are not one per position.
void check(const Mesh& mesh);

// A submesh: the ranks at one coordinate of an axis, as a mesh without that axis (one island, one pipeline stage). Refuses a coordinate
// that some part does not have.
Mesh select(const Mesh& mesh, std::string_view axis, int coordinate);

// The same ranks with several axes merged into one, which takes the name and the place of the first. The last listed axis counts fastest.
// Refuses a mesh with parts.
Mesh flattened(const Mesh& mesh, const std::vector<std::string>& axes);

// "pp=2,dp=4", "island=(dp=4|dp=2)", "dp=4 on [4-7]" and back; the mesh of one rank is "one rank". Refuses what `check` refuses.
Mesh parse_mesh(std::string_view text);
std::string to_string(const Mesh& mesh);

}  // namespace cairn::mesh
