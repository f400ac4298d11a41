#include "model/supernet/draw.h"

#include <algorithm>
#include <numeric>

namespace cairn::model {
namespace {

// The width that goes with the `place`-th of `of` depths.
int64_t compound_width(const std::vector<int64_t>& widths, size_t place, size_t of) {
  if (of < 2) return widths.back();
  return widths[place * (widths.size() - 1) / (of - 1)];
}

double mean_share(const std::vector<int64_t>& values) {
  if (values.empty()) return 1;
  const auto sum = static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
  return sum / static_cast<double>(values.size()) / static_cast<double>(*std::ranges::max_element(values));
}

double smallest_share(const std::vector<int64_t>& values) {
  if (values.empty()) return 1;
  return static_cast<double>(*std::ranges::min_element(values)) / static_cast<double>(*std::ranges::max_element(values));
}

}  // namespace

Subnet smallest_subnet(const SubnetChoices& choices, const ElasticShape& shape) {
  Subnet subnet = whole_subnet(shape);
  if (!choices.depth.empty()) subnet.depth.assign(subnet.depth.size(), choices.depth.front());
  for (size_t i = 0; i < subnet.width.size(); ++i) subnet.width[i] = choices.widths[i].front();
  return subnet;
}

Subnet draw_subnet(const SubnetChoices& choices, const ElasticShape& shape, SubnetSampling sampling, const base::Random& random) {
  Subnet subnet = whole_subnet(shape);
  const base::Random depths = random.for_name("depth"), widths = random.for_name("width");
  std::vector<size_t> drawn(subnet.depth.size(), 0);
  for (size_t stage = 0; stage < drawn.size() && !choices.depth.empty(); ++stage) {
    drawn[stage] = depths.below(stage, choices.depth.size());
    subnet.depth[stage] = choices.depth[drawn[stage]];
  }
  for (size_t i = 0; i < subnet.width.size(); ++i) {
    const std::vector<int64_t>& of = choices.widths[i];
    const bool compound = sampling == SubnetSampling::compound && !choices.depth.empty();
    subnet.width[i] = compound ? compound_width(of, drawn[static_cast<size_t>(shape.layers[i].stage)], choices.depth.size())
                               : of[widths.below(shape.one_width ? 0 : i, of.size())];
  }
  return subnet;
}

SubnetShares subnet_shares(const SupernetOptions& options) {
  const std::vector<int64_t>& widths = options.mlp.empty() ? options.expand : options.mlp;
  return {.smallest = smallest_share(options.depth) * smallest_share(widths), .mean = mean_share(options.depth) * mean_share(widths)};
}

}  // namespace cairn::model
