// Rounds of one-byte training between remote islands: sync.island.kind = "one_byte", with train.method = "one_byte".
//
//   1. Every island sends its message (the slopes of its ranks) to every other member.
//   2. The islands decide which messages count: a quorum round (islands/quorum.h). The entry of the round in the decision log names the
//      islands whose messages count, and a digest of the list (island, length, CRC). Late messages are dropped. A member whose message is
//      missing in three rounds in a row leaves, and so does one that cannot be reached.
//   3. An island that lacks a message that counts asks the other members for a copy.
//
// An island that joins or comes back (islands/membership.h) has the base weights. It gets the records of all rounds and replays them; no
// weights travel. Membership moves rows of fp32 numbers, so records travel packed: their length in bytes, then the bytes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/membership.h"
#include "sync/islands/messenger.h"
#include "sync/islands/quorum.h"
#include "sync/islands/replica_signature.h"
#include "sync/message_rounds.h"
#include "sync/one_byte/bytes_on_all_ranks.h"
#include "sync/rules.h"

namespace cairn::sync {
namespace {

using MessageKind = MessageTag::Kind;

constexpr int kMaxMissedRounds = 3;
constexpr int64_t kMaxHistoryBytes = int64_t{1} << 29;  // of one message: the whole history of a run
constexpr size_t kRoundsForCopies = 64;
constexpr auto kAskForCopyAfter = std::chrono::milliseconds(200);

at::Tensor pack_bytes(std::span<const std::byte> bytes) {
  const auto words = static_cast<int64_t>((bytes.size() + 3) / 4);
  at::Tensor row = at::zeros({words + 1}, at::kFloat);
  const auto size = static_cast<uint32_t>(bytes.size());
  auto* to = reinterpret_cast<std::byte*>(row.mutable_data_ptr<float>());
  std::memcpy(to, &size, sizeof size);
  if (!bytes.empty()) std::memcpy(to + sizeof size, bytes.data(), bytes.size());
  return row;
}

// Of one or several packed rows, one after the other.
std::vector<std::byte> unpack_bytes(const at::Tensor& rows) {
  std::vector<std::byte> all;
  std::span<const std::byte> left(reinterpret_cast<const std::byte*>(rows.const_data_ptr<float>()), static_cast<size_t>(rows.nbytes()));
  while (left.size() >= sizeof(uint32_t)) {
    uint32_t size = 0;
    std::memcpy(&size, left.data(), sizeof size);
    left = left.subspan(sizeof size);
    const size_t padded = (static_cast<size_t>(size) + 3) / 4 * 4;
    if (left.size() < padded) throw Error(Error::Kind::lost_peer, "another island sent a history that ends too soon");
    all.insert(all.end(), left.begin(), left.begin() + static_cast<std::ptrdiff_t>(size));
    left = left.subspan(padded);
  }
  return all;
}

// What only the island's first rank has.
struct RoundsFirstRank {
  RoundsFirstRank(const SyncOptions& options, const Replica& replica)
      : messenger({replica.remote_islands->make_link(), signature_of(options, replica), kMaxHistoryBytes}),
        quorum(messenger, options_of(options, replica)),
        membership({.messenger = messenger,
                    .quorum = quorum,
                    .log = replica.model_group.world().log(),
                    .founders = replica.remote_islands->founders,
                    .steps = replica.steps,
                    // A round that a sponsor forwards is one more record.
                    .outer_step =
                        [](const at::Tensor& records, const at::Tensor&, const at::Tensor& record, int64_t, const at::Tensor&) {
                          const int64_t before = records.numel();
                          records.resize_({before + record.numel()});
                          records.narrow(0, before, record.numel()).copy_(record);
                        },
                    .any_length = true,
                    .founders_limit = replica.remote_islands->founders_limit,
                    .return_limit = quorum_options(options, replica).minority_timeout}) {}

  QuorumOptions options_of(const SyncOptions& options, const Replica& replica) {
    const RemoteIslands& remote = *replica.remote_islands;
    QuorumOptions quorum_of = quorum_options(options, replica);
    quorum_of.waiting = [this] { membership.ask_whether_removed(); };
    quorum_of.founded = false;
    quorum_of.max_missed = kMaxMissedRounds;
    quorum_of.decisions.store = remote.log.get();
    quorum_of.decisions.votes = false;
    quorum_of.decisions.faults = remote.faults;
    // A run that fewer than half of the islands may found is founded with island 0: two halves must not found two runs.
    if (2 * remote.founders <= messenger.size()) quorum_of.decisions.first_members = {0};
    return quorum_of;
  }

