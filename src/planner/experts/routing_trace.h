#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

namespace cairn::planner {

// Which expert each token went to first, in every layer with experts: int16 [tokens, layers], in NumPy's file format.
struct RoutingTrace {
  int layers = 0;
  std::vector<int16_t> experts;  // [token][layer]

  int64_t tokens() const { return layers > 0 ? static_cast<int64_t>(experts.size()) / layers : 0; }
  int at(int64_t token, int layer) const { return experts[static_cast<size_t>(token * layers + layer)]; }
  bool operator==(const RoutingTrace&) const = default;
};

void save_trace(const std::filesystem::path& path, const RoutingTrace& trace);
// Refuses files of another shape or type.
RoutingTrace load_trace(const std::filesystem::path& path);

// How often a token goes from expert e of one layer to expert f of the next: counts[layer][e * experts + f], layers - 1 matrices.
struct Affinity {
  int layers = 0;
  int experts = 0;
  std::vector<std::vector<int64_t>> counts;

  int64_t at(int layer, int from, int to) const {
    return counts[static_cast<size_t>(layer)][static_cast<size_t>(from) * static_cast<size_t>(experts) + static_cast<size_t>(to)];
  }
  int64_t transitions() const;  // of all tokens
};

// Refuses expert numbers outside [0, experts).
Affinity count_affinity(const RoutingTrace& trace, int experts);

}  // namespace cairn::planner
