// The traffic half of C4: planned paths against hashed ones, in a simulated Clos fabric and on real sockets. The planner is the same object
// in both (comm/net/path_planner.h). Numbers of the claims are those of the sheet.
#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "comm/clos_fabric.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "proofs/c4_parts.h"

namespace cairn::study {
namespace {

using namespace std::chrono_literals;

struct HostPair {
  int from, to;
};

// Bandwidth of the slowest of equal flows, which a ring waits for, as a fraction of `ideal`.
double bandwidth(const comm::ClosFabric& fabric, const std::vector<comm::FluidFlow>& flows, double ideal) {
  const std::vector<double> ends = comm::fluid_end_times(fabric.capacities(), flows);
  return 1 / *std::max_element(ends.begin(), ends.end()) / ideal;
}

std::vector<comm::FluidFlow> hashed(const comm::ClosFabric& fabric, const std::vector<HostPair>& pairs, uint64_t seed) {
  std::vector<comm::FluidFlow> flows;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [from, to] = pairs[i];
    flows.push_back({1, {fabric.paths(from, to)[static_cast<size_t>(fabric.hashed(seed, static_cast<int>(i), from, to))]}});
  }
  return flows;
}

struct PlannedFlows {
  comm::PathPlanner planner;
  std::vector<int> ids;

  PlannedFlows(const comm::ClosFabric& fabric, const std::vector<HostPair>& pairs, int channels) : planner(fabric.planner()) {
    for (const auto [from, to] : pairs) ids.push_back(planner.add_flow(1, fabric.paths(from, to), channels));
    planner.plan({});
  }
  std::vector<comm::FluidFlow> flows(const comm::ClosFabric& fabric, const std::vector<HostPair>& pairs) const {
    std::vector<comm::FluidFlow> flows;
    for (size_t i = 0; i < pairs.size(); ++i) {
      flows.push_back({1, {}});
      for (const int path : planner.paths_of(ids[i]))
        flows.back().channels.push_back(fabric.paths(pairs[i].from, pairs[i].to)[static_cast<size_t>(path)]);
    }
    return flows;
  }
};

std::vector<HostPair> across(int flows) {
  std::vector<HostPair> pairs;
  for (int i = 0; i < flows; ++i) pairs.push_back({i, flows + i});
  return pairs;
}

void one_job(const ProofOptions& options, Findings& findings) {
  const uint64_t seeds = options.full ? 20'000 : 2'000;
  struct Case {
    int flows, spines;
    double hashed;  // of the sheet
  };
  for (const Case& c : {Case{4, 4, 0.51}, Case{8, 8, 0.41}, Case{16, 8, 0.50}, Case{64, 8, 0.66}}) {
    const comm::ClosFabric fabric(2, c.spines, c.flows);
    const std::vector<HostPair> pairs = across(c.flows);
    const double ideal = std::min(1.0, static_cast<double>(c.spines) / c.flows);
    double sum = 0;
    for (uint64_t seed = 0; seed < seeds; ++seed) sum += bandwidth(fabric, hashed(fabric, pairs, options.seed * 1'000'003 + seed), ideal);
    const double ecmp = sum / static_cast<double>(seeds);
    findings.at_most(
        fmt::format("6. {} flows, {} spines: distance of the mean of {} hash seeds from {}", c.flows, c.spines, seeds, c.hashed), c.hashed,
        std::abs(ecmp - c.hashed), 0.02);
    const PlannedFlows plan(fabric, pairs, 1);
    findings.at_least(fmt::format("6. {} flows, {} spines: planned, of the ideal bandwidth (baseline: hashed)", c.flows, c.spines), ecmp,
                      bandwidth(fabric, plan.flows(fabric, pairs), ideal), 0.95);
  }
}

void link_failure(Findings& findings) {
  const std::vector<HostPair> pairs = across(8);
  comm::ClosFabric fabric(2, 8, 8);
  PlannedFlows one(fabric, pairs, 1), four(fabric, pairs, 4);
  const auto before = one.flows(fabric, pairs);
  fabric.set_capacity(fabric.up(0, 3), 0);
  const double stuck = bandwidth(fabric, before, 1);
  for (PlannedFlows* plan : {&one, &four}) {
    plan->planner.set_capacity(fabric.up(0, 3), 0);
    plan->planner.plan(1s);  // within the pause between plans: a lost path does not wait for it
  }
  const double fixed = bandwidth(fabric, one.flows(fabric, pairs), 1);
  findings.at_least("6. 1 of 8 links lost: bandwidth after a new assignment, 1 channel (baseline: without)", stuck, fixed, 0.5 - 1e-9);
  findings.at_least("6. 1 of 8 links lost: 4 channels that share by their rates (baseline: 1 channel)", fixed,
                    bandwidth(fabric, four.flows(fabric, pairs), 1), 0.80);
}

// Four jobs with one host on each of eight leaves; each is a ring over the leaves. Jobs come one after another.
void several_jobs(const ProofOptions& options, Findings& findings) {
  constexpr int kJobs = 4, kLeaves = 8;
  const comm::ClosFabric fabric(kLeaves, kJobs, kJobs);
  std::vector<HostPair> pairs;
  for (int job = 0; job < kJobs; ++job)
    for (int leaf = 0; leaf < kLeaves; ++leaf) pairs.push_back({leaf * kJobs + job, (leaf + 1) % kLeaves * kJobs + job});
  const auto mean = [&](const std::vector<comm::FluidFlow>& flows) {
    const std::vector<double> ends = comm::fluid_end_times(fabric.capacities(), flows);
    double sum = 0;
    for (int job = 0; job < kJobs; ++job)
      sum += 1 / *std::max_element(ends.begin() + job * kLeaves, ends.begin() + (job + 1) * kLeaves) / kJobs;
    return sum;
  };
  double ecmp = 0;
  constexpr uint64_t kSeeds = 200;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) ecmp += mean(hashed(fabric, pairs, options.seed * 7919 + seed)) / kSeeds;
  comm::PathPlanner planner = fabric.planner();
  std::vector<comm::FluidFlow> flows;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const int id = planner.add_flow(1, fabric.paths(pairs[i].from, pairs[i].to));
    planner.plan(std::chrono::seconds(i / kLeaves));
    flows.push_back({1, {fabric.paths(pairs[i].from, pairs[i].to)[static_cast<size_t>(planner.paths_of(id)[0])]}});
  }
  const double planned = mean(flows);
  findings.at_least("6. 4 jobs on 8 leaves: mean bandwidth of a job, planned over hashed (baseline: hashed, of the ideal)", ecmp,
                    planned / ecmp, 1.5);
}

