// S3T: deletion of training records from a model by switching layers off, exactly. The baseline is SISA, in the same stores.
#include <algorithm>
#include <cmath>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "proofs/s3t_parts.h"
#include "study/claims.h"
#include "unlearn/audit.h"
#include "unlearn/capacity.h"
#include "unlearn/delete_records.h"
#include "unlearn/orders.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using unlearn::Artifact;
using unlearn::Order;
using unlearn::Store;

// 1. How many deletions it takes until nobody answers.
int64_t requests(int64_t shards, int64_t slices, int64_t budget, const base::Random& stream) {
  const std::vector<std::vector<Order>> orders(static_cast<size_t>(shards), unlearn::cyclic_orders(slices, budget));
  const std::vector<std::vector<bool>> nothing(orders.size(), std::vector<bool>(static_cast<size_t>(slices), false));
  return unlearn::requests_until_dead(orders, nothing, stream);
}

void deletion_rates(const ProofOptions& options, Findings& findings) {
  constexpr uint64_t kTrials = 20000, kTrialsOfMany = 2000;  // single counts scatter most where there are few slices
  const base::Random random = base::Random(options.seed).for_purpose("deletion streams");
  struct Case {
    int64_t shards, slices, budget;
  };
  double farthest = 0;
  for (const Case& one : {Case{5, 4, 1}, Case{5, 4, 2}, Case{5, 4, 4}, Case{5, 6, 1}, Case{5, 6, 6}, Case{20, 50, 1}, Case{20, 50, 6}}) {
    const uint64_t trials = one.shards * one.slices < 100 ? kTrials : kTrialsOfMany;
    double sum = 0;
    for (uint64_t trial = 0; trial < trials; ++trial)
      sum += static_cast<double>(requests(one.shards, one.slices, one.budget, random.for_index(trial)));
    const double mean = sum / static_cast<double>(trials),
                 formula = unlearn::expected_deletions(one.shards, one.slices, one.shards * std::min(one.budget, one.slices));
    farthest = std::max(farthest, std::abs(mean / formula - 1));
  }
  findings.at_most(
      "1. deletions until nobody answers, 7 shapes: largest distance of the mean of 20,000 streams (of 1,000 slices 2,000) from m L H(m "
      "B')",
      0, farthest, 0.03);
  int64_t sooner = 0, later = 0;
  constexpr int64_t kSlices = 4;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    const base::Random stream = random.for_purpose("paired").for_index(trial);
    const int64_t sisa = requests(5, kSlices, 1, stream), s3t = requests(5, kSlices, 4, stream);
    sooner += s3t < sisa ? 1 : 0, later += s3t > sisa ? 1 : 0;
  }
  findings.at_most("1. of 20,000 streams, those in which S3T stops answering before SISA", 0, static_cast<double>(sooner), 0);
  findings.at_least("1. share of streams in which it answers longer (1 - 1/L in the mean)", 0.75,
                    static_cast<double>(later) / static_cast<double>(kTrials), 0.72);
}

std::string adapter_bytes(const Store& store, const std::string& name) {
  constexpr int64_t kBytesMax = int64_t{1} << 30;
  return base::read_file(store.artifact(name) / "adapter.safetensors", kBytesMax);
}

