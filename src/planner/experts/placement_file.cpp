#include "planner/experts/placement_file.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"

namespace cairn::planner {
namespace {

constexpr std::string_view kPlacementFormat = "cairn expert placement 1";
constexpr int64_t kPlacementBytesMax = 64 << 20;

std::string placement_checksum(const ExpertPlacement& placement) {
  base::Checksum sum;
  for (const std::vector<int>& layer : placement.rank) sum.add(std::as_bytes(std::span(layer)));
  return fmt::format("{:016x}", sum.value());
}

class PlacementReader {
 public:
  PlacementReader(const std::filesystem::path& path, const base::Json& json) : path_(path.string()), json_(json) {}

  [[noreturn]] void damaged(const std::string& wrong) const {
    base::fail_corrupt(path_, wrong + ". Make it again with `cairn experts place`.");
  }
  std::string text(const char* key) const {
    const auto at = json_.find(key);
    if (at == json_.end() || !at->is_string()) damaged(fmt::format("has no text \"{}\"", key));
    return at->get<std::string>();
  }
  int number(const char* key) const {
    const auto at = json_.find(key);
    if (at == json_.end() || !at->is_number_integer() || at->get<int64_t>() < 1 || at->get<int64_t>() > 1 << 20)
      damaged(fmt::format("has no number \"{}\"", key));
    return at->get<int>();
  }
  void same(const char* key, const std::string& here, const std::string& wanted) const {
    if (here != wanted)
      base::fail_input("{}: is a placement for {} {}, this run has {}. Make one for it with `cairn experts place`.", path_, key, here,
                       wanted);
  }
  std::vector<int> layer(size_t index, int experts, int ranks) const {
    const base::Json& row = json_["placement"][index];
    if (!row.is_array() || row.size() != static_cast<size_t>(experts))
      damaged(fmt::format("does not place {} experts in layer {}", experts, index));
    std::vector<int> layer, held(static_cast<size_t>(ranks), 0);
    for (const base::Json& rank : row) {
      if (!rank.is_number_integer() || rank.get<int64_t>() < 0 || rank.get<int64_t>() >= ranks)
        damaged(fmt::format("names rank {} of {} in layer {}", base::shown(rank), ranks, index));
      layer.push_back(rank.get<int>());
      held[static_cast<size_t>(layer.back())] += 1;
    }
    if (std::any_of(held.begin(), held.end(), [&](int count) { return count * ranks != experts; }))
      damaged(fmt::format("is not balanced in layer {}", index));
    return layer;
  }

 private:
  std::string path_;
  const base::Json& json_;
};

}  // namespace

void save_placement(const std::filesystem::path& path, const ExpertPlacement& placement, const PlacementTarget& target) {
  CAIRN_CHECK(placement.layers() == target.layers && placement.experts() == target.experts && placement.ranks == target.ranks,
              "a placement of {} layers, {} experts, {} ranks", placement.layers(), placement.experts(), placement.ranks);
  base::OrderedJson json;
  json["format"] = kPlacementFormat;
  json["model"] = target.model;
  json["mesh"] = target.mesh;
  json["layers"] = target.layers;
  json["experts"] = target.experts;
  json["ranks"] = target.ranks;
  json["placement"] = placement.rank;
  json["checksum"] = placement_checksum(placement);
  base::write_atomically(path, base::compact(json) + "\n");
}

ExpertPlacement load_placement(const std::filesystem::path& path, const PlacementTarget& target) {
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kPlacementBytesMax), 8);
  if (!parsed.trouble.empty()) base::fail_corrupt(path.string(), parsed.trouble);
  const PlacementReader file(path, parsed.value);
  if (!parsed.value.is_object() || file.text("format") != kPlacementFormat) file.damaged("is no placement of experts");
  file.same("model", file.text("model"), target.model);
  file.same("mesh", file.text("mesh"), target.mesh);
  ExpertPlacement placement{file.number("ranks"), {}};
  const int layers = file.number("layers"), experts = file.number("experts");
  file.same("layers", std::to_string(layers), std::to_string(target.layers));
  file.same("experts", std::to_string(experts), std::to_string(target.experts));
  file.same("ranks", std::to_string(placement.ranks), std::to_string(target.ranks));
  const auto rows = parsed.value.find("placement");
  if (rows == parsed.value.end() || !rows->is_array() || rows->size() != static_cast<size_t>(layers))
    file.damaged(fmt::format("does not place experts in {} layers", layers));
  for (size_t layer = 0; layer < static_cast<size_t>(layers); ++layer)
    placement.rank.push_back(file.layer(layer, experts, placement.ranks));
  if (file.text("checksum") != placement_checksum(placement)) file.damaged("its checksum does not match");
  return placement;
}

}  // namespace cairn::planner
