#include "planner/experts/routing_trace.h"

#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>

#include "base/check.h"
#include "data/npy.h"

namespace cairn::planner {

void save_trace(const std::filesystem::path& path, const RoutingTrace& trace) {
  if (trace.tokens() < 1) base::fail_input("{}: a routing trace without tokens. Record at least one.", path.string());
  const std::array<int64_t, 2> extents{trace.tokens(), trace.layers};
  data::write_npy(path, "<i2", extents, std::as_bytes(std::span(trace.experts)));
}

RoutingTrace load_trace(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 1> kTypes{"<i2"};
  const data::NpyArray array = data::open_npy(path.string(), kTypes, "A routing trace is int16 [tokens, layers].");
  if (array.extents.size() != 2)
    base::fail_input("{}: has {} dims. A routing trace is int16 [tokens, layers].", path.string(), array.extents.size());
  if (array.extents[1] > 4096) base::fail_input("{}: has {} layers, more than 4096", path.string(), array.extents[1]);
  RoutingTrace trace{static_cast<int>(array.extents[1]), std::vector<int16_t>(array.values.size() / sizeof(int16_t))};
  std::memcpy(trace.experts.data(), array.values.data(), array.values.size());
  return trace;
}

int64_t Affinity::transitions() const {
  int64_t sum = 0;
  for (const std::vector<int64_t>& layer : counts) sum = std::accumulate(layer.begin(), layer.end(), sum);
  return sum;
}

Affinity count_affinity(const RoutingTrace& trace, int experts) {
  if (experts < 1 || experts > INT16_MAX) base::fail_input("a routing trace of {} experts: must be 1 to {}", experts, INT16_MAX);
  const auto n = static_cast<size_t>(experts);
  Affinity affinity{trace.layers, experts, {}};
  affinity.counts.assign(static_cast<size_t>(std::max(trace.layers - 1, 0)), std::vector<int64_t>(n * n, 0));
  for (int64_t token = 0; token < trace.tokens(); ++token) {
    for (int layer = 0; layer < trace.layers; ++layer) {
      const int here = trace.at(token, layer);
      if (here < 0 || here >= experts)
        base::fail_input("the routing trace sends token {} to expert {} of {} in layer {}: it is of another model", token, here, experts,
                         layer);
      if (layer + 1 == trace.layers) continue;
      const int next = trace.at(token, layer + 1);
      if (next >= 0 && next < experts)
        affinity.counts[static_cast<size_t>(layer)][static_cast<size_t>(here) * n + static_cast<size_t>(next)] += 1;
    }
  }
  return affinity;
}

}  // namespace cairn::planner
