#include "train/steps/one_byte_history.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "model/model.h"
#include "sync/one_byte/bytes_on_all_ranks.h"
#include "train/job.h"
#include "train/state/full_state.h"

namespace cairn::train {

OneByteHistory::OneByteHistory(Parts parts) : parts_(std::move(parts)), rounds_(at::full({1}, -1, at::kLong)) {}

bool OneByteHistory::is_first() const { return parts_.job.engine.step_group->rank() == 0; }

int64_t OneByteHistory::rounds() const { return rounds_.item<int64_t>(); }

// Full tensors are hashed on the first rank, so the hash is the same in every layout.
uint64_t OneByteHistory::hash_of(bool only_trained) const {
  const Job& job = parts_.job;
  job.engine.store->wait_for_gathers();
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const StateTensor& one : parameter_state(job)) {
    if (only_trained && !parts_.replica.model().trained[one.parameter]) continue;
    const bool gathered = !job.assembly->trivial();
    const at::Tensor whole = gathered ? job.assembly->gather(one.parameter, one.mine, one.name) : one.mine;
    if (is_first()) hashes.emplace_back(one.name, sync::hash_of_tensor(whole));
  }
  uint64_t hash = sync::hash_of_parameters(hashes);
  if (job.engine.step_group->size() > 1)
    job.engine.step_group->broadcast({&hash, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "hash of the weights"}).wait_host();
  return hash;
}

uint64_t OneByteHistory::trained_hash() const { return hash_of(/*only_trained=*/true); }

sync::RoundLogHeader OneByteHistory::header() const {
  const sync::OneByteReplica& replica = parts_.replica;
  sync::RoundLogHeader header{.run = replica.run(),
                              .fingerprint = replica.fingerprint(),
                              .first = static_cast<uint32_t>(rounds()),
                              .code = replica.code(),
                              .noise = replica.options().noise,
                              .scale = replica.options().scale,
                              .parameters = parts_.job.config.settings.train.parameters == Precision::bf16 ? "bf16" : "fp32"};
  for (size_t i = 0; i < replica.model().names.size(); ++i)
    if (replica.model().trained[i]) header.trained.push_back(replica.model().names[i]);
  return header;
}

// On the first rank.
void OneByteHistory::open_log(const ResumePoint& from, bool among_islands) {
  const std::string path = parts_.log.string();
  sync::RoundLogHeader mine = header();
  std::optional<sync::RoundLog> found;
  if (from.resume) found = sync::RoundLog::open(parts_.log);
  base::Log& log = parts_.job.engine.step_group->world().log();
  if (found) {
    sync::RoundLogHeader theirs = found->header();
    const bool other_base = rounds() == 0 && origin_ != theirs.base;
    theirs.base = mine.base, theirs.first = mine.first;
    if (theirs != mine || other_base)
      base::fail_input("{}: belongs to a run with {}: resume with the recipe and the base checkpoint of that run, or remove the file", path,
                       other_base ? "another base checkpoint" : "other train.one_byte.*, train.seed, train.parameters or model.train");
    if (found->torn_bytes() > 0) log.warn("{}: the last {} bytes are no whole round, and are left out", path, found->torn_bytes());
    const bool fits = found->header().first <= rounds() && found->next() >= rounds();
    if (!fits) log.warn("{}: has rounds {} to {}, and the snapshot is of round {}", path, found->header().first, found->next(), rounds());
    if (!fits) found.reset();
  }
  if (!found && among_islands && rounds() > 0)
    base::fail_input("{}: the log of the rounds is missing: copy it from another island of this run, or start without --resume", path);
  if (!found) mine.base = origin_, mine.first = static_cast<uint32_t>(rounds());
  const bool read_only = from.step_last != std::numeric_limits<int64_t>::max();
  if (!read_only) {
    log_ = found ? std::move(*found) : sync::RoundLog(parts_.log, mine);
    return;
  }
  log_.emplace(std::filesystem::path(), found ? found->header() : mine);
  if (found) log_->assign(sync::records_before(found->records(), static_cast<uint32_t>(from.step_last), mine.code));
}

