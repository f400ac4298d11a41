// train.method = "one_byte" on islands that are started separately: they join, leave, come back and repair themselves.
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/net/key.h"
#include "comm/net/listen.h"
#include "comm/world.h"
#include "ended_models.h"
#include "harness/scratch_folder.h"
#include "small_decoder.h"
#include "sync/one_byte/round_log.h"
#include "train/build.h"
#include "train/settings.h"
#include "train/take_step.h"
#include "train/train.h"

namespace cairn::train {
namespace {

using Assigned = std::vector<std::string>;

const comm::Key kSlopesKey = comm::fresh_key();

int port_for_islands() {
  const comm::Listener listener = comm::listen_at("127.0.0.1");
  ::close(listener.fd);
  return listener.port;
}

// One island and its command.
struct SlopeIsland {
  int number = 0, count = 3, port = 0;
  std::filesystem::path out;
  Assigned sets = {};
  int ranks = 1;
  bool resume = false;
  const base::Stop* stop = nullptr;
  std::function<void(Job& job, int64_t step)> before = {};  // steps by hand, and calls this before each
};

base::Recipe recipe_of(const SlopeIsland& island) {
  Assigned sets{"train.method=one_byte",
                "train.one_byte.samples_per_round=2",
                "train.one_byte.hash_every=4",
                "optim.learning_rate=1e-4",
                "optim.warmup_steps=0",
                "train.global_batch=8",
                "train.steps=12",
                "snapshot.every=0",
                "sync.island.kind=one_byte",
                "sync.island.timeout_s=20",
                "island.number=" + std::to_string(island.number),
                "island.count=" + std::to_string(island.count),
                "island.meet=127.0.0.1:" + std::to_string(island.port)};
  sets.insert(sets.end(), island.sets.begin(), island.sets.end());
  return small_decoder("llama", sets);
}

void train_island(const SlopeIsland& island) {
  const base::Stop never;
  const Start start{.out = island.out, .resume = island.resume, .cache = {}, .terminal = nullptr, .remote = {.key = kSlopesKey}};
  for (const std::exception_ptr& error : comm::LocalNetwork(island.ranks).run([&](comm::World& world) {
         if (!island.before) {
           run(world, recipe_of(island), start, {}, island.stop ? *island.stop : never);
           return;
         }
         const auto job = build(world, recipe_of(island), start, {});
         while (job->progress.steps_done < job->config.settings.train.steps) {
           const int64_t step = job->progress.steps_done + 1;
           island.before(*job, step);
           take_step(*job);
           job->progress.steps_done = step;
         }
         job->engine.sync->leave();
       }))
    if (error) std::rethrow_exception(error);
}

void train_together(const std::vector<std::function<void()>>& islands) {
  std::vector<std::exception_ptr> errors(islands.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < islands.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        islands[i]();
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

std::vector<sync::RoundRecord> rounds_in(const std::filesystem::path& run) {
  return sync::decode_records(sync::RoundLog::open(run / "rounds.bin")->records(), sync::SlopeCode::log8);
}

using Rounds = std::vector<sync::RoundRecord>;

// Looks at the log of a run in another thread until it is as wanted, for a limited time.
class WatchedRun {
 public:
  explicit WatchedRun(std::filesystem::path run) : run_(std::move(run)) {}
  bool wait_for(const std::function<bool(const Rounds&)>& wanted) {
    std::unique_lock lock(mutex_);
    const auto there = [&] {
      std::error_code ignored;
      return std::filesystem::exists(run_ / "rounds.bin", ignored) && wanted(rounds_in(run_));
    };
    for (int i = 0; i < 3000 && !there(); ++i) never_.wait_for(lock, std::chrono::milliseconds(10));  // then it looks again
    return there();
  }

 private:
  std::filesystem::path run_;
  std::mutex mutex_;
  std::condition_variable never_;
};

TEST(OneByteIslands, OfDifferentLayoutsHoldTheSameWeightsBitwise) {
  const harness::ScratchFolder scratch;
  const int port = port_for_islands();
  std::vector<std::function<void()>> islands;
  const std::vector<std::pair<int, Assigned>> layouts{{1, {}}, {2, {"mesh.tp=2"}}, {2, {"mesh.dp=2", "memory.zero=1"}}};
  for (int i = 0; i < 3; ++i)
    islands.push_back([&, i] {
      const auto& [ranks, sets] = layouts[static_cast<size_t>(i)];
      train_island({.number = i, .port = port, .out = scratch / std::to_string(i), .sets = sets, .ranks = ranks});
    });
  train_together(islands);
  for (const char* island : {"1", "2"}) EXPECT_EQ(furthest(model_of(scratch / island), model_of(scratch / "0")), 0) << island;
  const auto rounds = rounds_in(scratch / "0");
  ASSERT_EQ(rounds.size(), 12u);
  ASSERT_EQ(rounds[7].messages.size(), 4u);  // island 2 has two machines
  EXPECT_EQ(rounds[7].messages[3].machine, 2u << 16 | 1u);
  EXPECT_NE(rounds[8].manifest.hash, 0u);  // compared, and all agreed
  for (const char* island : {"1", "2"})
    EXPECT_EQ(base::read_file(scratch / island / "rounds.bin", 1 << 20), base::read_file(scratch / "0" / "rounds.bin", 1 << 20));
}

// Island 2 stops early. Island 3 comes later, with the base alone. Island 2 comes back with its snapshot and its log. Then all stop.
TEST(OneByteIslands, JoinAndLeaveWhileTheOthersTrain) {
  const harness::ScratchFolder scratch;
  const int port = port_for_islands();
  base::Stop early, all;
  const auto island = [&](int number) {
    return SlopeIsland{.number = number,
                       .count = 4,
                       .port = port,
                       .out = scratch / std::to_string(number),
                       .sets = {"train.steps=100000", "island.founders=3", "eval.every=0"},
                       .stop = &all};
  };
  const auto with_all_four = [](const Rounds& rounds) {
    return std::count_if(rounds.begin(), rounds.end(), [](const auto& one) { return one.messages.size() == 4; }) >= 6;
  };
  train_together({[&] { train_island(island(0)); }, [&] { train_island(island(1)); },
                  [&] {
                    SlopeIsland one = island(2);
                    one.stop = &early;
                    train_island(one);
                    one.stop = &all, one.resume = true;
                    train_island(one);
                  },
                  [&] {
                    EXPECT_TRUE(WatchedRun(scratch / "2").wait_for([](const Rounds& rounds) { return rounds.size() >= 4; }));
                    early.request();
                    EXPECT_TRUE(WatchedRun(scratch / "0").wait_for([](const Rounds& rounds) { return rounds.size() >= 8; }));
                    train_island(island(3));
                  },
                  [&] {
                    EXPECT_TRUE(WatchedRun(scratch / "0").wait_for(with_all_four));
                    all.request();
                  }});
  // Islands stop one after the other. Up to there they have the same rounds, and with as many rounds the same weights.
  std::map<size_t, std::string> models;
  const std::string longest = base::read_file(scratch / "0" / "rounds.bin", 1 << 24);
  for (const char* number : {"0", "1", "2", "3"}) {
    const std::string log = base::read_file(scratch / number / "rounds.bin", 1 << 24);
    const size_t common = std::min(log.size(), longest.size());
    EXPECT_EQ(log.substr(0, common), longest.substr(0, common)) << number;
    const Rounds rounds = rounds_in(scratch / number);
    EXPECT_TRUE(with_all_four(rounds)) << number;
    EXPECT_EQ(rounds[1].messages.size(), 3u);
    EXPECT_TRUE(std::any_of(rounds.begin(), rounds.end(), [](const auto& one) { return one.messages.size() == 2; }));
    const auto [same, first] = models.emplace(rounds.size(), number);
    EXPECT_EQ(furthest(model_of(scratch / number), model_of(scratch / same->second)), 0) << number << " and " << same->second;
    for (const base::MetricsRow& row : base::read_metrics(scratch / number / "metrics.jsonl")) EXPECT_FALSE(row.has("repaired"));
  }
}

// The memory of island 1 is damaged before step 6; before round 8 the hashes are compared.
TEST(OneByteIslands, TheMinorityRebuildsItsWeights) {
  const harness::ScratchFolder scratch;
  const int port = port_for_islands();
  std::atomic<int> repaired = 0;
  std::vector<std::function<void()>> islands;
  std::vector<at::Tensor> ends(3);
  for (int i = 0; i < 3; ++i)
    islands.push_back([&, i] {
      SlopeIsland one{.number = i, .port = port, .out = scratch / std::to_string(i)};
      one.before = [&, i](Job& job, int64_t step) {
        const at::Tensor value = job.engine.store->pieces()[3].value;
        if (step == 6 && i == 1) value.view({-1})[2] += 1e-5;
        if (sync::metric(job.step->metrics(), "repaired") > 0) repaired += 100 * i + static_cast<int>(step) - 1;
        if (step == 12) ends[static_cast<size_t>(i)] = value.clone();
      };
      train_island(one);
    });
  train_together(islands);
  EXPECT_EQ(repaired, 100 + 9);  // island 1, in step 9
  for (const at::Tensor& end : ends) EXPECT_TRUE(at::equal(end, ends[0]));
}

TEST(OneByteIslands, WithAnotherBaseAreRefused) {
  const harness::ScratchFolder scratch;
  const int port = port_for_islands();
  std::string why;
  std::mutex mutex;
  const auto island = [&](int number, const std::string& eps) {
    try {
      train_island({.number = number,
                    .count = 2,
                    .port = port,
                    .out = scratch / std::to_string(number),
                    .sets = {"sync.island.minority_timeout_s=0.5", "sync.island.timeout_s=0.5", "train.one_byte.eps=" + eps}});
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      why += error.what();
    }
  };
  train_together({[&] { island(0, "0.01"); }, [&] { island(1, "0.001"); }});
  EXPECT_NE(why.find("begins with other weights than the others, or draws other directions"), std::string::npos) << why;
}

}  // namespace
}  // namespace cairn::train
