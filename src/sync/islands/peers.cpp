#include "sync/islands/peers.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/compressor.h"
#include "sync/islands/merge.h"
#include "sync/islands/remote_island.h"
#include "sync/islands/replica_signature.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

constexpr auto kAskPartnerAfter = std::chrono::seconds(1);    // or a quarter of the time limit
constexpr auto kPartnerWait = std::chrono::milliseconds(50);  // between two looks at the membership
constexpr size_t kServedRounds = 16;

class InWorldPeers final : public IslandPeers {
 public:
  explicit InWorldPeers(const PeerParts& parts)
      : device_(parts.model.device()),
        messenger_(
            {in_world_link(parts.replica.replica_group), signature_of(parts.options, parts.replica), max_message_bytes(parts.replica)}),
        quorum_(messenger_, quorum_options(parts.options, parts.replica)) {}

  Quorum* quorum() override { return &quorum_; }
  Incarnations members(int64_t) override { return Incarnations(static_cast<size_t>(messenger_.size()), 1); }
  at::Tensor gather(const at::Tensor& mine) override { return mine.cpu().contiguous(); }
  at::Tensor scatter(const at::Tensor& values) override { return values.to(device_); }
  void share(std::span<double>) override {}
  void poll() override { messenger_.pump(); }

 private:
  at::Device device_;
  IslandMessenger messenger_;
  Quorum quorum_;
};

FragmentRows rows_of(const PeerParts& parts) {
  FragmentRows rows{.whole = {}, .own = {}, .own_elements = {}, .anchor = parts.model, .momentum = parts.momentum};
  size_t next = 0;
  const auto& own = parts.replica.parameters;
  for (size_t place = 0; place < parts.replica.model.size(); ++place) {
    rows.whole.push_back(place);
    if (next == own.size() || own[next].name != parts.replica.model[place].name) continue;
    rows.own.push_back(place);
    rows.own_elements.push_back(own[next++].tensor.numel());
  }
  CAIRN_CHECK(next == own.size(), "{} is out of order", own[next].name);
  return rows;
}

class RemotePeers final : public IslandPeers {
 public:
  explicit RemotePeers(const PeerParts& parts)
      : device_(parts.model.device()),
        elements_(parts.model.numel()),
        island_({.options = parts.options, .replica = parts.replica, .rows = {rows_of(parts)}, .peer_round_steps = parts.every}) {}

  Quorum* quorum() override { return island_.first_rank() ? &island_.first_rank()->quorum : nullptr; }
  Incarnations members(int64_t step) override { return quorum()->decisions().members_at(step); }
  at::Tensor gather(const at::Tensor& mine) override { return island_.gather(0, mine); }
  at::Tensor scatter(const at::Tensor& values) override {
    at::Tensor mine = at::empty({elements_}, at::kFloat);
    island_.take_shard(0, island_.broadcast_full(0, values), mine);
    return mine.to(device_);
  }
  void share(std::span<double> numbers) override { island_.share(numbers, "round among a few islands"); }

  StartPoint begin(int64_t steps_done) override {
    const StartPoint start_point = entered(island_.enter(steps_done, {}, /*again=*/false));
    if (start_point.ending == RoundEnding::stopped) base::fail_input("stopped while waiting for the other islands");
    return start_point;
  }
  StartPoint begin_again(int64_t steps_done) override { return entered(island_.enter(steps_done, {}, /*again=*/true)); }

  std::optional<StartPoint> end_round(int64_t step) override {
    last_round_ = step;
    std::array<double, 2> what{};
    if (auto* first = island_.first_rank()) {
      first->membership.keep_members(step);
      what = {first->quorum.decisions().is_removed() ? 1.0 : 0, first->membership.has_join_requests() ? 1.0 : 0};
    }
    share(what);
    if (what[0] != 0) return begin_again(step);
    if (what[1] != 0) island_.send_state_to_joiners(step);
    return std::nullopt;
  }
  void leave(int64_t step) override { island_.leave(step); }
  void poll() override {
    if (auto* first = island_.first_rank()) first->membership.keep_members(last_round_);
  }
  bool may_leave() const override { return true; }

 private:
  StartPoint entered(const StartPoint& start_point) {
    last_round_ = start_point.step;
    return start_point;
  }

  at::Device device_;
  int64_t elements_;
  int64_t last_round_ = 0;  // step
  RemoteIsland island_;
};

}  // namespace

IslandPeers::StartPoint IslandPeers::begin_again(int64_t) { CAIRN_CHECK(false, "islands of one world do not return to it"); }

std::unique_ptr<IslandPeers> make_peers(const PeerParts& parts) {
  if (parts.replica.remote_islands) return std::make_unique<RemotePeers>(parts);
  return std::make_unique<InWorldPeers>(parts);
}