void OneByteHistory::begin(const ResumePoint& from, bool among_islands) {
  if (rounds() < 0 || from.steps_done == 0) rounds_.fill_(from.steps_done);
  origin_ = hash_of(/*only_trained=*/false);  // of the weights here; of the base if no round is done
  std::vector<std::byte> lacking;
  if (is_first()) {
    open_log(from, among_islands);
    const auto last = static_cast<uint32_t>(std::min<int64_t>(from.step_last, parts_.job.config.settings.train.steps));
    const auto all = sync::records_before(log_->records(), last, parts_.replica.code());
    const auto done = sync::records_before(all, static_cast<uint32_t>(rounds()), parts_.replica.code());
    lacking.assign(all.begin() + static_cast<std::ptrdiff_t>(done.size()), all.end());
    const std::array<uint64_t, 3> of{log_->header().base, parts_.replica.fingerprint(), log_->header().parameters == "bf16" ? 1u : 0u};
    origin_ = base::checksum(std::as_bytes(std::span(of)));
  }
  comm::Group& group = *parts_.job.engine.step_group;
  if (group.size() > 1) group.broadcast({&origin_, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "base of the run"}).wait_host();
  sync::bytes_on_all_ranks(group, lacking, "rounds since the snapshot");
  const int64_t before = rounds();
  apply(lacking);
  if (is_first() && rounds() > before) group.world().log().info("replayed rounds {} to {} of the log", before + 1, rounds());
}

void OneByteHistory::apply(std::span<const std::byte> records) {
  if (records.empty()) return;
  parallel::ParameterStore& store = *parts_.job.engine.store;
  store.wait_for_gathers();
  for (const sync::RoundRecord& record : sync::decode_records(records, parts_.replica.code())) {
    parts_.replica.apply(record);
    rounds_.fill_(static_cast<int64_t>(record.manifest.round) + 1);
  }
  store.updated();
}

void OneByteHistory::add(const sync::RoundRecord& record) {
  if (log_) log_->append(record);
  parts_.job.engine.store->wait_for_gathers();
  parts_.replica.apply(record);
  parts_.job.engine.store->updated();
  rounds_.fill_(static_cast<int64_t>(record.manifest.round) + 1);
}

std::string OneByteHistory::rebuild() {
  std::vector<std::byte> records;
  int64_t first = 0;
  comm::Group& group = *parts_.job.engine.step_group;
  if (log_) records.assign(log_->records().begin(), log_->records().end()), first = log_->header().first;
  if (group.size() > 1) group.broadcast({&first, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "first round of the log"}).wait_host();
  if (first > 0)
    throw Error(
        Error::Kind::broken_invariant,
        fmt::format("weights differ, and the log of rounds begins after round {}: resume from an earlier snapshot (--resume)", first));
  sync::bytes_on_all_ranks(group, records, "log of rounds");
  const std::vector<uint64_t> before = parts_.replica.tensor_hashes();
  const int64_t rounds_before = rounds();
  parts_.job.engine.store->wait_for_gathers();
  mesh::before_writing_all(parts_.job.engine.trained.barrier);
  parts_.load_start_weights();
  apply(records);
  rounds_.fill_(std::max(rounds_before, rounds()));
  const std::vector<uint64_t> after = parts_.replica.tensor_hashes();
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != after[i]) return parts_.replica.model().names[i];
  return "";
}

// Rounds that this island has in common with `records` stay. After the first that differs everything is replayed from the base.
void OneByteHistory::take(std::span<const std::byte> records) {
  comm::Group& group = *parts_.job.engine.step_group;
  int64_t common = -1;
  if (log_) {
    const std::span<const std::byte> mine = log_->records();
    const bool prefix = mine.size() <= records.size() && std::equal(mine.begin(), mine.end(), records.begin());
    if (prefix) common = static_cast<int64_t>(mine.size());
    log_->assign(records);
  }
  if (group.size() > 1) group.broadcast({&common, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "common rounds"}).wait_host();
  if (common >= 0) return apply(records.subspan(static_cast<size_t>(common)));
  if (is_first()) group.world().log().warn("rounds of this island are not those of the others: all rounds are replayed from the base");
  rounds_.fill_(0);
  (void)rebuild();
}

sync::MessageRounds::History OneByteHistory::for_islands() {
  return {.rounds = [this] { return rounds(); },
          .epoch = [this] { return log_ ? uint64_t{log_->epoch()} : 0; },
          .records =
              [this] { return log_ ? std::vector<std::byte>(log_->records().begin(), log_->records().end()) : std::vector<std::byte>(); },
          .take = [this](std::span<const std::byte> records) { take(records); },
          .origin = origin_};
}

}  // namespace cairn::train
