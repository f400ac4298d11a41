#include <algorithm>
#include <filesystem>
#include <set>

#include "proofs/s3t_parts.h"

namespace cairn::study {

namespace fs = std::filesystem;
using unlearn::Artifact;
using unlearn::Order;
using unlearn::Store;

std::vector<std::string> live_names(const Store& store) {
  const unlearn::Served served = unlearn::served_by(store);
  std::set<std::string> names;
  for (const unlearn::LiveShard& shard : served.shards)
    for (const unlearn::LiveOrder& order : shard.orders)
      for (const Artifact& one : order.chain) names.insert(to_text(one.name));
  return {names.begin(), names.end()};
}

std::vector<std::string> served_names(const Store& store) {
  const unlearn::Served served = unlearn::served_by(store);
  std::vector<std::string> names;
  for (int64_t shard = 0; shard < store.spec().shards; ++shard)
    for (const Artifact& one : served.chain(shard)) names.push_back(to_text(one.name));
  return names;
}

int64_t differing(const Store& a, const Store& b, const std::vector<std::string>& names) {
  int64_t different = 0;
  for (const std::string& name : names)
    different += !fs::exists(b.artifact(name)) || bytes_of_artifact(a, name) != bytes_of_artifact(b, name) ? 1 : 0;
  return different;
}

std::vector<std::vector<Artifact>> chains_after(const Store& store, const std::map<std::string, Artifact>& artifacts,
                                                const unlearn::DeletedCounts& hits, int64_t budget) {
  unlearn::StoreSpec spec = store.spec();
  for (std::vector<Order>& orders : spec.orders)
    orders.resize(static_cast<size_t>(std::min<int64_t>(budget, static_cast<int64_t>(orders.size()))));
  const unlearn::Served served{.deletions = 0, .shards = unlearn::live_shards(spec, hits, artifacts)};
  std::vector<std::vector<Artifact>> chains;
  for (int64_t shard = 0; shard < spec.shards; ++shard) chains.push_back(served.chain(shard));
  return chains;
}

bool anyone_answers(const std::vector<std::vector<Artifact>>& chains) {
  return std::ranges::any_of(chains, [](const auto& chain) { return !chain.empty(); });
}

DeletionStream::DeletionStream(const Store& store, const base::Random& random)
    : partition_(store.spec().partition()),
      random_(random),
      hits_(static_cast<size_t>(store.spec().shards), std::vector<int64_t>(static_cast<size_t>(store.spec().slices), 0)) {}

void DeletionStream::take() {
  const unlearn::Place place =
      partition_.place_of(static_cast<int64_t>(random_.below(drawn_++, static_cast<uint64_t>(partition_.records()))));
  ++hits_[static_cast<size_t>(place.shard)][static_cast<size_t>(place.slice)];
}

}  // namespace cairn::study