MeanOfAll mean_of_all(IslandPeers& peers, const Compressor& compressor, const MergeRule& rule, const RoundOfAll& round,
                      const at::Tensor& mine) {
  const at::Tensor own = peers.gather(mine);
  MeanOfAll all;
  at::Tensor mean;
  if (Quorum* quorum = peers.quorum()) {
    if (peers.may_leave()) quorum->follow_log();
    IslandMerge merge({.quorum = *quorum,
                       .compressor = compressor,
                       .rule = rule,
                       .step = round.step,
                       .part = round.part,
                       .wants_to_stop = round.wants_to_stop && !peers.may_leave(),
                       .admits = false},
                      own);
    mean = merge.wait();
    all = {.mean = {},
           .ending = merge.ending(),
           .bytes_sent = merge.bytes_sent(),
           .included = merge.included(),
           .waiting_for = quorum->waiting_for()};
    if (!round.more_follow) quorum->close(round.step);
  }
  std::array<double, 4> numbers{mean.defined() ? 1.0 : 0, static_cast<double>(all.ending), static_cast<double>(all.bytes_sent),
                                static_cast<double>(all.included)};
  peers.share(numbers);
  all.ending = static_cast<RoundEnding>(static_cast<int>(numbers[1]));
  all.bytes_sent = static_cast<int64_t>(numbers[2]);
  all.included = static_cast<int>(numbers[3]);
  if (numbers[0] != 0) all.mean = peers.scatter(mean);
  return all;
}

std::vector<double> mean_of_numbers(IslandPeers& peers, const RoundOfAll& round, const std::vector<double>& mine, int64_t& bytes_sent) {
  std::vector<double> found(mine.size() + 2);  // the numbers, bytes sent, whether there is a result
  if (Quorum* quorum = peers.quorum()) {
    at::Tensor values = at::empty({std::ssize(mine)}, at::kFloat);
    for (size_t i = 0; i < mine.size(); ++i) values.mutable_data_ptr<float>()[i] = static_cast<float>(mine[i]);
    const auto exact = make_compressor({"fp32"});
    const MergeRule mean{};
    IslandMerge merge({.quorum = *quorum, .compressor = *exact, .rule = mean, .step = round.step, .part = round.part, .admits = false},
                      values);
    const at::Tensor merged = merge.wait();
    for (size_t i = 0; merged.defined() && i < mine.size(); ++i) found[i] = merged.const_data_ptr<float>()[i];
    found[mine.size()] = static_cast<double>(merge.bytes_sent());
    found.back() = merged.defined() ? 1 : 0;
    if (!round.more_follow) quorum->close(round.step);
  }
  peers.share(found);
  bytes_sent += static_cast<int64_t>(found[mine.size()]);
  if (found.back() == 0) return {};
  found.resize(mine.size());
  return found;
}

PartnerRounds::PartnerRounds(IslandPeers& peers, std::chrono::nanoseconds timeout)
    : peers_(peers), quorum_(*peers.quorum()), messenger_(quorum_.messenger()), timeout_(timeout) {
  messenger_.on_message(MessageTag::Kind::round_query,
                        [this](const IslandMessenger::Arrived& message) { answer(message.from, message.tag.step); });
  messenger_.on_message(MessageTag::Kind::round_declined, [this](const IslandMessenger::Arrived& message) {
    if (message.tag.step >= round_) declined_.insert({message.tag.step, message.from});
  });
}

// An island that is asked about a round that it has not begun says nothing: it may still take part.
void PartnerRounds::answer(int island, int64_t round) {
  if (round > round_) return;
  const std::vector<int>* with = &partners_;
  if (round < round_ || !open_) {
    const auto served = served_.find(round);
    with = served == served_.end() ? nullptr : &served->second;
  }
  if (!with || std::find(with->begin(), with->end(), island) == with->end())
    messenger_.send(island, {MessageTag::Kind::round_declined, round, 0}, {}, comm::Purpose::control);
}

void PartnerRounds::begin(int64_t round, const Incarnations& members, const std::vector<int>& partners) {
  round_ = round;
  open_ = true;
  members_ = members;
  partners_ = partners;
  begun_ = asked_ = messenger_.now();
  std::erase_if(declined_, [&](const auto& one) { return one.first < round; });
}

bool PartnerRounds::is_gone(int island) const {
  return messenger_.lost(island) || messenger_.incarnation(island) != members_[static_cast<size_t>(island)] ||
         declined_.contains({round_, island});
}

bool PartnerRounds::wait(const std::function<bool()>& done) {
  const std::chrono::nanoseconds until = begun_ + timeout_;
  const bool remote = peers_.may_leave();
  if (!remote) return quorum_.wait(done, until);
  while (true) {
    if (quorum_.wait(done, std::min<std::chrono::nanoseconds>(until, messenger_.now() + kPartnerWait))) return true;
    if (messenger_.now() >= until || quorum_.must_stop()) return false;
    peers_.poll();
    if (messenger_.now() - asked_ < std::min<std::chrono::nanoseconds>(kAskPartnerAfter, timeout_ / 4)) continue;
    asked_ = messenger_.now();
    for (const int partner : partners_)
      if (partner != messenger_.me()) messenger_.send(partner, {MessageTag::Kind::round_query, round_, 0}, {}, comm::Purpose::control);
  }
}

void PartnerRounds::end(const std::vector<int>& served) {
  open_ = false;
  served_[round_] = served;
  if (served_.size() > kServedRounds) served_.erase(served_.begin());
}

}  // namespace cairn::sync
