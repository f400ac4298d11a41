#include "unlearn/train_stages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "base/stop.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/corpus/file_lock.h"
#include "kernels/aten.h"
#include "unlearn/live.h"
#include "unlearn/store_lock.h"

namespace cairn::unlearn {
namespace {

constexpr size_t kStagesMax = 64;

// One order of one shard, in a process that trains its next stage.
struct OrderAt {
  int64_t shard = 0, order = 0;
  auto operator<=>(const OrderAt&) const = default;
};

struct NextStage {
  OrderAt at;
  StageChain chain;
};

// The next stage of an order, where it has one.
std::optional<NextStage> next_stage_of(const LiveOrder& one, OrderAt at, const DeletedCounts& deleted) {
  const size_t length = one.chain.size();
  if (length == one.order.size()) return std::nullopt;
  NextStage next{.at = at, .chain = {}};
  for (size_t stage = 0; stage <= length; ++stage)
    next.chain.push_back(
        live_name(at.shard, Order(one.order.begin(), one.order.begin() + static_cast<std::ptrdiff_t>(stage) + 1), deleted));
  return next;
}

// All next stages: those of the shard that answers worst first.
std::vector<NextStage> missing_stages(const Store& store) {
  const DeletedCounts deleted = store.deleted_by_slice();
  const std::vector<LiveShard> shards = live_shards(store.spec(), deleted, read_artifacts(store));
  std::vector<std::pair<std::tuple<int64_t, int64_t>, NextStage>> found;
  for (size_t s = 0; s < shards.size(); ++s)
    for (size_t o = 0; o < shards[s].orders.size(); ++o) {
      const LiveOrder& one = shards[s].orders[o];
      const OrderAt at{static_cast<int64_t>(s), static_cast<int64_t>(o)};
      if (auto next = next_stage_of(one, at, deleted))
        found.push_back({{shards[s].length, static_cast<int64_t>(one.chain.size())}, std::move(*next)});
    }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NextStage> stages;
  for (auto& [_, next] : found) stages.push_back(std::move(next));
  return stages;
}

// Rank 0's decision on all ranks: the chain, or nothing where all is done.
StageChain agree(comm::World& world, const StageChain& chain) {
  CAIRN_CHECK(chain.size() <= kStagesMax, "an order of {} slices", chain.size());
  std::array<int64_t, 2 + 2 * kStagesMax> message{};
  if (!chain.empty()) {
    message[0] = static_cast<int64_t>(chain.size()), message[1] = chain.back().shard;
    for (size_t i = 0; i < chain.size(); ++i) message[2 + i] = chain.back().slices[i], message[2 + kStagesMax + i] = chain[i].excluded;
  }
  world.everyone()
      .broadcast({message.data(), static_cast<int64_t>(message.size()), comm::Dtype::i64}, 0, {comm::Purpose::control, "next stage"})
      .wait_host();
  StageChain same;
  Order slices;
  for (size_t i = 0; i < static_cast<size_t>(message[0]); ++i) {
    slices.push_back(message[2 + i]);
    same.push_back({.shard = message[1], .slices = slices, .excluded = message[2 + kStagesMax + i]});
  }
  return same;
}

class MissingStages {
 public:
  MissingStages(comm::World& world, const Store& store, const StageSetup& setup, base::Log& log, const base::Stop& stop)
      : world_(world), store_(store), setup_(setup), log_(log), stop_(stop) {}

  TrainedStages run() {
    while (true) {
      std::unique_ptr<data::FileLock> lock;
      const StageChain chain = agree(world_, world_.rank() == 0 ? take_next(lock) : StageChain{});
      if (chain.empty()) break;
      train(chain);
    }
    done_.elsewhere = static_cast<int64_t>(elsewhere_.size());
    done_.without_records = static_cast<int64_t>(empty_.size());
    return done_;
  }

 private:
  struct IsHeld {};

  // The next stage that nobody trains yet; `lock` holds its order.
  StageChain take_next(std::unique_ptr<data::FileLock>& lock) {
    if (stop_.requested()) throw Error(Error::Kind::cancelled, "stopped; start the command again to go on");
    for (const NextStage& next : missing_stages(store_)) {
      if (elsewhere_.contains(next.at) || empty_.contains(next.at)) continue;
      if (records_of_stage(store_, next.chain) == 0) {
        empty_.insert(next.at);
        continue;
      }
      try {
        lock = std::make_unique<data::FileLock>((store_.work() / fmt::format("s{}-order-{}.lock", next.at.shard, next.at.order)).string(),
                                                [](double, const std::string&) { throw IsHeld(); });
      } catch (const IsHeld&) {
        elsewhere_.insert(next.at);
        continue;
      }
      return next.chain;
    }
    return {};
  }

  bool is_stale(const ArtifactName& name) const { return live_name(name.shard, name.slices, store_.deleted_by_slice()) != name; }

  void train(const StageChain& chain) {
    const ArtifactName& own = chain.back();
    TrainedStage stage;
    try {
      stage = train_stage(world_, store_, chain, setup_, stop_);
    } catch (const Error& error) {
      // A deletion removes what a stage reads.
      if (world_.size() > 1 || error.kind() == Error::Kind::cancelled || !is_stale(own)) throw Error(error).with(to_text(own));
      ++done_.discarded;
      return;
    }
    done_.seconds += stage.seconds;
    done_.examples += stage.examples;
    if (world_.rank() != 0) return;
    const StoreLock lock(store_);  // no deletion between the last look at the log and the artifact
    if (is_stale(own)) {
      ++done_.discarded;
      log_.info("{}: a record of it was deleted meanwhile; it is trained again", to_text(own));
      return;
    }
    if (!write_artifact(store_, stage.artifact, stage.tensors, base::real_disk())) return;  // another order with this beginning was faster
    ++done_.stages;
    log_.info("{}: stage {} of {}, {}, loss {:.4f}{}, {:.1f} s", to_text(own), own.slices.size(), store_.spec().slices,
              base::plural(stage.artifact.records, "record"), stage.artifact.loss,
              std::isfinite(stage.artifact.validation) ? fmt::format(", validation {:.4f}", stage.artifact.validation) : "", stage.seconds);
  }

  comm::World& world_;
  const Store& store_;
  const StageSetup& setup_;
  base::Log& log_;
  const base::Stop& stop_;
  std::set<OrderAt> elsewhere_, empty_;
  TrainedStages done_;
};

}  // namespace

TrainedStages train_missing_stages(comm::World& world, const Store& store, const StageSetup& setup, base::Log& log,
                                   const base::Stop& stop) {
  return MissingStages(world, store, setup, log, stop).run();
}

}  // namespace cairn::unlearn
