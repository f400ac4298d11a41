// Exchanges between islands that are worlds of their own and may shard the model differently.
//
//   every rank: shards -> gather -> first rank: full fragment -> quorum round with other first ranks -> broadcast -> every rank: its shard
//
// Only the first rank of an island has a bridge to the others; it runs the messenger, the quorum and the membership. All its decisions
// reach the other ranks by broadcast, so the ranks of an island stay in step.
#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/exchange.h"
#include "sync/islands/membership.h"
#include "sync/islands/merge.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"
#include "sync/islands/replica_signature.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// What only the island's first rank has.
struct FirstRank {
  FirstRank(const ExchangeParts& parts, std::unique_ptr<IslandLink> link)
      : messenger(
            {std::move(link), signature_of(parts.options, parts.replica), max_message_bytes(parts.replica), is_on_gpu(parts.replica)}),
        quorum(messenger, options_of(parts)),
        membership({.messenger = messenger,
                    .quorum = quorum,
                    .log = parts.replica.model_group.world().log(),
                    .founders = parts.replica.remote_islands->founders,
                    .steps = parts.replica.steps,
                    .outer_step = parts.outer_step,
                    .founders_limit = parts.replica.remote_islands->founders_limit,
                    .return_limit = quorum_options(parts.options, parts.replica).minority_timeout}) {}

  QuorumOptions options_of(const ExchangeParts& parts) {
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

  IslandMessenger messenger;
  Quorum quorum;
  IslandMembership membership;
};

// What the first rank broadcasts about a round.
struct RoundSummary {
  enum Field : size_t { defined, included, ending, bytes, fastest, send_state, kFields };
  std::array<double, kFields> fields{};
};

class RemoteExchange final : public IslandExchange {
 public:
  explicit RemoteExchange(ExchangeParts parts)
      : model_group_(parts.replica.model_group),
        full_parameters_(parts.replica.remote_islands->full_parameters),
        stopping_(parts.replica.stopping),
        rule_(parts.rule),
        rows_(parts.rows),
        timeout_(static_cast<int64_t>(parts.options.exchange.timeout_s * 1e9)) {
    for (const FullParameter& one : parts.replica.model) elements_.push_back(one.elements);
    if (parts.replica.remote_islands->make_link) first_rank_.emplace(parts, parts.replica.remote_islands->make_link());
    CAIRN_CHECK(first_rank_.has_value() == (model_group_.rank() == 0), "the first rank of an island has its bridge, and no other");
  }

  std::unique_ptr<PendingExchange> send(const FragmentMessage& message, const at::Tensor& mine) override;
  std::unique_ptr<PendingExchange> expect(int fragment, int64_t step, int32_t part) override;
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) override {
    return !first_rank_ || first_rank_->messenger.wait(done, first_rank_->messenger.now() + at_most);
  }
  void close(int64_t step) override {
    if (first_rank_) first_rank_->quorum.close(step);
  }
  void poll() override {
    if (first_rank_) first_rank_->membership.poll();
  }
  bool may_leave() const override { return true; }

  std::string waiting_for() const override { return first_rank_ ? first_rank_->quorum.waiting_for() : IslandExchange::waiting_for(); }

  StartPoint begin(int64_t steps_done, const Lineage& lineage) override {
    const StartPoint start_point = enter(steps_done, lineage, /*again=*/false);
    if (start_point.ending == RoundEnding::stopped) base::fail_input("stopped while waiting for the other islands");
    return start_point;
  }
  StartPoint begin_again(int64_t steps_done, const Lineage& lineage) override { return enter(steps_done, lineage, /*again=*/true); }

  void leave(int64_t step) override {
    const IslandMembership::State state = gather_state();
    if (!first_rank_) return;
    first_rank_->membership.leave(step, state, [&] { return !stopping_ || !stopping_(); });
  }

  void on_applied(PendingExchange& exchange, int64_t now) override;

 private:
  friend class RemotePendingExchange;

