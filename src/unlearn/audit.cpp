#include "unlearn/audit.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "base/text.h"
#include "unlearn/capacity.h"
#include "unlearn/make_store.h"
#include "unlearn/records.h"

namespace cairn::unlearn {
namespace {

// The records that a stage and those before it have read, as the partition and the log say. None of them may be deleted.
int64_t check_dependencies(const Store& store, const Artifact& artifact, const std::set<int64_t>& deleted,
                           std::vector<std::string>& trouble) {
  const Partition partition = store.spec().partition();
  int64_t read = 0, lost = 0;
  for (const int64_t slice : artifact.name.slices)
    for (const int64_t record : partition.records_in({artifact.name.shard, slice})) deleted.contains(record) ? ++lost : ++read;
  if (lost != artifact.name.excluded)
    trouble.push_back(fmt::format("{}: trained without {}, and its slices have lost {}", to_text(artifact.name),
                                  base::plural(artifact.name.excluded, "record"), lost));
  return read;
}

}  // namespace

Audit audit(const Store& store) {
  const StoreSpec& spec = store.spec();
  const std::vector<int64_t> log = store.deleted();
  const std::set<int64_t> deleted(log.begin(), log.end());
  const Served served = served_by(store);
  Audit found{.records = spec.records, .deleted = static_cast<int64_t>(deleted.size())};
  for (int64_t shard = 0; shard < spec.shards; ++shard) {
    std::vector<int64_t>& lengths = found.live_lengths.emplace_back();
    for (const LiveOrder& order : served.shards[static_cast<size_t>(shard)].orders)
      lengths.push_back(static_cast<int64_t>(order.chain.size()));
    std::vector<AuditedArtifact>& chain = found.served.emplace_back();
    for (const Artifact& artifact : served.chain(shard)) {
      AuditedArtifact one{.name = to_text(artifact.name), .depends_on = {}};
      for (const int64_t slice : artifact.name.slices) one.depends_on.push_back({shard, slice});
      one.records = check_dependencies(store, artifact, deleted, found.trouble);
      chain.push_back(std::move(one));
    }
  }
  for (const auto& [name, artifact] : read_artifacts(store)) try {
      (void)read_adapter_tensors(store, artifact);
    } catch (const Error& error) {
      found.trouble.emplace_back(error.what());
    }
  if (const FrozenModel base = frozen_model(spec.base); base.checksum != spec.base_checksum)
    found.trouble.push_back(fmt::format("{}: its tensors are not those that the store was made with", spec.base));
  const Purged left = leftovers(store);
  if (left != Purged{})
    found.trouble.push_back(
        fmt::format("a deletion has not ended: {}, {} and {} of unfinished stages are still on the disk (not served). "
                    "`cairn unlearn repair {}` removes them.",
                    base::plural(left.records, "record"), base::plural(left.artifacts, "artifact"), base::plural(left.copies, "folder"),
                    store.folder().string()));
  return found;
}

std::string to_text(const Audit& audit) {
  std::string text = fmt::format("{}, {} deleted\n", base::plural(audit.records, "record"), audit.deleted);
  for (size_t shard = 0; shard < audit.served.size(); ++shard) {
    text += fmt::format("shard {}: live stages of its orders: {}\n", shard, fmt::join(audit.live_lengths[shard], ", "));
    if (audit.served[shard].empty()) text += "  abstains: no order is live\n";
    for (const AuditedArtifact& one : audit.served[shard]) {
      std::vector<std::string> slices;
      for (const Place& place : one.depends_on) slices.push_back(fmt::format("{}", place.slice));
      text += fmt::format("  {:<20} depends on slices {} of shard {}: {}, none deleted\n", one.name, fmt::join(slices, ", "), shard,
                          base::plural(one.records, "record"));
    }
  }
  for (const std::string& one : audit.trouble) text += "TROUBLE " + one + "\n";
  return text + (audit.trouble.empty() ? "nothing that is served has read a deleted record, and no file holds one" : "NOT clean");
}

std::string to_json(const Audit& audit) {
  base::OrderedJson shards = base::OrderedJson::array();
  for (size_t shard = 0; shard < audit.served.size(); ++shard) {
    base::OrderedJson chain = base::OrderedJson::array();
    for (const AuditedArtifact& one : audit.served[shard]) {
      base::OrderedJson slices = base::OrderedJson::array();
      for (const Place& place : one.depends_on) slices.push_back(place.slice);
      chain.push_back({{"name", one.name}, {"slices", slices}, {"records", one.records}});
    }
    shards.push_back({{"shard", shard}, {"live", audit.live_lengths[shard]}, {"served", chain}});
  }
  return base::compact(base::OrderedJson{{"records", audit.records},
                                         {"deleted", audit.deleted},
                                         {"shards", shards},
                                         {"trouble", audit.trouble},
                                         {"clean", audit.trouble.empty()}});
}

CapacityReport capacity_of(const Store& store, uint64_t seed, int64_t trials) {
  const StoreSpec& spec = store.spec();
  const Served served = served_by(store);
  CapacityReport report{.shards = spec.shards, .slices = spec.slices, .answering = served.answering()};
  // Trials begin with the orders that are live now, and none of their slices hit.
  std::vector<std::vector<Order>> live;
  std::set<std::pair<int64_t, int64_t>> firsts, made;
  for (int64_t shard = 0; shard < spec.shards; ++shard) {
    std::vector<Order>& orders = live.emplace_back();
    for (const LiveOrder& one : served.shards[static_cast<size_t>(shard)].orders) {
      made.insert({shard, one.order.front()});
      if (one.chain.empty()) continue;
      orders.push_back(one.order);
      firsts.insert({shard, one.order.front()});
    }
  }
  report.first_slices = static_cast<int64_t>(firsts.size());
  report.expected = expected_deletions(spec.shards, spec.slices, report.first_slices);
  report.expected_new = expected_deletions(spec.shards, spec.slices, static_cast<int64_t>(made.size()));
  report.expected_sisa = expected_deletions(spec.shards, spec.slices, spec.shards);
  if (report.first_slices == 0) return report;
  std::vector<std::vector<Order>> left;
  for (std::vector<Order>& orders : live)
    if (!orders.empty()) left.push_back(std::move(orders));
  // Shards that abstain are asked all the same; requests_until_dead draws over those that are left, so its count is scaled.
  const double scale = static_cast<double>(spec.shards) / static_cast<double>(left.size());
  const std::vector<std::vector<bool>> nothing(left.size(), std::vector<bool>(static_cast<size_t>(spec.slices), false));
  const base::Random random = base::Random(seed).for_purpose("capacity");
  for (int64_t trial = 0; trial < trials; ++trial)
    report.simulated += scale * static_cast<double>(requests_until_dead(left, nothing, random.for_index(static_cast<uint64_t>(trial)))) /
                        static_cast<double>(trials);
  return report;
}

std::string to_text(const CapacityReport& r) {
  return fmt::format(
      "{} of {} shards answer, with {} that all have to lose a record before none does\n"
      "deletions until then, if each falls into one of {} slices at random: {:.1f} expected ({:.1f} simulated)\n"
      "of a new store: {:.1f}; of SISA without retraining: {:.1f}",
      r.answering, r.shards, base::plural(r.first_slices, "first slice"), r.shards * r.slices, r.expected, r.simulated, r.expected_new,
      r.expected_sisa);
}

}  // namespace cairn::unlearn