// --- real sockets ------------------------------------------------------------------------------------------------------------------------

constexpr int kRanks = 4;
constexpr double kPlane = 12.5e6;  // 100 Mbit/s
constexpr int64_t kFloats = 4 << 20;

struct SocketRun {
  int warm_up = 1, calls = 1;
  std::optional<uint64_t> hash_seed = {};
  std::vector<comm::LinkModel::PlaneChange> changes = {};
  std::chrono::nanoseconds begin_at{};  // the calls that count begin then
};

struct SocketResult {
  double seconds = 0;     // of a call, the median
  int64_t bytes[2] = {};  // sent by all ranks on each plane, in the calls that count
  int lost = 0;           // channels
};

comm::NetOptions net_options(const SocketRun& run) {
  comm::NetOptions options{.channels = 2, .channel_stall = 1s, .hash_seed = run.hash_seed};
  options.links = comm::LinkModel{.latency = 100us,
                                  .jitter = 0,
                                  .contention = comm::LinkModel::Contention::per_nic,
                                  .planes = {kPlane, kPlane},
                                  .plane_changes = run.changes};
  return options;
}

// All-reduces of 16 MB over 4 ranks, each on a machine of its own with two interfaces, TLS between them.
SocketResult on_sockets(const SocketRun& run) {
  const std::vector<comm::NetSetup> setups = comm::make_net_setups({0, 1, 2, 3}, {"127.0.0.1", "127.0.0.2"});
  SocketResult result;
  std::mutex guard;
  std::exception_ptr failed;
  {
    std::vector<std::jthread> threads;
    for (const comm::NetSetup& setup : setups) {
      threads.emplace_back([&, setup] {
        try {
          comm::World world(comm::make_net_transport(setup, net_options(run)), {.deadline = 120s});
          std::vector<float> x(kFloats);
          std::vector<double> seconds;
          int64_t before[2] = {};
          const auto book = [&](int sign) {
            for (const auto& [_, one] : world.ledger().channels()) before[one.plane] += sign * one.bytes;
          };
          const auto call = [&] {
            std::fill(x.begin(), x.end(), static_cast<float>(world.rank() + 1));
            world.everyone().barrier().wait();
            const base::RealClock clock;
            world.everyone().all_reduce({x.data(), kFloats, comm::Dtype::f32}, comm::Reduce::sum, {comm::Purpose::data, "x"}).wait();
            const double took = base::seconds(clock.now());
            CAIRN_CHECK(std::all_of(x.begin(), x.end(), [](float one) { return one == 10; }), "a wrong sum");
            return took;
          };
          for (int i = 0; i < run.warm_up; ++i) call();
          for (float late = 1; late > 0;) {  // all ranks wait for the change alike
            late = world.clock().now() < run.begin_at ? 1 : 0;
            world.everyone().all_reduce({&late, 1, comm::Dtype::f32}, comm::Reduce::max, {comm::Purpose::control, "late"}).wait();
            if (late > 0) call();
          }
          if (run.begin_at > 0s) call();  // the first one after it
          book(-1);
          for (int i = 0; i < run.calls; ++i) seconds.push_back(call());
          book(1);
          std::sort(seconds.begin(), seconds.end());
          const std::lock_guard lock(guard);
          result.seconds = std::max(result.seconds, seconds[seconds.size() / 2]);
          for (const int plane : {0, 1}) result.bytes[plane] += before[plane];
          for (const auto& [_, one] : world.ledger().channels()) result.lost += one.lost_because.empty() ? 0 : 1;
        } catch (...) {
          const std::lock_guard lock(guard);
          if (!failed) failed = std::current_exception();
        }
      });
    }
  }
  if (failed) std::rethrow_exception(failed);
  return result;
}

