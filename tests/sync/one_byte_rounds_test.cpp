// Rounds of messages between remote islands (sync.island.kind = "one_byte"): islands join, leave, come late and lose messages; all have the
// same history.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/bridge/bridge.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "sync/islands/link.h"
#include "sync/islands/messenger.h"
#include "sync/message_rounds.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

const comm::Key kRoundsKey = comm::fresh_key();

// A link that loses messages of one kind, step and receiver.
class LossyLink final : public IslandLink {
 public:
  struct Loss {
    int to = -1;
    MessageTag::Kind kind = MessageTag::Kind::update;
    int64_t step = 0;
  };
  LossyLink(std::unique_ptr<IslandLink> link, Loss loss) : link_(std::move(link)), loss_(loss) {}
  int me() const override { return link_->me(); }
  int size() const override { return link_->size(); }
  bool lost(int island) const override { return link_->lost(island); }
  bool comes_back() const override { return link_->comes_back(); }
  uint64_t incarnation(int island) const override { return link_->incarnation(island); }
  void renew() override { link_->renew(); }
  std::string refusal() const override { return link_->refusal(); }
  std::chrono::nanoseconds now() const override { return link_->now(); }
  void send(int to, std::vector<std::byte> body, comm::Purpose purpose) override {
    int64_t step = 0;  // as the messenger's header has it: magic 4, kind 1, 3 spare, part 4, 4 spare, step 8
    std::memcpy(&step, body.data() + 16, sizeof step);
    if (to == loss_.to && body[4] == static_cast<std::byte>(loss_.kind) && step == loss_.step) return;
    link_->send(to, std::move(body), purpose);
  }
  std::optional<Message> next() override { return link_->next(); }
  void wait(std::chrono::nanoseconds until) override { link_->wait(until); }
  void warn(const std::string& what) override { link_->warn(what); }

 private:
  std::unique_ptr<IslandLink> link_;
  Loss loss_;
};

// Islands in threads of this process. Each sends "island.step"; its history is what all sent.
class Islands {
 public:
  struct One {
    int number = 0;
    uint64_t origin = 1;
    double timeout_s = 20;
    LossyLink::Loss loss = {};
    std::function<bool(int64_t step)> before = {};  // false: ends here, as if killed
  };
  struct End {
    std::string history;
    int64_t begun = -1;
    std::map<int64_t, size_t> counted;  // step -> messages
    int returns = 0;
    std::string error;
  };

  Islands(int count, int founders) : count_(count), founders_(founders) {}

  void start(const One& one) {
    threads_.emplace_back([this, one] { run(one); });
  }
  std::map<int, End> join() {
    for (std::thread& thread : threads_) thread.join();
    return ends_;
  }
  // All end after this step. At least two steps ahead of them.
  void end_after(int64_t step) { last_ = std::min<int64_t>(last_, step); }
  bool has_ended(int island) {
    const std::lock_guard lock(mutex_);
    return done_[island] == std::numeric_limits<int64_t>::max();
  }
  // Waits until this island has done so many steps, or has ended.
  void wait_for(int island, int64_t step) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return done_[island] >= step; });
  }

 private:
  uint16_t port_of_first() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(30), [&] { return port_ != 0; });
    return port_;
  }

  void note(int island, int64_t step) {
    const std::lock_guard lock(mutex_);
    done_[island] = step;
    changed_.notify_all();
  }

  void run(const One& one) {
    End end;
    for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) { train(one, world, end); })) try {
        if (error) std::rethrow_exception(error);
      } catch (const std::exception& what) {
        end.error = what.what();
      }
    note(one.number, std::numeric_limits<int64_t>::max());
    const std::lock_guard lock(mutex_);
    ends_[one.number] = end;
  }

  void train(const One& one, comm::World& world, End& end) {
    comm::BridgeOptions options{.site = one.number, .sites = count_, .key = kRoundsKey};
    if (one.number > 0) options.endpoints = {{"127.0.0.1", port_of_first()}};
    comm::Bridge bridge(options);
    if (one.number == 0) {
      const std::lock_guard lock(mutex_);
      port_ = bridge.port();
      changed_.notify_all();
    }
    const RemoteIslands remote{.make_link = [&] { return std::make_unique<LossyLink>(remote_link(bridge, world), one.loss); },
                               .founders = founders_};
    SyncOptions rule_options{.kind = "one_byte"};
    rule_options.exchange.timeout_s = one.timeout_s;
    rule_options.exchange.minority_timeout_s = 20;  // the island that is late may lead, and then another one is elected
    const std::unique_ptr<Sync> rule = make_sync(rule_options, {.replica_group = world.alone(),
                                                                .model_group = world.alone(),
                                                                .parameters = {},
                                                                .gradients = {},
                                                                .steps = 0,
                                                                .seed = 3,
                                                                .remote_islands = &remote});
    int64_t rounds = 0;
    rule->message_rounds()->attach({.rounds = [&] { return rounds; },
                                    .epoch = [] { return 1; },
                                    .records =
                                        [&] {
                                          const auto bytes = std::as_bytes(std::span(end.history));
                                          return std::vector<std::byte>(bytes.begin(), bytes.end());
                                        },
                                    .take =
                                        [&](std::span<const std::byte> bytes) {
                                          end.history.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                                          rounds = std::count(end.history.begin(), end.history.end(), '\n');
                                        },
                                    .origin = one.origin});
    end.begun = rule->begin(0);
    for (int64_t step = rounds + 1; step <= last_; step = rounds + 1) {
      if (one.before && !one.before(step)) return;
      const std::string mine = std::to_string(one.number) + "." + std::to_string(step);
      const auto body = std::as_bytes(std::span(mine));
      const MessageRounds::Outcome outcome = rule->message_rounds()->exchange(step, {body.begin(), body.end()});
      if (outcome.decided) {
        std::string line;
        for (const std::vector<std::byte>& message : outcome.messages)
          if (!message.empty())
            line += std::string(reinterpret_cast<const char*>(message.data()), message.size()) + " ", ++end.counted[step];
        line += "\n";
        end.history += line, ++rounds;
        rule->message_rounds()->applied(step, std::as_bytes(std::span(line)));
      }
      end.returns += rule->take_new_position() ? 1 : 0;
      if (rule->should_stop()) throw Error(Error::Kind::lost_peer, rule->interruption());
      note(one.number, rounds);
    }
    rule->leave();
  }

  const int count_, founders_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint16_t port_ = 0;
  std::map<int, int64_t> done_;
  std::map<int, End> ends_;
  std::atomic<int64_t> last_ = std::numeric_limits<int64_t>::max();
};

