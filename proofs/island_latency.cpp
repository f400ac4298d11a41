#include "proofs/island_latency.h"

#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "sync/islands/pairing.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::study {
namespace {

constexpr int64_t kFloats = 256;
constexpr comm::Label kLabel{comm::Purpose::gradient, "round"};

// The rule itself, on a model of a few numbers.
struct Rule {
  mesh::NamedTensors parameters;
  std::vector<sync::FullParameter> whole{{"x", kFloats}};
  std::unique_ptr<sync::Sync> sync;

  void begin(comm::World& world, const sync::SyncOptions& options, int64_t steps, uint64_t seed) {
    parameters = {{"x", at::full({kFloats}, static_cast<float>(world.rank()), at::kFloat)}};
    sync = sync::make_sync(options, {.replica_group = world.everyone(),
                                     .model_group = world.alone(),
                                     .parameters = parameters,
                                     .gradients = {},
                                     .model = whole,
                                     .steps = steps,
                                     .seed = seed});
    sync->begin(0);
  }
};

// Rounds begin together; how long an island takes for one, on average.
double mean_time(
    int islands, int rounds, const comm::LinkModel& link, uint64_t seed, const std::function<void(comm::World&)>& first,
    const std::function<void(comm::World&, int64_t round, std::vector<float>& values, std::function<void()>& after)>& one_round) {
  std::vector<double> seconds(static_cast<size_t>(islands));
  comm::LocalNetwork network(islands, {.seed = seed, .link = link});
  for (const std::exception_ptr& error : network.run([&](comm::World& world) {
         std::vector<float> values(kFloats, 1);
         if (first) first(world);
         for (int round = 0; round < rounds; ++round) {
           // An hour apart, so that nobody carries over what it waited.
           world.timer(std::chrono::hours(round + 1)).wait();
           const std::chrono::nanoseconds begun = world.clock().now();
           std::function<void()> after;
           one_round(world, round, values, after);
           seconds[static_cast<size_t>(world.rank())] += base::seconds(world.clock().now() - begun);
           if (after) after();
         }
       }))
    if (error) std::rethrow_exception(error);
  double sum = 0;
  for (const double one : seconds) sum += one;
  return sum / islands / rounds;
}

}  // namespace

comm::LinkModel varying_links() {
  const auto median = std::chrono::nanoseconds(static_cast<int64_t>(0.1 / std::exp(0.5) * 1e9));
  return {.latency = median, .bytes_per_s = 1e12, .jitter = 0, .latency_sigma = 1};
}

double pair_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed) {
  sync::SyncOptions options{.kind = "noloco"};
  options.noloco.every = 1;
  options.noloco.final_model = sync::NolocoFinal::one;
  options.exchange.timeout_s = 1800;
  std::vector<Rule> rules(static_cast<size_t>(islands));
  const auto first = [&](comm::World& world) { rules[static_cast<size_t>(world.rank())].begin(world, options, rounds, seed); };
  return mean_time(islands, rounds, link, seed, first, [&](comm::World& world, int64_t round, std::vector<float>&, std::function<void()>&) {
    Rule& rule = rules[static_cast<size_t>(world.rank())];
    rule.sync->after_step({.step = round + 1}).wait();
    if (round + 1 == rounds) rule.sync.reset();  // on its own thread
  });
}

double bare_pair_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed) {
  return mean_time(islands, rounds, link, seed, {},
                   [&](comm::World& world, int64_t round, std::vector<float>& values, std::function<void()>& after) {
                     const std::vector<int> two = sync::group_of(world.rank(), islands, 2, seed, round);
                     if (two.size() < 2) return;
                     comm::Group& pair = world.group(two);
                     const int other = 1 - pair.rank();
                     std::vector<float> theirs(kFloats);
                     int64_t mine = 1, confirmed = 0;
                     const comm::Work progress = pair.recv({theirs.data(), kFloats, comm::Dtype::f32}, other, kLabel);
                     const comm::Work confirm = pair.recv({&confirmed, 1, comm::Dtype::i64}, other, kLabel);
                     const comm::Work sent = pair.send({values.data(), kFloats, comm::Dtype::f32}, other, kLabel);
                     progress.wait_host();
                     const comm::Work told = pair.send({&mine, 1, comm::Dtype::i64}, other, kLabel);
                     confirm.wait_host();
                     // What was sent arrives while the clock stands: the next round is an hour away.
                     after = [sent, told] {
                       sent.wait_host();
                       told.wait_host();
                     };
                   });
}

double tree_time(int islands, int rounds, const comm::LinkModel& link, uint64_t seed) {
  return mean_time(islands, rounds, link, seed, {},
                   [&](comm::World& world, int64_t, std::vector<float>& values, std::function<void()>& after) {
                     comm::Group& all = world.everyone();
                     const int me = world.rank();
                     std::vector<std::vector<float>> below;
                     std::vector<comm::Work> works;
                     std::vector<int> children;
                     for (const int child : {2 * me + 1, 2 * me + 2})
                       if (child < islands) children.push_back(child);
                     for (const int child : children) {
                       below.emplace_back(kFloats);
                       works.push_back(all.recv({below.back().data(), kFloats, comm::Dtype::f32}, child, kLabel));
                     }
                     for (const comm::Work& work : works) work.wait_host();
                     for (const std::vector<float>& one : below)
                       for (size_t i = 0; i < values.size(); ++i) values[i] += one[i];
                     if (me > 0) {
                       all.send({values.data(), kFloats, comm::Dtype::f32}, (me - 1) / 2, kLabel).wait_host();
                       all.recv({values.data(), kFloats, comm::Dtype::f32}, (me - 1) / 2, kLabel).wait_host();
                     }
                     std::vector<comm::Work> down;
                     for (const int child : children) down.push_back(all.send({values.data(), kFloats, comm::Dtype::f32}, child, kLabel));
                     after = [down] {  // nobody waits for those below
                       for (const comm::Work& work : down) work.wait_host();
                     };
                   });
}

}  // namespace cairn::study
