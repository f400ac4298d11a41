// Exchanges between islands that are worlds of their own and may shard the model differently.
//
//   every rank: shards -> gather -> first rank: full fragment -> quorum round with other first ranks -> broadcast -> every rank: its shard
//
// remote_island.h has the two ends of it.
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/compressor.h"
#include "sync/islands/exchange.h"
#include "sync/islands/membership.h"
#include "sync/islands/merge.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"
#include "sync/islands/remote_island.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

// What the first rank broadcasts about a round.
struct RoundSummary {
  enum Field : size_t { defined, included, ending, bytes, note, least_note, send_state, kFields };
  std::array<double, kFields> fields{};
};

class RemoteExchange final : public IslandExchange {
 public:
  explicit RemoteExchange(ExchangeParts parts)
      : island_({.options = parts.options,
                 .replica = parts.replica,
                 .rows = parts.rows,
                 .outer_step = parts.outer_step,
                 .numbers = parts.numbers}),
        rule_(parts.rule),
        numbers_(parts.numbers) {}

  std::unique_ptr<PendingExchange> send(const FragmentMessage& message, const at::Tensor& mine) override;
  std::unique_ptr<PendingExchange> expect(int fragment, int64_t step, int32_t part) override;
  bool wait(const std::function<bool()>& done, std::chrono::nanoseconds at_most) override {
    return !first_rank() || first_rank()->messenger.wait(done, first_rank()->messenger.now() + at_most);
  }
  void close(int64_t step) override {
    if (first_rank()) first_rank()->quorum.close(step);
  }
  void poll() override {
    if (first_rank()) first_rank()->membership.poll();
  }
  bool may_leave() const override { return true; }

  std::string waiting_for() const override { return first_rank() ? first_rank()->quorum.waiting_for() : IslandExchange::waiting_for(); }

  StartPoint begin(int64_t steps_done, const Lineage& lineage) override {
    const StartPoint start_point = island_.enter(steps_done, lineage, /*again=*/false);
    if (start_point.ending == RoundEnding::stopped) base::fail_input("stopped while waiting for the other islands");
    return start_point;
  }
  StartPoint begin_again(int64_t steps_done, const Lineage& lineage) override { return island_.enter(steps_done, lineage, /*again=*/true); }
  void leave(int64_t step) override { island_.leave(step); }

  void on_applied(PendingExchange& exchange, int64_t now) override;

  // Islands may shard the model differently, so the sum is that of the full vector.
  double norm(const at::Tensor& mine) override {
    const at::Tensor whole = island_.gather(0, mine);
    std::array<double, 1> sum{first_rank() ? sum_of_squares(whole) : 0};
    island_.share(sum, "norm");
    return std::sqrt(sum[0]);
  }
  at::Tensor mean_of_numbers(const at::Tensor& values, int64_t step, int32_t part) override {
    std::vector<double> numbers(static_cast<size_t>(values.numel()) + 1);
    if (first_rank()) {
      const MergeRule mean{};
      const auto exact = make_compressor({"fp32"});
      IslandMerge merge({.quorum = first_rank()->quorum, .compressor = *exact, .rule = mean, .step = step, .part = part, .admits = false},
                        values);
      const at::Tensor merged = merge.wait();
      for (int64_t i = 0; merged.defined() && i < values.numel(); ++i) numbers[static_cast<size_t>(i)] = merged[i].item<double>();
      numbers.back() = merged.defined() ? 1 : 0;
    }
    island_.share(numbers, "numbers");
    if (numbers.back() == 0) return {};
    at::Tensor found = at::empty_like(values);
    for (int64_t i = 0; i < values.numel(); ++i) found.mutable_data_ptr<float>()[i] = static_cast<float>(numbers[static_cast<size_t>(i)]);
    return found;
  }

 private:
  friend class RemotePendingExchange;
  RemoteIsland::FirstRank* first_rank() const { return island_.first_rank(); }

  RemoteIsland island_;
  const MergeRule& rule_;
  at::Tensor numbers_;
};

class RemotePendingExchange final : public PendingExchange {
 public:
  RemotePendingExchange(RemoteExchange& owner, const FragmentMessage& message) : owner_(owner), message_(message) {}