  IslandMessenger messenger;
  Quorum quorum;
  IslandMembership membership;
};

class IslandRounds final : public Sync, public MessageRounds {
 public:
  IslandRounds(const SyncOptions& options, Replica replica) : replica_(replica) {
    if (!replica.remote_islands)
      base::fail_input("sync.island.kind = {}: is for islands that are started separately (--island). In one run use mesh.dp.",
                       options.kind);
    if (options.exchange.on_minority == OnMinority::go_on)
      base::fail_input("sync.island.on_minority = continue: an island alone would leave the common history: use wait or stop");
    if (options.exchange.wire != "auto" || options.exchange.merge != MergeKind::mean)
      base::fail_input("sync.island.wire, sync.island.merge: are for rules that send parameters: leave them out; see train.one_byte.code");
    if (replica.remote_islands->make_link) first_rank_.emplace(options, replica);
    if (first_rank_) answer_requests_for_copies();
  }

  MessageRounds* message_rounds() override { return this; }
  void attach(History history) override { history_ = std::move(history); }

  int64_t begin(int64_t steps_done) override {
    CAIRN_CHECK(history_.rounds, "no step method has attached its history");
    if (replica_.steps > 0 && steps_done >= replica_.steps) return steps_done;  // the run has ended
    if (enter(/*again=*/false) == RoundEnding::stopped) base::fail_input("stopped while waiting for the other islands");
    return history_.rounds();
  }

  Outcome exchange(int64_t step, std::vector<std::byte> message) override {
    const std::chrono::nanoseconds begun = replica_.model_group.world().clock().now();
    Outcome outcome;
    RoundEnding ending = RoundEnding::decided;
    if (first_rank_) {
      std::optional<base::Trace::Span> traced;
      if (replica_.trace) traced.emplace(replica_.trace->span("wait for islands", "sync"));
      ending = decide(step, std::move(message), outcome);
    }
    std::array<int64_t, 3> summary{static_cast<int64_t>(ending), static_cast<int64_t>(outcome.epoch),
                                   static_cast<int64_t>(outcome.messages.size())};
    if (replica_.model_group.size() > 1)
      replica_.model_group.broadcast({summary.data(), 3, comm::Dtype::i64}, 0, {comm::Purpose::control, "result of a round"}).wait();
    ending = static_cast<RoundEnding>(summary[0]);
    outcome.epoch = static_cast<uint64_t>(summary[1]);
    outcome.messages.resize(static_cast<size_t>(summary[2]));
    for (std::vector<std::byte>& one : outcome.messages) bytes_on_all_ranks(replica_.model_group, one, "messages of a round");
    outcome.decided = ending == RoundEnding::decided;
    if (!outcome.decided) give_up(ending, step);
    metrics_ = {{"islands", static_cast<double>(std::count_if(outcome.messages.begin(), outcome.messages.end(),
                                                              [](const auto& one) { return !one.empty(); }))},
                {"sync_bytes", static_cast<double>(bytes_)},
                {"socket_bytes", static_cast<double>(first_rank_ ? first_rank_->messenger.link().socket_bytes() : 0)},
                {"stall_s", base::seconds(replica_.model_group.world().clock().now() - begun)}};
    return outcome;
  }

  void applied(int64_t step, std::span<const std::byte> record) override {
    if (!first_rank_) return;
    first_rank_->membership.poll();
    first_rank_->membership.forward_round(members_of_round_, {.step = step, .now = step, .gradient = pack_bytes(record), .numbers = {}});
    if (first_rank_->membership.has_join_requests()) first_rank_->membership.send_state_to_joiners(step, state());
    first_rank_->quorum.close(step);
  }

  void leave() override {
    if (first_rank_) first_rank_->membership.leave(history_.rounds(), state(), [&] { return !replica_.stopping || !replica_.stopping(); });
  }

  void on_membership(const Membership&) override {}  // each round finds out who is there
  void request_stop() override { wants_to_stop_ = true; }
  bool should_stop() const override { return trouble_.ended || wants_to_stop_; }  // the others go on
  std::optional<int64_t> take_new_position() override { return std::exchange(position_, std::nullopt); }
  std::string interruption() const override { return trouble_.interruption; }
  bool round_unfinished() const override { return trouble_.ended; }
  StepMetrics metrics() override { return std::exchange(metrics_, {}); }

 private:
  // On the first rank: records, and what they belong to.
  IslandMembership::State state() const {
    return {.anchors = {pack_bytes(history_.records())},
            .momenta = {pack_bytes(std::as_bytes(std::span(&history_.origin, 1)))},
            .epoch = history_.epoch()};
  }