void sockets(const ProofOptions& options, Findings& findings, base::Log& log) {
  const SocketResult planned = on_sockets({.warm_up = 2, .calls = 5});
  log.info("planned: {:.2f} s, {} and {} MB", planned.seconds, planned.bytes[0] >> 20, planned.bytes[1] >> 20);
  double sum = 0;
  constexpr uint64_t kSeeds = 20;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const SocketResult one = on_sockets({.hash_seed = options.seed * 101 + seed});
    log.info("hash seed {}: {:.2f} s", seed, one.seconds);
    sum += one.seconds / kSeeds;
  }
  findings.at_least("7. two planes of 100 Mbit/s, 2 channels a pair, all-reduce of 16 MB: mean of 20 hash seeds over planned (baseline: s)",
                    sum, sum / planned.seconds, 1.5);

  constexpr int kCalls = 5;
  // What a rank sends leaves by its two ports, so the shares that end together are 1 and 0.3 of 1.3.
  const SocketResult throttled =
      on_sockets({.warm_up = 1, .calls = kCalls, .changes = {{.plane = 1, .after = 4s, .factor = 0.3}}, .begin_at = 4s});
  const double bytes_a_rank = static_cast<double>(throttled.bytes[0] + throttled.bytes[1]) / kRanks / kCalls;
  log.info("throttled: {:.2f} s, {} and {} MB", throttled.seconds, throttled.bytes[0] >> 20, throttled.bytes[1] >> 20);
  findings.at_most("7. one plane throttled to 30 % in mid-run: seconds of a call over those of the capacity-proportional optimum",
                   planned.seconds, throttled.seconds / (bytes_a_rank / (1.3 * kPlane)), 1.15);
  const double share = static_cast<double>(throttled.bytes[1]) / static_cast<double>(throttled.bytes[0] + throttled.bytes[1]);
  findings.at_most("7. likewise: the slow plane's share of the bytes sent (ledger), relative distance from 0.3 of 1.3", 0.5,
                   std::abs(share / (0.3 / 1.3) - 1), 0.15);

  const SocketResult dead = on_sockets({.warm_up = 1, .calls = 1, .changes = {{.plane = 1, .after = 4s, .factor = 0}}, .begin_at = 6s});
  findings.at_least("7. one plane passes nothing from mid-run on: channels given up, and all sums right", 0, dead.lost, kRanks);
  findings.at_most("7. likewise: seconds of a call after that, over those of one plane's bandwidth", planned.seconds,
                   dead.seconds / (static_cast<double>(dead.bytes[0]) / kRanks / kPlane), 1.15);
}

}  // namespace

void prove_c4_traffic(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("a simulated Clos fabric");
  one_job(options, findings);
  link_failure(findings);
  several_jobs(options, findings);
  log.info("real sockets: two planes of 100 Mbit/s");
  sockets(options, findings, log);
}

}  // namespace cairn::study