  void start_merge(const at::Tensor& whole, bool in_background) {
    merge_ = std::make_unique<IslandMerge>(IslandMerge::Parts{.quorum = owner_.first_rank()->quorum,
                                                              .compressor = *message_.compressor,
                                                              .rule = owner_.rule_,
                                                              .step = message_.step,
                                                              .part = message_.part,
                                                              .weight = message_.weight,
                                                              .note = message_.note,
                                                              .admits = message_.admits,
                                                              .in_background = in_background},
                                           whole);
  }

  bool progress() override {
    return !owner_.first_rank() ||
           (merge_ ? merge_->progress() : owner_.first_rank()->membership.has_forwarded_round(message_.step, message_.part));
  }

  at::Tensor wait() override {
    RoundSummary summary;
    at::Tensor whole;
    if (owner_.first_rank()) whole = finish_round(summary);
    owner_.island_.share(summary.fields, "result of a round");
    outcome_ = {static_cast<int64_t>(summary.fields[RoundSummary::bytes]),
                static_cast<int>(summary.fields[RoundSummary::included]),
                false,
                static_cast<RoundEnding>(static_cast<int>(summary.fields[RoundSummary::ending])),
                summary.fields[RoundSummary::note],
                summary.fields[RoundSummary::least_note]};
    sends_state_ = summary.fields[RoundSummary::send_state] != 0;
    if (summary.fields[RoundSummary::defined] == 0) return {};
    gradient_ = owner_.island_.broadcast_full(static_cast<size_t>(message_.fragment), whole);
    at::Tensor mine = at::empty({owner_.island_.rows(static_cast<size_t>(message_.fragment)).anchor.numel()}, at::kFloat);
    owner_.island_.take_shard(static_cast<size_t>(message_.fragment), gradient_, mine);
    return mine;
  }

  at::Tensor as_sent() override {
    const auto f = static_cast<size_t>(message_.fragment);
    at::Tensor mine = at::empty({owner_.island_.rows(f).anchor.numel()}, at::kFloat);
    owner_.island_.take_shard(f, owner_.island_.broadcast_full(f, owner_.first_rank() ? merge_->as_sent() : at::Tensor()), mine);
    return mine;
  }

  int64_t step() const override { return message_.step; }
  bool sends_state() const { return sends_state_; }
  // Sends the result to joining islands, which took no part in the round.
  void forward_to_joiners(int64_t now) const {
    if (!owner_.first_rank()) return;
    // Empty without a merge: this island was joining itself, and those it sponsors joined after that round.
    const Incarnations members = merge_ ? merge_->members() : Incarnations(static_cast<size_t>(owner_.first_rank()->messenger.size()));
    owner_.first_rank()->membership.forward_round(members, {message_.step, message_.part, now, gradient_, owner_.numbers_});
  }

 private:
  // On the first rank.
  at::Tensor finish_round(RoundSummary& summary) {
    RemoteIsland::FirstRank& first_rank = *owner_.first_rank();
    at::Tensor whole;
    RoundEnding ending = RoundEnding::decided;
    if (merge_) {
      whole = merge_->wait();
      ending = merge_->ending();
      summary.fields[RoundSummary::included] = merge_->included();
      summary.fields[RoundSummary::bytes] = static_cast<double>(merge_->bytes_sent());
      summary.fields[RoundSummary::note] = merge_->note();
      summary.fields[RoundSummary::least_note] = merge_->least_note();
    } else {
      ending = wait_for_forwarded_round();
      if (ending == RoundEnding::decided)
        whole = first_rank.membership.take_forwarded_round(message_.step, message_.part,
                                                           owner_.island_.elements_of(static_cast<size_t>(message_.fragment)));
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
    RemoteIsland::FirstRank& first_rank = *owner_.first_rank();
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
  const at::Tensor whole = island_.gather(static_cast<size_t>(message.fragment), mine);
  if (first_rank()) exchange->start_merge(whole, mine.is_cuda());
  return exchange;
}

std::unique_ptr<PendingExchange> RemoteExchange::expect(int fragment, int64_t step, int32_t part) {
  return std::make_unique<RemotePendingExchange>(*this, FragmentMessage{.fragment = fragment, .step = step, .part = part});
}

void RemoteExchange::on_applied(PendingExchange& exchange, int64_t now) {
  const auto& one = static_cast<RemotePendingExchange&>(exchange);
  one.forward_to_joiners(now);
  if (one.sends_state()) island_.send_state_to_joiners(now);
}

}  // namespace

std::unique_ptr<IslandExchange> make_remote_exchange(ExchangeParts parts) { return std::make_unique<RemoteExchange>(std::move(parts)); }

}  // namespace cairn::sync