TEST(OneByteRounds, AllIslandsGetAllMessagesOfEveryRound) {
  Islands islands(3, 3);
  islands.end_after(6);
  for (int i = 0; i < 3; ++i) islands.start({.number = i});
  auto ends = islands.join();
  for (auto& [island, end] : ends) {
    EXPECT_EQ(end.error, "");
    EXPECT_EQ(end.history, ends[0].history);
  }
  EXPECT_EQ(ends[0].history.substr(0, 13), "0.1 1.1 2.1 \n");
  EXPECT_EQ(ends[0].counted.at(6), 3u);
}

TEST(OneByteRounds, OthersGoOnWithoutAnIslandThatEndsAndANewcomerGetsTheWholeHistory) {
  Islands islands(4, 3);
  islands.start({.number = 0});
  islands.start({.number = 1});
  islands.start({.number = 2, .before = [](int64_t step) { return step < 4; }});
  islands.wait_for(0, 6);
  islands.start({.number = 3, .before = [&](int64_t step) {
                   islands.end_after(step + 10);
                   return true;
                 }});
  auto ends = islands.join();
  for (const int island : {0, 1, 3}) {
    EXPECT_EQ(ends[island].error, "");
    EXPECT_EQ(ends[island].history, ends[0].history) << island;
  }
  EXPECT_GE(ends[3].begun, 6);
  EXPECT_EQ(ends[0].counted.rbegin()->second, 3u);  // 0, 1 and 3
  EXPECT_NE(ends[0].history.find(" 3."), std::string::npos);
  EXPECT_EQ(ends[0].history.find(" 2.4 "), std::string::npos);
}

// Island 2 is late in one round, and the message of island 0 to it is lost: it asks island 1.
TEST(OneByteRounds, AMessageThatCountsAndDidNotArriveIsAskedForFromAnother) {
  Islands islands(3, 3);
  islands.end_after(6);
  islands.start({.number = 0, .timeout_s = 0.4, .loss = {2, MessageTag::Kind::update, 3}});
  islands.start({.number = 1, .timeout_s = 0.4});
  islands.start({.number = 2, .timeout_s = 0.4, .before = [&](int64_t step) {
                   if (step == 3) islands.wait_for(0, 3);
                   return true;
                 }});
  auto ends = islands.join();
  for (const int island : {0, 1, 2}) {
    EXPECT_EQ(ends[island].error, "");
    EXPECT_EQ(ends[island].history, ends[0].history) << island;
    EXPECT_EQ(ends[island].returns, 0) << island;
  }
  EXPECT_NE(ends[0].history.find("0.3 1.3 \n"), std::string::npos) << ends[0].history;  // late messages are dropped
}

TEST(OneByteRounds, AnIslandThatMissesThreeRoundsIsOutAndComesBack) {
  Islands islands(3, 3);
  islands.start({.number = 0, .timeout_s = 0.3});
  islands.start({.number = 1, .timeout_s = 0.3});
  islands.start({.number = 2, .timeout_s = 0.3, .before = [&](int64_t step) {
                   if (step == 3) islands.wait_for(0, 7);
                   if (step > 5) islands.end_after(step + 10);
                   return true;
                 }});
  auto ends = islands.join();
  for (const int island : {0, 1, 2}) {
    EXPECT_EQ(ends[island].error, "");
    EXPECT_EQ(ends[island].history, ends[0].history) << island;
  }
  EXPECT_EQ(ends[2].returns, 1);
  for (const char* missed : {" 2.3 ", " 2.4 ", " 2.5 "}) EXPECT_EQ(ends[0].history.find(missed), std::string::npos) << missed;
  EXPECT_EQ(ends[0].counted.rbegin()->second, 3u);
}

TEST(OneByteRounds, AnIslandWithAnotherBaseIsRefused) {
  Islands islands(3, 2);
  const auto until_refused = [&](int64_t step) {
    if (islands.has_ended(2)) islands.end_after(step + 10);
    return true;
  };
  islands.start({.number = 0, .before = until_refused});
  islands.start({.number = 1, .before = until_refused});
  islands.wait_for(0, 2);
  islands.start({.number = 2, .origin = 2});
  auto ends = islands.join();
  EXPECT_NE(ends[2].error.find("begins with other weights"), std::string::npos) << ends[2].error;
  EXPECT_EQ(ends[0].history, ends[1].history);
  EXPECT_EQ(ends[0].error, "");
}

}  // namespace
}  // namespace cairn::sync
