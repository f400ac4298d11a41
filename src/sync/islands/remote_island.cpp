#include "sync/islands/remote_island.h"

#include <array>
#include <utility>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"
#include "sync/islands/replica_signature.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {

RemoteIsland::FirstRank::FirstRank(const Parts& parts, std::unique_ptr<IslandLink> link)
    : messenger({std::move(link), signature_of(parts.options, parts.replica), max_message_bytes(parts.replica), is_on_gpu(parts.replica)}),
      quorum(messenger, options_of(parts)),
      membership({.messenger = messenger,
                  .quorum = quorum,
                  .log = parts.replica.model_group.world().log(),
                  .founders = parts.replica.remote_islands->founders,
                  .steps = parts.replica.steps,
                  .outer_step = parts.outer_step,
                  .peer_round_steps = parts.peer_round_steps,
                  .founders_limit = parts.replica.remote_islands->founders_limit,
                  .return_limit = quorum_options(parts.options, parts.replica).minority_timeout}) {}

QuorumOptions RemoteIsland::FirstRank::options_of(const Parts& parts) {
  const RemoteIslands& remote = *parts.replica.remote_islands;
  QuorumOptions options = quorum_options(parts.options, parts.replica);
  options.waiting = [this] { membership.ask_whether_removed(); };
  options.founded = false;
  options.decisions.store = remote.log.get();
  options.decisions.votes = false;
  options.decisions.faults = remote.faults;
  // A run that fewer than half of the islands may found is founded with island 0: two halves must not found two runs.
  if (2 * remote.founders <= messenger.size()) options.decisions.first_members = {0};
  return options;
}

RemoteIsland::RemoteIsland(Parts parts)
    : model_group_(parts.replica.model_group),
      full_parameters_(parts.replica.remote_islands->full_parameters),
      stopping_(parts.replica.stopping),
      barrier_(parts.replica.barrier),
      rows_(parts.rows),
      numbers_(parts.numbers) {
  for (const FullParameter& one : parts.replica.model) elements_.push_back(one.elements);
  if (parts.replica.remote_islands->make_link) first_rank_ = std::make_unique<FirstRank>(parts, parts.replica.remote_islands->make_link());
  CAIRN_CHECK((first_rank_ != nullptr) == (model_group_.rank() == 0), "the first rank of an island has its bridge, and no other");
}

IslandExchange::StartPoint RemoteIsland::enter(int64_t steps_done, const IslandExchange::Lineage& lineage, bool again) {
  mesh::before_writing_all(barrier_);  // of the rows, which the state may be a view of
  IslandMembership::State state = gather_state();
  state.epoch = lineage.epoch;
  state.apart = lineage.apart;
  enum Field : size_t { step, replaced, joined, epoch, ending, final, kFields };
  std::array<int64_t, kFields> summary{};
  const auto broadcast_summary = [&] {
    if (model_group_.size() > 1)
      model_group_.broadcast({summary.data(), kFields, comm::Dtype::i64}, 0, {comm::Purpose::control, "where islands start"}).wait();
  };
  if (first_rank_) {
    IslandMembership& membership = first_rank_->membership;
    const auto tick = [&] {
      broadcast_summary();  // the other ranks wait for no more than that
      return !stopping_ || !stopping_();
    };
    const IslandExchange::StartPoint found =
        again ? membership.enter_again(steps_done, state, tick) : membership.enter(steps_done, state, tick);
    summary = {found.step, found.state_replaced, found.joined, static_cast<int64_t>(found.epoch), static_cast<int64_t>(found.ending), 1};
    broadcast_summary();
  }
  while (summary[final] == 0) broadcast_summary();
  for (size_t f = 0; summary[replaced] != 0 && f < rows_.size(); ++f) {
    take_shard(f, broadcast_full(f, first_rank_ ? state.anchors[f] : at::Tensor()), rows_[f].anchor);
    if (rows_[f].momentum.defined()) take_shard(f, broadcast_full(f, first_rank_ ? state.momenta[f] : at::Tensor()), rows_[f].momentum);
  }
  if (summary[replaced] != 0 && numbers_.defined()) {
    if (first_rank_) numbers_.copy_(state.numbers);
    share({numbers_.mutable_data_ptr<double>(), static_cast<size_t>(numbers_.numel())}, "numbers of another island");
  }
  return {summary[step], summary[replaced] != 0, summary[joined] != 0, static_cast<uint64_t>(summary[epoch]),
          static_cast<RoundEnding>(summary[ending])};
}

void RemoteIsland::leave(int64_t step) {
  const IslandMembership::State state = gather_state();
  if (!first_rank_) return;
  first_rank_->membership.leave(step, state, [&] { return !stopping_ || !stopping_(); });
}

void RemoteIsland::send_state_to_joiners(int64_t now) {
  const IslandMembership::State state = gather_state();
  if (first_rank_) first_rank_->membership.send_state_to_joiners(now, state);
}

int64_t RemoteIsland::elements_of(size_t f) const {
  int64_t all = 0;
  for (const size_t place : rows_[f].whole) all += elements_[place];
  return all;
}

at::Tensor RemoteIsland::gather(size_t f, const at::Tensor& mine) const {
  if (!full_parameters_) return first_rank_ ? mine.cpu().contiguous() : at::Tensor();
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  size_t next = 0;
  for (const size_t place : rows_[f].whole) {
    at::Tensor own;
    if (next < rows_[f].own.size() && rows_[f].own[next] == place) {
      own = mine.narrow(0, at, rows_[f].own_elements[next]);
      at += rows_[f].own_elements[next++];
    }
    const at::Tensor whole = full_parameters_->gather(place, own);
    if (first_rank_) parts.push_back(whole.reshape({-1}));
  }
  return first_rank_ ? at::cat(parts) : at::Tensor();
}

at::Tensor RemoteIsland::broadcast_full(size_t f, at::Tensor whole) const {
  if (!first_rank_) whole = at::empty({elements_of(f)}, at::kFloat);
  if (model_group_.size() > 1) model_group_.broadcast(whole, 0, {comm::Purpose::parameter, "from other islands"}).wait();
  return whole;
}

void RemoteIsland::take_shard(size_t f, const at::Tensor& whole, const at::Tensor& mine) const {
  if (!full_parameters_) {
    mine.copy_(whole);
    return;
  }
  int64_t from = 0, at = 0;
  size_t next = 0;
  for (const size_t place : rows_[f].whole) {
    if (next < rows_[f].own.size() && rows_[f].own[next] == place) {
      full_parameters_->take_shard(place, whole.narrow(0, from, elements_[place]), mine.narrow(0, at, rows_[f].own_elements[next]));
      at += rows_[f].own_elements[next++];
    }
    from += elements_[place];
  }
}

void RemoteIsland::share(std::span<double> numbers, const char* what) const {
  if (model_group_.size() > 1)
    model_group_.broadcast({numbers.data(), std::ssize(numbers), comm::Dtype::f64}, 0, {comm::Purpose::control, what}).wait();
}

IslandMembership::State RemoteIsland::gather_state() const {
  IslandMembership::State state;
  for (size_t f = 0; f < rows_.size(); ++f) {
    state.anchors.push_back(gather(f, rows_[f].anchor));
    state.momenta.push_back(rows_[f].momentum.defined() ? gather(f, rows_[f].momentum) : at::empty({0}, at::kFloat));
  }
  if (numbers_.defined()) state.numbers = numbers_.clone();
  return state;
}

}  // namespace cairn::sync