  // Founds the run with other islands or joins theirs, and takes over their history where this island lacks rounds.
  RoundEnding enter(bool again) {
    enum Field : size_t { ending, replaced, origin, final, kFields };
    std::array<int64_t, kFields> summary{};
    const auto broadcast_summary = [&] {
      if (replica_.model_group.size() > 1)
        replica_.model_group.broadcast({summary.data(), kFields, comm::Dtype::i64}, 0, {comm::Purpose::control, "where islands start"})
            .wait();
    };
    std::vector<std::byte> records;
    if (first_rank_) {
      IslandMembership::State now = state();
      const auto tick = [&] {
        broadcast_summary();  // the other ranks wait for no more than that
        return !replica_.stopping || !replica_.stopping();
      };
      IslandMembership& membership = first_rank_->membership;
      const int64_t rounds = history_.rounds();
      const auto found = again ? membership.enter_again(rounds, now, tick) : membership.enter(rounds, now, tick);
      epoch_ = found.epoch;
      uint64_t theirs = history_.origin;
      if (found.state_replaced) {
        records = unpack_bytes(now.anchors[0]);
        if (const std::vector<std::byte> bytes = unpack_bytes(now.momenta[0]); bytes.size() == sizeof theirs)
          std::memcpy(&theirs, bytes.data(), sizeof theirs);
      }
      summary = {static_cast<int64_t>(found.ending), found.state_replaced, static_cast<int64_t>(theirs), 1};
      broadcast_summary();
    }
    while (summary[final] == 0) broadcast_summary();
    if (static_cast<uint64_t>(summary[origin]) != history_.origin)
      base::fail_input(
          "this island begins with other weights than the others, or draws other directions: base checkpoint (model.from, train.seed), "
          "train.one_byte.*, train.parameters, model.train and the build must be the same on all islands");
    if (summary[replaced] != 0) {
      bytes_on_all_ranks(replica_.model_group, records, "rounds of other islands");
      history_.take(records);
    }
    return static_cast<RoundEnding>(summary[ending]);
  }

  void give_up(RoundEnding ending, int64_t step) {
    if (ending == RoundEnding::rejoin) {
      ending = enter(/*again=*/true);
      if (ending == RoundEnding::decided) position_ = history_.rounds();
    }
    trouble_.note(ending, step, first_rank_ ? first_rank_->quorum.waiting_for() : "the other islands");
  }

  // The round on the first rank.
  RoundEnding decide(int64_t step, std::vector<std::byte> message, Outcome& outcome) {
    Quorum& quorum = first_rank_->quorum;
    IslandMessenger& messenger = first_rank_->messenger;
    first_rank_->membership.poll();
    Quorum::Round round = quorum.begin(step, 0, /*wants_to_stop=*/false, /*admits=*/replica_.steps == 0 || step < replica_.steps);
    members_of_round_ = round.members();
    own_ = std::move(message);
    std::vector<bool> unsent(members_of_round_.size());
    for (size_t i = 0; i < unsent.size(); ++i) unsent[i] = members_of_round_[i] != 0 && static_cast<int>(i) != messenger.me();
    std::optional<std::chrono::nanoseconds> missing_since, asked;
    const auto progress = [&] {
      send_own(round, unsent);
      if (!round.progress()) {
        const Incarnations wanted = round.wanted();
        if (!wanted.empty() && missing(round, wanted).empty()) round.set_digest(wanted, digest(round, wanted));
      }
      return round.decided() && missing(round, round.decision().included).empty();
    };
    while (!progress()) {
      const std::chrono::nanoseconds now = messenger.now();
      if (round.decided()) {
        if (!missing_since) missing_since = now;
        if (quorum.decisions().is_removed() || now - *missing_since > quorum.timeout()) return RoundEnding::rejoin;
        const auto patience = std::min<std::chrono::nanoseconds>(kAskForCopyAfter, quorum.timeout() / 8);
        if (now - asked.value_or(*missing_since) > patience) {
          asked = now;
          ask_for_copies(round);
        }
      }
      if (const auto ending = quorum.give_up(round.begun(), round.decided())) return *ending;
      messenger.wait(progress, now + std::min<std::chrono::nanoseconds>(kAskForCopyAfter, quorum.timeout() / 8));
    }
    const RoundDecision& decision = round.decision();
    if (digest(round, decision.included) != decision.digest) {
      messenger.warn(fmt::format("step {}: the messages that count differ here from those of the other islands", step));
      return RoundEnding::rejoin;
    }
    outcome.messages.resize(members_of_round_.size());
    for (size_t i = 0; i < outcome.messages.size(); ++i)
      if (decision.included[i] != 0) outcome.messages[i] = *find(round, static_cast<int>(i));
    outcome.epoch = epoch_;
    for_copies_[step] = outcome.messages;
    if (for_copies_.size() > kRoundsForCopies) for_copies_.erase(for_copies_.begin());
    copies_.clear();
    quorum.conclude(round);
    return quorum.is_member(messenger.me()) ? RoundEnding::decided : RoundEnding::rejoin;
  }

