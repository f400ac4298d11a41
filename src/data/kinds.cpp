#include "data/kinds.h"

#include <algorithm>

#include "base/did_you_mean.h"

namespace cairn::data {
namespace {

const std::vector<DataNeeds>& kinds() {
  static const std::vector<DataNeeds> list{
      {.name = "text", .tokens = true, .built_in = "the built-in stories"},
      {.name = "preference", .tokens = true, .pairs = true, .records = "\"chosen\" and \"rejected\""},
      {.name = "rollouts", .tokens = true, .rollouts = true, .records = "\"tokens\", \"prompt\" and \"advantage\""},
      {.name = "retrieval", .tokens = true, .retrieval = true, .records = "queries, passages and pairs of them"},
      {.name = "spirals", .features = 2, .classes = 3, .built_in = "the built-in spirals"},
      {.name = "clips", .clips = true, .built_in = "the generated clips"},
      {.name = "images", .images = true, .built_in = "the generated textures"},
      {.name = "table", .table = true, .records = "one row for each sample"},
  };
  return list;
}

}  // namespace

const DataNeeds& data_needs(const std::string& kind) {
  const auto found = std::find_if(kinds().begin(), kinds().end(), [&](const DataNeeds& one) { return one.name == kind; });
  if (found == kinds().end()) base::fail_unknown("data.kind", kind, data_kinds());
  return *found;
}

std::vector<std::string> data_kinds() {
  std::vector<std::string> names;
  for (const DataNeeds& one : kinds()) names.push_back(one.name);
  return names;
}

}  // namespace cairn::data
