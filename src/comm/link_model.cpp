// The model of a link. A message of B bytes that is sent at time t leaves and arrives at
//
//   left    = max(t, link free) + B / bandwidth                      link free: of the pair, or of the sender's NIC (per_nic)
//   arrives = left + latency * exp(sigma z) * (1 + jitter u) + resends      z standard normal, u uniform in [0, 1)
//   done    = max(arrives, NIC of the receiver free + B / bandwidth)        per_nic only
// Resends: of k packets, with loss probability p, all get through with probability (1-p)^k. Otherwise a round trip is added if at least
// four packets were sent (fast retransmit), else retransmit_after * 2^i; then about p k packets are sent again, up to 12 times.
#include "comm/link_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace cairn::comm {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

constexpr int64_t kPacketBytes = 1460;       // what an Ethernet frame carries of a TCP stream
constexpr int64_t kPacketsThatTell = 4;      // a lost packet and the three after it: fast retransmit
constexpr int kResendsMax = 12;              // after that many losses a message gets through
constexpr int kDoublingsMax = 6;             // of retransmit_after
constexpr uint64_t kNumbersPerMessage = 16;  // random indices per message
constexpr double kSigmasBelow = 4;           // log-normal latencies are cut off here: simulations need a lower bound

Nanoseconds whole(double ns) { return Nanoseconds(static_cast<int64_t>(ns)); }

Nanoseconds least_of(const LinkModel& model) {
  Nanoseconds least = model.latency_matrix.empty() ? model.latency : Nanoseconds::max();
  for (size_t from = 0; from < model.latency_matrix.size(); ++from) {
    for (size_t to = 0; to < model.latency_matrix.size(); ++to) {
      if (from != to) least = std::min(least, model.latency_matrix[from][to]);
    }
  }
  if (least == Nanoseconds::max()) return model.latency_matrix[0][0];  // one rank
  return whole(static_cast<double>(least.count()) * std::exp(-kSigmasBelow * model.latency_sigma));
}

