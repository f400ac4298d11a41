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

// What a round was like, seen from one machine.
struct RoundFacts {
  uint32_t round = 0;
  int64_t machines = 0, samples = 0;                      // that counted
  double mean_loss = 0;                                   // over the machines that counted
  double slope_min = 0, slope_median = 0, slope_max = 0;  // of its own slopes' sizes
  int64_t clipped = 0, not_finite = 0;
  double change_median = 0;  // |above - below| / |above|: below 1e-5 eps is too small for the loss's precision
  double forward_s = 0, replay_s = 0;
  bool counted = true;        // its own message did
  bool repaired = false;      // its weights differed from most machines' and were made again
  std::string differed = {};  // in that case: the first parameter that did
  bool out = false;           // the others go on without it: join() to come back
};

// One machine of a run that exchanges slopes. Each round every member sends one message to every other; the leader (the member with the
// lowest number that lives) says which of them count; all apply exactly those. Who misses one asks for it. A message that is late does
// not count; a machine that misses three rounds, or is lost, is no member any more. Members compare a hash of their weights now and then:
// who differs from most builds its weights again from the base and the log.
//
// Not decided by vote: where a leader is cut off but lives, two may lead for a while, and then the hashes differ.
class OneByte {
 public:
  struct Setting {
    comm::World& world;
    comm::Mailbox& mailbox;
    OneByteReplica& replica;
    uint32_t machine = 0;
    LossAt loss;
    std::function<float(uint32_t round)> rate;  // the learning rate
    std::function<void()> load_base;            // puts the weights of round 0 back
    uint16_t weight = 1;                        // how much a slope of this machine counts
    bool has_data = true;                       // without, it sends no slopes but takes part
    std::filesystem::path log = {};             // where rounds are appended as they happen; empty: kept in memory alone
  };

  explicit OneByte(Setting setting);

  // Founds a run with these members, of which this is one. All begin with the base.
  void start(std::vector<uint32_t> members);
  // Asks to be let in, gets the rounds that it lacks, replays them. Tries again until `within` is over. Throws bad_input where the others
  // refuse it, saying why.
  void join(std::chrono::nanoseconds within);
  // Replays rounds that were kept, the first being the one that comes next here. Tells nobody.
  void replay(std::span<const std::byte> log);
  // Takes part in one round.
  RoundFacts round();
  void leave();  // the others are told

  uint32_t next_round() const { return round_; }
  const std::vector<uint32_t>& members() const { return members_; }
  bool leads() const { return leader() == setting_.machine; }
  const std::vector<std::byte>& log() const { return log_; }

 private:
  using Deadline = std::chrono::nanoseconds;

  uint32_t leader() const;  // the lowest member that lives
  bool is_alive(uint32_t machine) const;
  // Handles what comes until the condition holds or the time is over; whether it holds.
  bool handle_until(Deadline until, const std::function<bool()>& condition);
  void handle_waiting();  // what has come already
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
  void take_over();       // asks whether the leader before had decided already
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
  std::map<uint32_t, std::map<uint32_t, std::vector<std::byte>>> messages_;  // round -> machine -> as it came
  std::map<uint32_t, RoundManifest> manifests_;                              // of rounds not yet applied
  std::map<uint32_t, std::map<uint32_t, uint64_t>> hashes_;                  // round -> machine -> hash
  std::map<uint32_t, std::vector<uint64_t>> tensor_hashes_;                  // as another machine has them
  std::set<uint32_t> silent_;                                                // who answered that it has no manifest of this round
  std::map<uint32_t, uint32_t> joining_;                                     // machine -> rounds it has
  std::set<uint32_t> suspected_;                                             // leaders that were silent for too long
  std::map<uint32_t, uint32_t> promised_;                                    // round -> who took over: nobody before it is believed
  std::map<uint32_t, int64_t> missed_;                                       // rounds in a row that a member has missed
  std::map<uint32_t, uint64_t> greeted_;                                     // machine -> its contract
  uint64_t base_hash_ = 0;
  std::vector<std::byte> welcome_;
  std::string refusal_;
};

}  // namespace cairn::sync