  StartPoint enter(int64_t steps_done, const Lineage& lineage, bool again) {
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
      const StartPoint found = again ? membership.enter_again(steps_done, state, tick) : membership.enter(steps_done, state, tick);
      summary = {found.step, found.state_replaced, found.joined, static_cast<int64_t>(found.epoch), static_cast<int64_t>(found.ending), 1};
      broadcast_summary();
    }
    while (summary[final] == 0) broadcast_summary();
    for (size_t f = 0; summary[replaced] != 0 && f < rows_.size(); ++f) {
      take_shard(f, broadcast_full(f, first_rank_ ? state.anchors[f] : at::Tensor()), rows_[f].anchor);
      take_shard(f, broadcast_full(f, first_rank_ ? state.momenta[f] : at::Tensor()), rows_[f].momentum);
    }
    return {summary[step], summary[replaced] != 0, summary[joined] != 0, static_cast<uint64_t>(summary[epoch]),
            static_cast<RoundEnding>(summary[ending])};
  }

  int64_t elements_of(size_t f) const {
    int64_t all = 0;
    for (const size_t place : rows_[f].whole) all += elements_[place];
    return all;
  }

  // Returns the full fragment on the first rank, from the shards of all ranks; undefined elsewhere.
  at::Tensor gather(size_t f, const at::Tensor& mine) const {
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
  // Returns the first rank's full fragment on every rank.
  at::Tensor broadcast_full(size_t f, at::Tensor whole) const {
    if (!first_rank_) whole = at::empty({elements_of(f)}, at::kFloat);
    if (model_group_.size() > 1) model_group_.broadcast(whole, 0, {comm::Purpose::parameter, "from other islands"}).wait();
    return whole;
  }
  // Copies this rank's shards out of a full fragment.
  void take_shard(size_t f, const at::Tensor& whole, const at::Tensor& mine) const {
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

  IslandMembership::State gather_state() const {
    IslandMembership::State state;
    for (size_t f = 0; f < rows_.size(); ++f) {
      state.anchors.push_back(gather(f, rows_[f].anchor));
      state.momenta.push_back(gather(f, rows_[f].momentum));
    }
    return state;
  }

  comm::Group& model_group_;
  FullParameterGather* full_parameters_;
  std::function<bool()> stopping_;
  const MergeRule& rule_;
  std::vector<FragmentRows> rows_;
  std::vector<int64_t> elements_;  // of whole parameters
  const std::chrono::nanoseconds timeout_;
  mutable std::optional<FirstRank> first_rank_;  // on the first rank
};

class RemotePendingExchange final : public PendingExchange {
 public:
  RemotePendingExchange(RemoteExchange& owner, const FragmentMessage& message) : owner_(owner), message_(message) {}

  void start_merge(const at::Tensor& whole, bool in_background) {
    merge_ = std::make_unique<IslandMerge>(IslandMerge::Parts{.quorum = owner_.first_rank_->quorum,
                                                              .compressor = *message_.compressor,
                                                              .rule = owner_.rule_,
                                                              .step = message_.step,
                                                              .part = message_.part,
                                                              .weight = message_.weight,
                                                              .note = message_.seconds,
                                                              .admits = message_.admits,
                                                              .in_background = in_background},
                                           whole);
  }

  bool progress() override {
    return !owner_.first_rank_ ||
           (merge_ ? merge_->progress() : owner_.first_rank_->membership.has_forwarded_round(message_.step, message_.part));
  }

  at::Tensor wait() override {
    RoundSummary summary;
    at::Tensor whole;
    if (owner_.first_rank_) whole = finish_round(summary);
    owner_.model_group_
        .broadcast({summary.fields.data(), RoundSummary::kFields, comm::Dtype::f64}, 0, {comm::Purpose::control, "result of a round"})
        .wait();
    outcome_ = {static_cast<int64_t>(summary.fields[RoundSummary::bytes]), static_cast<int>(summary.fields[RoundSummary::included]), false,
                static_cast<RoundEnding>(static_cast<int>(summary.fields[RoundSummary::ending])), summary.fields[RoundSummary::fastest]};
    sends_state_ = summary.fields[RoundSummary::send_state] != 0;
    if (summary.fields[RoundSummary::defined] == 0) return {};
    gradient_ = owner_.broadcast_full(static_cast<size_t>(message_.fragment), whole);
    at::Tensor mine = at::empty({owner_.rows_[static_cast<size_t>(message_.fragment)].anchor.numel()}, at::kFloat);
    owner_.take_shard(static_cast<size_t>(message_.fragment), gradient_, mine);
    return mine;
  }

  at::Tensor as_sent() override {
    const auto f = static_cast<size_t>(message_.fragment);
    at::Tensor mine = at::empty({owner_.rows_[f].anchor.numel()}, at::kFloat);
    owner_.take_shard(f, owner_.broadcast_full(f, owner_.first_rank_ ? merge_->as_sent() : at::Tensor()), mine);
    return mine;
  }

  int64_t step() const override { return message_.step; }
  bool sends_state() const { return sends_state_; }
  // Sends the result to joining islands, which took no part in the round.
  void forward_to_joiners(int64_t now) const {
    if (!owner_.first_rank_) return;
    // Empty without a merge: this island was joining itself, and those it sponsors joined after that round.
    const Incarnations members = merge_ ? merge_->members() : Incarnations(static_cast<size_t>(owner_.first_rank_->messenger.size()));
    owner_.first_rank_->membership.forward_round(members, message_.step, message_.part, now, gradient_);
  }

 private:
  // On the first rank.
  at::Tensor finish_round(RoundSummary& summary) {
    FirstRank& first_rank = *owner_.first_rank_;
    at::Tensor whole;
    RoundEnding ending = RoundEnding::decided;
    if (merge_) {
      whole = merge_->wait();
      ending = merge_->ending();
      summary.fields[RoundSummary::included] = merge_->included();
      summary.fields[RoundSummary::bytes] = static_cast<double>(merge_->bytes_sent());
      summary.fields[RoundSummary::fastest] = merge_->least_note();
    } else {
      ending = wait_for_forwarded_round();
      if (ending == RoundEnding::decided)
        whole = first_rank.membership.take_forwarded_round(message_.step, message_.part,
                                                           owner_.elements_of(static_cast<size_t>(message_.fragment)));
    }
    if (ending == RoundEnding::decided && !first_rank.quorum.is_member(first_rank.messenger.me())) ending = RoundEnding::rejoin;
    summary.fields[RoundSummary::ending] = static_cast<double>(ending);
    if (ending != RoundEnding::decided && ending != RoundEnding::alone) whole.reset();
    first_rank.membership.poll();
    summary.fields[RoundSummary::defined] = whole.defined() ? 1 : 0;
    summary.fields[RoundSummary::send_state] = first_rank.membership.has_join_requests() ? 1 : 0;
    return whole;
  }

  // The sponsor forwards the result of a round that began before this island joined.
  RoundEnding wait_for_forwarded_round() {
    FirstRank& first_rank = *owner_.first_rank_;
    IslandMessenger& messenger = first_rank.messenger;
    const auto here = [&] { return first_rank.membership.has_forwarded_round(message_.step, message_.part); };
    const std::chrono::nanoseconds begun = messenger.now();
    while (!here()) {
      if (first_rank.membership.is_sponsor_gone()) return RoundEnding::rejoin;
      if (const auto ending = first_rank.quorum.give_up(begun)) return *ending;
      messenger.wait(here, messenger.now() + std::chrono::milliseconds(200));
    }
    return RoundEnding::decided;
  }

  RemoteExchange& owner_;
  FragmentMessage message_;
  std::unique_ptr<IslandMerge> merge_;  // on the first rank; null there: the sponsor forwards the result
  at::Tensor gradient_;
  bool sends_state_ = false;
};

std::unique_ptr<PendingExchange> RemoteExchange::send(const FragmentMessage& message, const at::Tensor& mine) {
  auto exchange = std::make_unique<RemotePendingExchange>(*this, message);
  const at::Tensor whole = gather(static_cast<size_t>(message.fragment), mine);
  if (first_rank_) exchange->start_merge(whole, mine.is_cuda());
  return exchange;
}

std::unique_ptr<PendingExchange> RemoteExchange::expect(int fragment, int64_t step, int32_t part) {
  return std::make_unique<RemotePendingExchange>(*this, FragmentMessage{.fragment = fragment, .step = step, .part = part});
}

void RemoteExchange::on_applied(PendingExchange& exchange, int64_t now) {
  const auto& one = static_cast<RemotePendingExchange&>(exchange);
  one.forward_to_joiners(now);
  if (!one.sends_state()) return;
  const IslandMembership::State state = gather_state();
  if (first_rank_) first_rank_->membership.send_state_to_joiners(now, state);
}

}  // namespace

std::unique_ptr<IslandExchange> make_remote_exchange(ExchangeParts parts) { return std::make_unique<RemoteExchange>(std::move(parts)); }

}  // namespace cairn::sync