double bandwidth_of(const LinkModel& model, int from, int to) {
  return model.bytes_per_s_matrix.empty() ? model.bytes_per_s
                                          : model.bytes_per_s_matrix[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

void check_bandwidths(const LinkModel& model, int ranks) {
  const auto& matrix = model.bytes_per_s_matrix;
  if (matrix.empty()) return;
  if (static_cast<int>(matrix.size()) != ranks) base::fail_input("link.bytes_per_s_matrix has {} rows for {} ranks", matrix.size(), ranks);
  for (const auto& row : matrix) {
    if (static_cast<int>(row.size()) != ranks) base::fail_input("link.bytes_per_s_matrix has a row of {} for {} ranks", row.size(), ranks);
    for (const double one : row)
      if (!(one > 0)) base::fail_input("link.bytes_per_s_matrix holds {}: must be above 0", one);
  }
}

}  // namespace

namespace {

void check_planes(const LinkModel& model) {
  for (const double one : model.planes)
    if (!(one > 0)) base::fail_input("link.planes holds {}: must be above 0", one);
  if (!model.planes.empty() && !model.bytes_per_s_matrix.empty())
    base::fail_input("link.planes with link.bytes_per_s_matrix: a pair has one bandwidth or one for each plane. Use one of them");
  for (const LinkModel::PlaneChange& change : model.plane_changes)
    if (change.plane < 0 || change.plane >= static_cast<int>(model.planes.size()) || !(change.factor >= 0))
      base::fail_input("link.plane_changes: plane {} of {} by {}: must be a plane and a factor of at least 0", change.plane,
                       model.planes.size(), change.factor);
}

}  // namespace

void check(const LinkModel& model, int ranks) {
  CAIRN_CHECK(ranks >= 1, "links among {} ranks", ranks);
  if (!(model.bytes_per_s > 0)) base::fail_input("link.bytes_per_s = {}: must be above 0", model.bytes_per_s);
  if (model.latency.count() < 0) base::fail_input("link.latency = {} ns: must not be negative", model.latency.count());
  if (!(model.jitter >= 0)) base::fail_input("link.jitter = {}: must not be negative", model.jitter);
  if (!(model.latency_sigma >= 0)) base::fail_input("link.latency_sigma = {}: must not be negative", model.latency_sigma);
  if (!(model.loss >= 0 && model.loss <= 0.5)) base::fail_input("link.loss = {}: must be between 0 and 0.5", model.loss);
  if (model.retransmit_after.count() <= 0) {
    base::fail_input("link.retransmit_after = {} ns: must be above 0", model.retransmit_after.count());
  }
  check_bandwidths(model, ranks);
  check_planes(model);
  const auto& matrix = model.latency_matrix;
  if (matrix.empty()) return;
  if (static_cast<int>(matrix.size()) != ranks) base::fail_input("link.latency_matrix has {} rows for {} ranks", matrix.size(), ranks);
  for (const auto& row : matrix) {
    if (static_cast<int>(row.size()) != ranks) base::fail_input("link.latency_matrix has a row of {} for {} ranks", row.size(), ranks);
    for (const Nanoseconds one : row) {
      if (one.count() < 0) base::fail_input("link.latency_matrix holds {} ns: must not be negative", one.count());
    }
  }
}

Shaper::Shaper(LinkModel model, int ranks, uint64_t seed)
    : model_(std::move(model)), random_(base::Random(seed).for_purpose("links")), ranks_(static_cast<size_t>(std::max(ranks, 0))) {
  check(model_, ranks);
  least_latency_ = least_of(model_);
}

LinkFacts facts_of(const LinkModel& model, const std::vector<int>& ranks) {
  LinkFacts facts;
  Nanoseconds latency = model.latency;
  if (!model.latency_matrix.empty()) {  // of neighbours in the ring
    latency = {};
    for (size_t i = 0; i < ranks.size(); ++i) latency = std::max(latency, model.latency_matrix[ranks[i]][ranks[(i + 1) % ranks.size()]]);
  }
  facts.latency = whole(static_cast<double>(latency.count()) * (1 + model.jitter / 2));
  facts.shared_card = model.contention == LinkModel::Contention::per_nic;
  facts.bytes_per_s = model.planes.empty() ? model.bytes_per_s : std::accumulate(model.planes.begin(), model.planes.end(), 0.0);
  for (size_t i = 0; i < ranks.size() && !model.bytes_per_s_matrix.empty(); ++i) {
    const double next = bandwidth_of(model, ranks[i], ranks[(i + 1) % ranks.size()]);
    facts.bytes_per_s = i == 0 ? next : std::min(facts.bytes_per_s, next);
  }
  return facts;
}

namespace {
constexpr Nanoseconds kBurst = std::chrono::microseconds(100);
constexpr Nanoseconds kNever = std::chrono::hours(24);  // what a plane takes that passes nothing
}  // namespace

double Shaper::bytes_per_s(int from, int to, Nanoseconds now, int plane) const {
  if (model_.planes.empty()) return bandwidth_of(model_, from, to);
  plane %= static_cast<int>(model_.planes.size());
  const double rate = model_.planes[static_cast<size_t>(plane)];
  double factor = 1;
  for (const LinkModel::PlaneChange& change : model_.plane_changes)
    if (change.plane == plane && now >= change.after) factor = change.factor;
  return rate * factor;
}

Shaper::Transit Shaper::send(int from, int to, int64_t bytes, Nanoseconds now, int plane) {
  Link& way = link(from, to);
  const uint64_t number = way.messages++;
  const double slowdown = std::max(ranks_[from].slowdown, ranks_[to].slowdown);
  std::vector<Nanoseconds>& ports = model_.contention == LinkModel::Contention::per_pair ? way.free : ranks_[from].out_free;
  ports.resize(std::max<size_t>(model_.planes.size(), 1));
  plane %= static_cast<int>(ports.size());
  Nanoseconds& free = ports[static_cast<size_t>(plane)];
  const double rate = bytes_per_s(from, to, now, plane);
  free = std::max(free, now) + (rate > 0 ? wire_time(bytes, rate, slowdown) : kNever);
  if (model_.latency_sigma == 0 || number == 0 || now - way.handed_in > kBurst) way.burst = number;
  way.handed_in = now;
  const double latency = latency_ns(way, from, to, way.burst) * slowdown;
  Transit passage{.left = free, .arrives = free + whole(latency)};
  if (model_.loss > 0) {
    passage.arrives += resend_delay(way, number, bytes, latency, passage.resends);
    if (passage.resends > 0) way.resent = std::max(way.resent, passage.arrives);
    passage.arrives = std::max(passage.arrives, way.resent);
  }
  return passage;
}

Nanoseconds Shaper::receive(int from, int to, int64_t bytes, Nanoseconds arrives) {
  if (model_.contention == LinkModel::Contention::per_pair || !model_.planes.empty()) return arrives;
  Rank& card = ranks_[to];
  const Nanoseconds needs = wire_time(bytes, bandwidth_of(model_, from, to), card.slowdown);
  const Nanoseconds done = std::max(card.in_free + needs, arrives);
  if (needs > Nanoseconds(0)) card.in_free = done;  // an empty message passes a card that larger ones are still entering
  return done;
}

void Shaper::slow_down(int rank, double factor) {
  CAIRN_CHECK(factor >= 1, "link: slowed down by {}: must be at least 1", factor);
  ranks_[rank].slowdown = factor;
}

Shaper::Link& Shaper::link(int from, int to) {
  std::vector<Link>& links = ranks_[from].links;
  if (links.empty()) {
    links.resize(ranks_.size());
    for (size_t peer = 0; peer < links.size(); ++peer) {
      const base::Random pair = random_.for_index(static_cast<uint64_t>(from)).for_index(peer);
      links[peer].even = pair.for_name("even");
      links[peer].normal = pair.for_name("normal");
    }
  }
  return links[to];
}

Nanoseconds Shaper::wire_time(int64_t bytes, double bytes_per_s, double slowdown) {
  return whole(static_cast<double>(bytes) / bytes_per_s * 1e9 * slowdown);
}

double Shaper::latency_ns(const Link& link, int from, int to, uint64_t number) const {
  const Nanoseconds base = model_.latency_matrix.empty() ? model_.latency : model_.latency_matrix[from][to];
  double latency = static_cast<double>(base.count());
  if (model_.latency_sigma > 0) {
    latency *= std::exp(model_.latency_sigma * std::max<double>(link.normal.normal(number), -kSigmasBelow));
  }
  if (model_.jitter > 0) latency *= 1 + model_.jitter * link.even.uniform(number * kNumbersPerMessage);
  return latency;
}

Nanoseconds Shaper::resend_delay(const Link& link, uint64_t number, int64_t bytes, double latency_ns, int& resends) const {
  int64_t packets = std::max<int64_t>(1, (bytes + kPacketBytes - 1) / kPacketBytes);
  Nanoseconds delay{};
  while (resends < kResendsMax) {
    const double all_through = std::pow(1 - model_.loss, static_cast<double>(packets));
    if (link.even.uniform(number * kNumbersPerMessage + 1 + static_cast<uint64_t>(resends)) < all_through) break;
    const Nanoseconds round_trip = whole(2 * latency_ns);
    delay +=
        packets >= kPacketsThatTell ? round_trip : std::max(model_.retransmit_after, round_trip) * (1 << std::min(resends, kDoublingsMax));
    packets = std::max<int64_t>(1, std::llround(static_cast<double>(packets) * model_.loss));
    resends += 1;
  }
  return delay;
}

}  // namespace cairn::comm
