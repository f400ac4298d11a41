#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "comm/link_facts.h"

namespace cairn::comm {

// What the links between ranks are like: a plain value, for simulated networks and for shaping real ones.
struct LinkModel {
  enum class Contention : uint8_t { per_pair, per_nic };

  std::chrono::nanoseconds latency = std::chrono::microseconds(20);  // of a message of no length; the median where latency_sigma > 0
  double bytes_per_s = 10e9;
  std::vector<std::vector<double>> bytes_per_s_matrix = {};  // [from][to], in place of `bytes_per_s`; empty: all pairs alike
  double jitter = 0.5;                                       // up to this share of the latency is added, evenly
  // Above 0 the latency is log-normal: latency * exp(latency_sigma * z), z standard normal. Messages that are handed in within 0.1 ms of
  // each other are of one burst, which meets one delay.
  double latency_sigma = 0;
  std::vector<std::vector<std::chrono::nanoseconds>> latency_matrix = {};  // [from][to], in place of `latency`; empty: all pairs alike
  // Probability that a packet (1,460 bytes) is lost. Links are reliable streams, so data still arrives, later: as TCP would, the sender
  // sends again after a round trip where later packets tell it of the gap, else after retransmit_after, doubled each time; and what
  // follows on that link waits for what is sent again.
  double loss = 0;
  std::chrono::nanoseconds retransmit_after = std::chrono::milliseconds(200);
  // pair: each direction of each pair has the bandwidth to itself. card: all links of a rank share its card's, in and out separately.
  Contention contention = Contention::per_pair;

  bool operator==(const LinkModel&) const = default;
};

// Refuses what no link is like, naming the field.
void check(const LinkModel& model, int ranks);

// What collectives among these ranks should know of such links. The same on all of them.
LinkFacts facts_of(const LinkModel& model, const std::vector<int>& ranks);

// Says when messages leave and arrive on links of this model. Chance enters as a function of the seed, the pair and the message's number
// on it alone: the same messages at the same times fare alike, whatever else happens. Made for one world of ranks on a simulated network,
// or by each rank of a real one for the messages it sends and receives.
class Shaper {
 public:
  struct Transit {
    std::chrono::nanoseconds left{};     // the sender's side is free for the next message
    std::chrono::nanoseconds arrives{};  // the last byte, where the receiver's card has nothing else to do
    int resends = 0;                     // how often some of it was lost and sent again
  };

  Shaper(LinkModel model, int ranks, uint64_t seed);

  // A message handed in now. Calls for one sender come in the order of their times.
  Transit send(int from, int to, int64_t bytes, std::chrono::nanoseconds now);
  // When the receiver's card is done with a message: later than `arrives` where the card is shared and busy.
  std::chrono::nanoseconds receive(int to, int64_t bytes, std::chrono::nanoseconds arrives);

  // No message arrives sooner than this after it was handed in.
  std::chrono::nanoseconds least_latency() const { return least_latency_; }
  // From now on the links of this rank take `factor` (at least 1) times as long.
  void slow_down(int rank, double factor);

  const LinkModel& model() const { return model_; }

 private:
  struct Link {
    base::Random even, normal;  // chance of this pair
    std::chrono::nanoseconds free{};
    std::chrono::nanoseconds resent{};  // when the last message that was sent again arrives
    uint64_t messages = 0;
    uint64_t burst = 0;  // number of its first message
    std::chrono::nanoseconds handed_in{};
  };
  struct Rank {
    std::vector<Link> links;  // to each rank; made with the first message
    std::chrono::nanoseconds out_free{};
    std::chrono::nanoseconds in_free{};
    double slowdown = 1;
  };

  Link& link(int from, int to);
  static std::chrono::nanoseconds wire_time(int64_t bytes, double bytes_per_s, double slowdown);
  double latency_ns(const Link& link, int from, int to, uint64_t number) const;
  std::chrono::nanoseconds resend_delay(const Link& link, uint64_t number, int64_t bytes, double latency_ns, int& resends) const;

  LinkModel model_;
  base::Random random_;
  std::vector<Rank> ranks_;
  std::chrono::nanoseconds least_latency_;
};

}  // namespace cairn::comm
