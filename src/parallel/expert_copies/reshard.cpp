#include "parallel/expert_copies/reshard.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace cairn::parallel {
namespace {

// The homes of all layers while they are being chosen.
class HomeSearch {
 public:
  HomeSearch(const NodeOf& nodes, int64_t experts) : nodes_(nodes), free_(nodes.size()) {
    const auto ranks = static_cast<int64_t>(nodes.size());
    for (size_t rank = 0; rank < nodes.size(); ++rank)
      free_[rank] = experts / ranks + (static_cast<int64_t>(rank) < experts % ranks ? 1 : 0);
    free_of_node_.resize(static_cast<size_t>(*std::max_element(nodes.begin(), nodes.end())) + 1, 0);
    for (size_t rank = 0; rank < nodes.size(); ++rank) free_of_node_[static_cast<size_t>(nodes[rank])] += free_[rank];
    begin_layer();
  }

  void begin_layer() {
    load_.assign(nodes_.size(), 0);
    load_of_node_.assign(free_of_node_.size(), 0);
  }

  int least_loaded(int64_t load) {
    size_t node = SIZE_MAX;
    for (size_t i = 0; i < free_of_node_.size(); ++i) {
      if (free_of_node_[i] == 0) continue;
      if (node == SIZE_MAX || std::tie(load_of_node_[i], free_of_node_[i]) < std::tie(load_of_node_[node], free_of_node_[node])) node = i;
    }
    size_t best = SIZE_MAX;
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      if (static_cast<size_t>(nodes_[rank]) != node || free_[rank] == 0) continue;
      if (best == SIZE_MAX || std::tie(load_[rank], free_[rank]) < std::tie(load_[best], free_[best])) best = rank;
    }
    return take(best, load);
  }

  int most_free() { return take(static_cast<size_t>(std::max_element(free_.begin(), free_.end()) - free_.begin()), 0); }

 private:
  int take(size_t rank, int64_t load) {
    CAIRN_CHECK(rank < free_.size() && free_[rank] > 0, "no free slot for an expert");
    const auto node = static_cast<size_t>(nodes_[rank]);
    --free_[rank], --free_of_node_[node];
    load_[rank] += load, load_of_node_[node] += load;
    return static_cast<int>(rank);
  }

  const NodeOf& nodes_;
  std::vector<int64_t> free_, free_of_node_, load_, load_of_node_;
};

}  // namespace

std::vector<mesh::Ragged> reshard(std::span<const mesh::Ragged> layers, std::span<const std::vector<int64_t>> load, const NodeOf& nodes,
                                  int overlap) {
  CAIRN_CHECK(layers.size() == load.size(), "loads of {} layers for {}", load.size(), layers.size());
  std::vector<mesh::Ragged> after(layers.begin(), layers.end());
  std::vector<std::vector<int>> order;  // of each layer, all experts by descending load
  int64_t experts = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    order.push_back(most_loaded(load[layer], static_cast<int>(load[layer].size())));
    CAIRN_CHECK(order.back().size() == layers[layer].owners.size(), "layer {}: loads of {} experts for {}", layer, order.back().size(),
                layers[layer].owners.size());
    experts += static_cast<int64_t>(order.back().size());
  }
  const auto first_of_rest = [&](size_t layer) { return std::min(static_cast<size_t>(std::max(overlap, 0)), order[layer].size()); };
  const auto hottest_of_rest = [&](size_t layer) {
    const size_t first = first_of_rest(layer);
    return first < order[layer].size() ? load[layer][static_cast<size_t>(order[layer][first])] : int64_t{-1};
  };
  std::vector<size_t> by_heat(layers.size());
  std::iota(by_heat.begin(), by_heat.end(), size_t{0});
  std::stable_sort(by_heat.begin(), by_heat.end(), [&](size_t a, size_t b) { return hottest_of_rest(a) > hottest_of_rest(b); });
  HomeSearch search(nodes, experts);
  for (const size_t layer : by_heat) {
    search.begin_layer();
    for (size_t i = first_of_rest(layer); i < order[layer].size(); ++i) {
      const auto expert = static_cast<size_t>(order[layer][i]);
      after[layer].owners[expert] = {search.least_loaded(load[layer][expert])};
    }
  }
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<int> hot(order[layer].begin(), order[layer].begin() + static_cast<std::ptrdiff_t>(first_of_rest(layer)));
    std::sort(hot.begin(), hot.end());
    for (const int expert : hot) after[layer].owners[static_cast<size_t>(expert)] = {search.most_free()};
  }
  return after;
}

int64_t moved_experts(std::span<const mesh::Ragged> before, std::span<const mesh::Ragged> after) {
  int64_t moved = 0;
  for (size_t layer = 0; layer < before.size(); ++layer)
    for (size_t expert = 0; expert < before[layer].owners.size(); ++expert)
      moved += before[layer].owners[expert].front() != after[layer].owners[expert].front() ? 1 : 0;
  return moved;
}

}  // namespace cairn::parallel
