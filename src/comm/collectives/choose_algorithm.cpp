// A latency-bandwidth cost model (Hockney's alpha-beta model, with an overhead per message as in LogGP):
//
//   T = L a + max(m, M c / n) o + B b (1 + g (q - 1))
//
//   L  latencies one after the other          a  latency of a message
//   m  messages that one rank handles         o  overhead per message; M, all messages, counts where c ranks share a core
//   B  bytes through one rank's link          b  seconds per byte
//   q  peers a rank hears from at once        g  extra wire time per further peer (incast)
// Each algorithm below gives L, m, M, B, q of its slowest rank.
#include "comm/collectives/choose_algorithm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>

namespace cairn::comm {
namespace {

// The critical path: what the slowest rank of an algorithm goes through.
struct CriticalPath {
  double latencies = 0;   // L
  double messages = 0;    // m
  double all = 0;         // M
  double wire_bytes = 0;  // B, one way
  double peers = 1;       // q
};

std::chrono::nanoseconds path_time(const CriticalPath& path, int ranks, const LinkFacts& facts) {
  const auto latency = static_cast<double>(facts.latency.count()), overhead = static_cast<double>(facts.overhead.count());
  const double handled = std::max(path.messages, path.all * facts.ranks_per_core / ranks);
  const double wire = path.wire_bytes / facts.bytes_per_s * 1e9 * (1 + facts.incast_penalty * std::max(0.0, path.peers - 1));
  return std::chrono::nanoseconds(static_cast<int64_t>(path.latencies * latency + handled * overhead + wire));
}

double pieces_of(int64_t bytes, const Chunking& pieces) {
  return static_cast<double>(std::max<int64_t>(1, (bytes + pieces.bytes - 1) / pieces.bytes));
}

int levels_below(int ranks) { return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks))) - 1; }  // floor(log2)
int levels_above(int ranks) { return static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))); }  // ceil(log2)

template <typename Algorithm>
Algorithm cheapest(std::initializer_list<Algorithm> algorithms, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  return *std::min_element(algorithms.begin(), algorithms.end(), [&](Algorithm a, Algorithm b) {
    return cost(a, bytes, ranks, pieces, facts) < cost(b, bytes, ranks, pieces, facts);
  });
}

}  // namespace

std::chrono::nanoseconds cost(AllReduce algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= 1) return {};
  const double n = ranks, s = static_cast<double>(bytes);
  const double parts = pieces_of(bytes / ranks, pieces), slabs = pieces_of(bytes, pieces);
  switch (algorithm) {
    case AllReduce::direct: {
      const double messages = 2 * (n - 1) * parts;
      return path_time({2, messages, n * messages, 2 * (n - 1) / n * s, n - 1}, ranks, facts);
    }
    case AllReduce::ring: {
      const double messages = 2 * (n - 1) * parts;
      return path_time({2 * (n - 1), messages, n * messages, 2 * (n - 1) / n * s, 1}, ranks, facts);
    }
    case AllReduce::halving: {
      const double levels = levels_below(ranks), power = std::bit_floor(static_cast<unsigned>(ranks)), extra = n - power;
      const double rounds = 2 * levels + (extra > 0 ? 2 : 0);
      const double wire = 2 * (power - 1) / power * s + (extra > 0 ? 2 * s : 0);
      return path_time({rounds, rounds * slabs, (power * 2 * levels + 2 * extra) * slabs, wire, levels}, ranks, facts);
    }
    case AllReduce::tree:
      break;
  }
  const double levels = levels_above(ranks);
  return path_time({2 * levels, 2 * levels * slabs, 2 * (n - 1) * slabs, 2 * levels * s, levels}, ranks, facts);
}