  // Sends this island's message to members that can be reached and have not got it.
  void send_own(const Quorum::Round& round, std::vector<bool>& unsent) {
    IslandMessenger& messenger = first_rank_->messenger;
    for (size_t i = 0; i < unsent.size(); ++i) {
      const int island = static_cast<int>(i);
      if (!unsent[i] || messenger.lost(island)) continue;
      unsent[i] = false;
      if (messenger.incarnation(island) != members_of_round_[i]) continue;  // it has started again
      messenger.send(island, round.tag(), own_, comm::Purpose::gradient);
      bytes_ += static_cast<int64_t>(own_.size());
    }
  }

  const std::vector<std::byte>* find(const Quorum::Round& round, int island) const {
    if (island == first_rank_->messenger.me()) return &own_;
    if (const auto copy = copies_.find({round.tag().step, island}); copy != copies_.end()) return &copy->second;
    const bool here = first_rank_->messenger.incarnation_of(island, round.tag()) == members_of_round_[static_cast<size_t>(island)];
    return here ? first_rank_->messenger.find(island, round.tag()) : nullptr;
  }

  std::vector<int> missing(const Quorum::Round& round, const Incarnations& included) const {
    std::vector<int> islands;
    for (size_t i = 0; i < included.size(); ++i)
      if (included[i] != 0 && !find(round, static_cast<int>(i))) islands.push_back(static_cast<int>(i));
    return islands;
  }

  // Of island, length and CRC of each message that counts.
  uint64_t digest(const Quorum::Round& round, const Incarnations& included) const {
    std::vector<uint64_t> list;
    for (size_t i = 0; i < included.size(); ++i) {
      if (included[i] == 0) continue;
      const std::vector<std::byte>& body = *find(round, static_cast<int>(i));
      list.insert(list.end(), {static_cast<uint64_t>(i), static_cast<uint64_t>(body.size()), base::crc32c(body)});
    }
    return base::checksum(std::as_bytes(std::span(list)));
  }

  void ask_for_copies(const Quorum::Round& round) {
    IslandMessenger& messenger = first_rank_->messenger;
    for (const int lacks : missing(round, round.decision().included))
      for (int island = 0; island < messenger.size(); ++island)
        if (island != messenger.me() && island != lacks && members_of_round_[static_cast<size_t>(island)] != 0)
          messenger.send(island, {MessageKind::want_copy, round.tag().step, lacks}, {}, comm::Purpose::control);
  }

  void answer_requests_for_copies() {
    IslandMessenger& messenger = first_rank_->messenger;
    messenger.on_message(MessageKind::want_copy, [this, &messenger](const IslandMessenger::Arrived& request) {
      const auto round = for_copies_.find(request.tag.step);
      const auto island = static_cast<size_t>(request.tag.part);
      if (round == for_copies_.end() || island >= round->second.size() || round->second[island].empty()) return;
      messenger.send(request.from, {MessageKind::copy, request.tag.step, request.tag.part}, round->second[island], comm::Purpose::data);
    });
    // What is wrong in a copy shows in the digest.
    messenger.on_message(MessageKind::copy, [this](const IslandMessenger::Arrived& copy) {
      copies_[{copy.tag.step, copy.tag.part}].assign(copy.body.begin(), copy.body.end());
    });
  }

  Replica replica_;
  History history_;
  std::optional<RoundsFirstRank> first_rank_;
  uint64_t epoch_ = 0;
  Incarnations members_of_round_;
  std::vector<std::byte> own_;                                            // the message of the round
  std::map<int64_t, std::vector<std::vector<std::byte>>> for_copies_;     // step -> by island
  std::map<std::pair<int64_t, int32_t>, std::vector<std::byte>> copies_;  // step and island
  int64_t bytes_ = 0;                                                     // of messages that were sent
  bool wants_to_stop_ = false;
  std::optional<int64_t> position_;  // after coming back to the others
  RoundTrouble trouble_;
  StepMetrics metrics_;
};

}  // namespace

std::unique_ptr<Sync> make_one_byte_rounds(const SyncOptions& options, Replica replica) {
  return std::make_unique<IslandRounds>(options, replica);
}

}  // namespace cairn::sync
