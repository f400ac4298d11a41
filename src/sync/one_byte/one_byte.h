#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/mailbox.h"
#include "sync/one_byte/replica.h"

namespace cairn::comm {
class World;
}

namespace cairn::sync {

// Facts about a round, as one machine sees it.
struct RoundFacts {
  uint32_t round = 0;
  int64_t machines = 0, samples = 0;                      // whose messages counted
  double mean_loss = 0;                                   // over the machines that counted
  double slope_min = 0, slope_median = 0, slope_max = 0;  // absolute values of its own slopes
  int64_t clipped = 0, not_finite = 0;
  double change_median = 0;  // |above - below| / |above|; below 1e-5 eps is too small for the precision of the loss
  double forward_s = 0, replay_s = 0;
  bool included = true;       // its own message counted
  bool repaired = false;      // its weights differed from most machines' and were rebuilt
  std::string differed = {};  // in that case: the first parameter that differed
  bool out = false;           // the others go on without it: join() to come back
};

// One machine of a run that exchanges slopes (replica.h). The protocol of a round is described in one_byte.cpp. Used from one thread.
class OneByte {
 public:
  struct Setting {
    comm::World& world;
    comm::Mailbox& mailbox;
    OneByteReplica& replica;
    uint32_t machine = 0;
    LossAt loss;
    std::function<float(uint32_t round)> rate;  // the learning rate
    std::function<void()> load_base;            // restores the weights of round 0
    uint16_t weight = 1;                        // of this machine's slopes
    bool has_data = true;                       // false: it takes part but sends no slopes
    std::filesystem::path log = {};             // rounds are appended to this file; empty: they are kept in memory only
  };

  explicit OneByte(Setting setting);

  // Starts a run with these members, this machine among them. All begin with the base weights.
  void start(std::vector<uint32_t> members);
  // Joins a run: asks the leader, receives the rounds that it lacks and replays them. Retries for this long. Throws bad_input, with the
  // reason, if the others refuse it.
  void join(std::chrono::nanoseconds within);
  // Replays rounds of a log, starting with this machine's next round. Sends nothing.
  void replay(std::span<const std::byte> log);
  // Takes part in one round.
  RoundFacts round();
  void leave();  // tells the others

  uint32_t next_round() const { return round_; }
  const std::vector<uint32_t>& members() const { return members_; }
  bool leads() const { return leader() == setting_.machine; }
  const std::vector<std::byte>& log() const { return log_; }

 private:
  using Deadline = std::chrono::nanoseconds;

  uint32_t leader() const;  // the lowest live member
  bool is_alive(uint32_t machine) const;
  // Handles messages until the condition holds or the time is over. Returns whether it holds.
  bool handle_until(Deadline until, const std::function<bool()>& condition);
  void handle_waiting();  // the messages that have arrived
  void handle(const comm::Request& request);
  void handle(const comm::MailboxMessage& mail);
  void send_to(uint32_t machine, std::string_view tag, std::vector<std::byte> body, comm::Purpose purpose = comm::Purpose::control);
  void send_to_members(std::string_view tag, const std::vector<std::byte>& body, comm::Purpose purpose = comm::Purpose::control);
  void on_slopes(const comm::MailboxMessage& mail);
  void on_join(uint32_t machine, const std::vector<uint64_t>& asked);
  void answer_about_manifest(uint32_t machine, uint32_t round);
  const RoundManifest* known_manifest(uint32_t round);

  void send_slopes(RoundFacts& facts);
  void await_manifest();  // until this round's manifest is here
  void take_over();       // as a new leader: asks whether the one before had decided
  RoundManifest decide();
  std::vector<uint32_t> next_members() const;
  void complete_messages();
  void apply(const RoundRecord& record);
  void finish_round(RoundFacts& facts);
  void welcome();
  void compare_hashes(const std::vector<uint32_t>& voters, RoundFacts& facts);
  void rebuild();
  Deadline now() const;
  Deadline timeout() const;

  Setting setting_;
  std::unique_ptr<comm::Node> node_;
  uint32_t round_ = 0;
  std::vector<uint32_t> members_;
  std::vector<std::byte> log_;
  std::vector<size_t> record_begins_;                                        // by round, in log_
  std::map<uint32_t, std::map<uint32_t, std::vector<std::byte>>> messages_;  // round -> machine -> encoded
  std::map<uint32_t, RoundManifest> manifests_;                              // of rounds not yet applied
  std::map<uint32_t, std::map<uint32_t, uint64_t>> hashes_;                  // round -> machine -> hash
  std::map<uint32_t, std::vector<uint64_t>> tensor_hashes_;                  // of another machine
  std::set<uint32_t> silent_;                                                // machines without a manifest of this round
  std::map<uint32_t, uint32_t> joining_;                                     // machine -> rounds that it has
  std::set<uint32_t> suspected_;                                             // leaders that were silent for too long
  std::map<uint32_t, uint32_t> promised_;  // round -> the highest leader that asked: manifests of earlier ones are ignored
  std::map<uint32_t, int64_t> missed_;     // rounds in a row that a member has missed
  std::map<uint32_t, uint64_t> greeted_;   // machine -> its fingerprint
  uint64_t base_hash_ = 0;
  std::vector<std::byte> welcome_;
  std::string refusal_;
};

}  // namespace cairn::sync
