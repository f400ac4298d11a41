// A store: records cut into slices, the adapters that stages have trained on them, and the log of deletions.
//
//   store.json        what was decided when the store was made; never changed
//   recipe.toml       how stages are trained; unlearning.toml: the keys of the service itself
//   tombstones.log    deleted records (tombstones.h)
//   slices/           the records of each slice (records.h)
//   artifacts/        what stages have trained (artifact.h)
//   work/             of a stage that is being trained
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "unlearn/options.h"
#include "unlearn/orders.h"
#include "unlearn/partition.h"

namespace cairn::unlearn {

// What was decided when the store was made.
struct StoreSpec {
  Method method = Method::s3t;
  StageData data = StageData::cumulative;
  Aggregate aggregate = Aggregate::mean_log_prob;
  Prefix prefix = Prefix::longest;
  int64_t shards = 1, slices = 1, records = 0, partition_seed = 0, seed = 0;
  std::vector<std::vector<Order>> orders;    // of each shard
  std::vector<std::vector<int64_t>> layers;  // of each stage: those with adapters, the last one first
  std::string base;                          // the directory of the frozen model
  uint64_t base_checksum = 0;                // of its tensors
  std::string digest;                        // of the data that the store was made from
  bool operator==(const StoreSpec&) const = default;

  Partition partition() const { return {records, shards, slices, static_cast<uint64_t>(partition_seed)}; }
};

// Whether a folder holds a store.
bool is_store(const std::filesystem::path& folder);

// An open store. Reads what is on disk when it is asked, so that one object sees what another process has deleted.
class Store {
 public:
  // Refuses a folder without a store, and a damaged one.
  explicit Store(std::filesystem::path folder);
  // Makes the store complete or not at all: store.json is written last.
  static Store make(const std::filesystem::path& folder, const StoreSpec& spec, const std::string& recipe, const std::string& options);

  const std::filesystem::path& folder() const { return folder_; }
  const StoreSpec& spec() const { return spec_; }
  std::string recipe() const;   // TOML
  std::string options() const;  // TOML

  std::filesystem::path tombstones() const { return folder_ / "tombstones.log"; }
  std::filesystem::path slice_file(Place place) const;
  std::filesystem::path artifact(const std::string& name) const { return folder_ / "artifacts" / name; }
  std::filesystem::path work() const { return folder_ / "work"; }

  std::vector<int64_t> deleted() const;                        // records, none twice
  std::vector<std::vector<int64_t>> deleted_by_slice() const;  // [shard][slice]: how many
  std::vector<std::string> artifact_names() const;             // all that are there, sorted

 private:
  std::filesystem::path folder_;
  StoreSpec spec_;
};

}  // namespace cairn::unlearn
