#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "comm/link_facts.h"

namespace cairn::comm {

// A model of the links between ranks: a plain value, for simulated networks and for shaping real ones.
struct LinkModel {
  enum class Contention : uint8_t { per_pair, per_nic };

  std::chrono::nanoseconds latency = std::chrono::microseconds(20);  // of an empty message; the median if latency_sigma > 0
  double bytes_per_s = 10e9;
  std::vector<std::vector<double>> bytes_per_s_matrix = {};  // [from][to], replaces `bytes_per_s`; empty: all pairs are equal
  double jitter = 0.5;                                       // adds up to this fraction of the latency, uniformly
  // Above 0 the latency is log-normal: latency * exp(latency_sigma * z), z standard normal. Messages sent within 0.1 ms of each other form
  // a burst and get the same delay.
  double latency_sigma = 0;
  std::vector<std::vector<std::chrono::nanoseconds>> latency_matrix = {};  // [from][to], replaces `latency`; empty: all pairs are equal
  // Probability that a packet (1,460 bytes) is lost. Links are reliable like TCP: a lost packet is sent again, after a round trip if later
  // packets reveal the gap, else after retransmit_after, doubled each time; later data of that link waits for it.
  double loss = 0;
  std::chrono::nanoseconds retransmit_after = std::chrono::milliseconds(200);
  // per_pair: each direction of each pair has the bandwidth to itself. per_nic: all links of a rank share its NIC, in and out separately; a
  // message keeps both NICs busy for its bytes over the bandwidth of its pair, so links with a bandwidth of their own (inside a machine)
  // load them by that.
  Contention contention = Contention::per_pair;
  // Bandwidths of parallel planes (interfaces), which replace `bytes_per_s`; empty: there is one plane. Each plane has its own NICs, so
  // with per_nic all channels of a rank on one plane share that plane's port on the way out; the way in is not shared then.
  std::vector<double> planes = {};
  // From `after` on (on the clock of `now` in send) a plane has `factor` of its bandwidth; 0: nothing passes any more.
  struct PlaneChange {
    int plane = 0;
    std::chrono::nanoseconds after{};
    double factor = 1;
    bool operator==(const PlaneChange&) const = default;
  };
  std::vector<PlaneChange> plane_changes = {};

  bool operator==(const LinkModel&) const = default;
};

// Refuses impossible values and names the field.
void check(const LinkModel& model, int ranks);

// The costs for collectives among these ranks. The same on all of them.
LinkFacts facts_of(const LinkModel& model, const std::vector<int>& ranks);

// Computes when messages leave and arrive under a LinkModel. Random delays depend only on the seed, the pair and the message's number on
// it, so that equal traffic gets equal times. One object serves all ranks of a simulated network, or one rank of a real network.
class Shaper {
 public:
  struct Transit {
    std::chrono::nanoseconds left{};     // the sender's link is free for the next message
    std::chrono::nanoseconds arrives{};  // the last byte, if the receiver's NIC is idle
    int resends = 0;                     // how often a part of it was lost and sent again
  };

  Shaper(LinkModel model, int ranks, uint64_t seed);

  // A message sent at `now`. Calls for one sender must be in the order of time.
  Transit send(int from, int to, int64_t bytes, std::chrono::nanoseconds now, int plane = 0);
  // Of one plane, now; 0: nothing passes.
  double bytes_per_s(int from, int to, std::chrono::nanoseconds now, int plane) const;
  // When the receiver's NIC is done with a message: later than `arrives` if the NIC is shared and busy.
  std::chrono::nanoseconds receive(int from, int to, int64_t bytes, std::chrono::nanoseconds arrives);

  // A lower bound on the time from send to arrival.
  std::chrono::nanoseconds least_latency() const { return least_latency_; }
  // From now on the links of this rank are `factor` (at least 1) times slower.
  void slow_down(int rank, double factor);

  const LinkModel& model() const { return model_; }

 private:
  struct Link {
    base::Random even, normal;                   // random numbers of this pair
    std::vector<std::chrono::nanoseconds> free;  // by plane
    std::chrono::nanoseconds resent{};           // arrival of the last message that was sent again
    uint64_t messages = 0;
    uint64_t burst = 0;  // number of its first message
    std::chrono::nanoseconds handed_in{};
  };
  struct Rank {
    std::vector<Link> links;                         // to each rank; made at the first message
    std::vector<std::chrono::nanoseconds> out_free;  // by plane
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