std::chrono::nanoseconds cost(AllGather algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= 1) return {};
  const double n = ranks, wire = static_cast<double>(bytes) * (n - 1) / n;
  const double parts = pieces_of(bytes / ranks, pieces), levels = levels_above(ranks);
  switch (algorithm) {
    case AllGather::direct:
      return path_time({1, n - 1, n * (n - 1), wire, n - 1}, ranks, facts);
    case AllGather::ring:
      return path_time({n - 1, (n - 1) * parts, n * (n - 1) * parts, wire, 1}, ranks, facts);
    case AllGather::doubling:
      break;
  }
  return path_time({levels, levels, n * levels, 2 * wire, 1}, ranks, facts);  // twice: the last copy costs as much
}

std::chrono::nanoseconds cost(Broadcast algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= 1) return {};
  const double n = ranks, s = static_cast<double>(bytes), levels = levels_above(ranks), slabs = pieces_of(bytes, pieces);
  if (algorithm == Broadcast::flat) return path_time({1, n - 1, n - 1, (n - 1) * s, 1}, ranks, facts);
  return path_time({levels, levels * slabs, (n - 1) * slabs, levels * s, 1}, ranks, facts);
}

std::chrono::nanoseconds cost(ReduceTo algorithm, int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= 1) return {};
  const double n = ranks, s = static_cast<double>(bytes);
  const double parts = pieces_of(bytes / ranks, pieces), slabs = pieces_of(bytes, pieces);
  if (algorithm == ReduceTo::flat) return path_time({1, (n - 1) * slabs, (n - 1) * slabs, (n - 1) * s, n - 1}, ranks, facts);
  return path_time({2, 2 * (n - 1) * parts, (n + 1) * (n - 1) * parts, 2 * (n - 1) / n * s, n - 1}, ranks, facts);
}

AllReduce choose_all_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= kDirectRanks) return AllReduce::direct;
  return cheapest({AllReduce::direct, AllReduce::ring, AllReduce::halving, AllReduce::tree}, bytes, ranks, pieces, facts);
}

AllGather choose_all_gather(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= kDirectRanks) return AllGather::direct;
  return cheapest({AllGather::direct, AllGather::ring, AllGather::doubling}, bytes, ranks, pieces, facts);
}

Broadcast choose_broadcast(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  if (ranks <= kDirectRanks) return Broadcast::flat;
  return cheapest({Broadcast::flat, Broadcast::tree}, bytes, ranks, pieces, facts);
}

ReduceTo choose_reduce(int64_t bytes, int ranks, const Chunking& pieces, const LinkFacts& facts) {
  return cheapest({ReduceTo::flat, ReduceTo::spread}, bytes, ranks, pieces, facts);
}

int64_t choose_scan_blocks(int64_t bytes, int ranks, const LinkFacts& facts) {
  constexpr int64_t kBlocksMax = 64, kBlockBytesMin = 16 << 10;
  const double overhead_s = std::max(1e-9, static_cast<double>(facts.overhead.count()) * 1e-9);
  const double wire_s = static_cast<double>(bytes) / facts.bytes_per_s;
  const auto best =
      static_cast<int64_t>(std::lround(std::min<double>(kBlocksMax, std::sqrt(std::max(0, ranks - 2) * wire_s / overhead_s))));
  return std::clamp<int64_t>(best, 1, std::clamp<int64_t>(bytes / kBlockBytesMin, 1, kBlocksMax));
}

std::chrono::nanoseconds scan_cost(int64_t bytes, int ranks, int64_t blocks, const LinkFacts& facts) {
  if (ranks <= 1) return {};
  const double hops = ranks - 1, block_ns = static_cast<double>(bytes) / static_cast<double>(blocks) / facts.bytes_per_s * 1e9;
  const double round_ns = block_ns + static_cast<double>(facts.overhead.count());
  return std::chrono::nanoseconds(
      static_cast<int64_t>((hops + static_cast<double>(blocks - 1)) * round_ns + hops * static_cast<double>(facts.latency.count())));
}

std::string_view name(AllReduce algorithm) {
  constexpr std::array<std::string_view, 4> names{"direct", "ring", "halving", "tree"};
  return names.at(static_cast<size_t>(algorithm));
}

}  // namespace cairn::comm