// 2. After a deletion every served artifact is bitwise that of a store that never had the record.
void exactness(const S3tStores& stores, const std::string& method, const Store& whole, int64_t record, Findings& findings) {
  const std::vector<std::string> sets{"unlearning.method=" + method};
  const Store without = stores.trained("without-" + method, sets, {record});
  const std::string of = "2. " + method + ": ";
  // What depends on the record does differ, or the comparison shows nothing.
  const unlearn::Place place = whole.spec().partition().place_of(record);
  int64_t dependent = 0, changed = 0;
  for (const std::string& name : live_names(whole)) {
    unlearn::ArtifactName named = *unlearn::parse_artifact_name(name);
    if (!named.depends_on(place.shard, place.slice)) continue;
    named.excluded = 1;
    ++dependent;
    changed += adapter_bytes(whole, name) != adapter_bytes(without, to_text(named)) ? 1 : 0;
  }
  findings.at_least(of + "of the artifacts that depend on the record, those whose adapter it has changed", static_cast<double>(dependent),
                    static_cast<double>(changed), std::max<double>(1, static_cast<double>(dependent)));
  const Store deleted = stores.copy(whole, "deleted-" + method);
  const std::vector<std::string> before = live_names(deleted);
  unlearn::delete_records(deleted, std::vector<int64_t>{record});
  const std::vector<std::string> after = live_names(deleted);
  findings.at_least(of + "artifacts that a deletion takes", 0, static_cast<double>(before.size() - after.size()), 1);
  findings.at_least(of + "artifacts that are served after it", 0, static_cast<double>(served_names(deleted).size()), 1);
  findings.at_most(of + "of these, and of all that are live, those that differ in a byte from the store without the record", 0,
                   static_cast<double>(differing(deleted, without, after)), 0);
  findings.at_most(of + "what an audit finds wrong", 0, static_cast<double>(unlearn::audit(deleted).trouble.size()), 0);
  stores.train(deleted);  // repair
  findings.at_most(of + "after repair: artifacts of one store that the other does not have, or that differ in a byte", 0,
                   static_cast<double>(differing(deleted, without, live_names(without)) + differing(without, deleted, live_names(deleted))),
                   0);
  cli::LanguageModel one = stores.open(deleted), other = stores.open(without);
  const at::Tensor a = stores.predictions(one), b = stores.predictions(other);
  findings.at_most(of + "largest difference of predictions", 0, (a - b).abs().max().item<double>(), 0);
  cli::LanguageModel all = stores.open(whole);
  findings.at_least(of + "and of those with the record (they must differ)", 0, (stores.predictions(all) - b).abs().max().item<double>(),
                    1e-7);
}

// The trained stores themselves, by what they may serve: deletions until none does.
void capacity_of_stores(const ProofOptions& options, const Store& s3t, const Store& sisa, Findings& findings) {
  constexpr uint64_t kStreams = 6000;
  const auto own = unlearn::read_artifacts(s3t), theirs = unlearn::read_artifacts(sisa);
  const base::Random random = base::Random(options.seed).for_purpose("record streams");
  double sum = 0, sum_sisa = 0;
  int64_t sooner = 0;
  for (uint64_t i = 0; i < kStreams; ++i) {
    DeletionStream stream(s3t, random.for_index(i));
    int64_t count = 0, dead = 0, dead_sisa = 0;
    while (dead == 0) {
      stream.take();
      ++count;
      if (dead_sisa == 0 && !anyone_answers(chains_after(sisa, theirs, stream.hits(), 1))) dead_sisa = count;
      if (!anyone_answers(chains_after(s3t, own, stream.hits(), 4))) dead = count;
    }
    sum += static_cast<double>(dead), sum_sisa += static_cast<double>(dead_sisa);
    sooner += dead_sisa == 0 || dead < dead_sisa ? 1 : 0;
  }
  const double n = kStreams, formula = unlearn::expected_deletions(2, 4, 8);
  findings.at_most("3. the trained store: mean deletions of records until it must be trained again, distance from the formula", formula,
                   std::abs(sum / n / formula - 1), 0.03);
  findings.at_least("3. the same, over SISA's on the same streams", sum_sisa / n, sum / sum_sisa, 1.5);
  findings.at_most("3. of 6,000 streams, those in which SISA would have lasted longer", 0, static_cast<double>(sooner), 0);
}

}  // namespace

void prove_s3t(const ProofOptions& options, Findings& findings, base::Log& log) {
  deletion_rates(options, findings);
  const S3tStores stores(options, log, small_s3t_world(options, log));
  const auto record =
      static_cast<int64_t>(base::Random(options.seed).for_purpose("the record").below(0, static_cast<uint64_t>(stores.records())));
  const Store s3t = stores.trained("s3t", {}), sisa = stores.trained("sisa", {"unlearning.method=sisa"});
  exactness(stores, "s3t", s3t, record, findings);
  exactness(stores, "sisa", sisa, record, findings);
  capacity_of_stores(options, s3t, sisa, findings);
  prove_s3t_retention(options, stores, s3t, sisa, findings, log);
  prove_s3t_downtime(options, stores, s3t, sisa, findings, log);
  prove_s3t_cache(options, stores, findings);
  prove_s3t_crashes(options, stores, s3t, record, findings);
  prove_s3t_layouts(options, stores, findings, log);
}

}  // namespace cairn::study
