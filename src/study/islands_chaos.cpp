#include "study/islands_chaos.h"

#include <algorithm>
#include <exception>

#include <ATen/core/IListRef.h>

#include "base/checksum.h"
#include "base/error.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "study/islands_chaos_world.h"
#include "sync/needs.h"

namespace cairn::study {
namespace chaos {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kSteps = 120, kEvery = 6, kSnapshotEvery = 10;
constexpr double kTimeout = 3, kMinorityTimeout = 60;
constexpr Nanoseconds kNoticed = 20s;      // after all is healed: streams, an election, and one round that waits twice its limit
constexpr Nanoseconds kEndsWithin = 600s;  // after all is healed

std::vector<at::Tensor> cloned(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& one : tensors) all.push_back(one.defined() ? one.clone() : one);
  return all;
}
void copy_into(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  for (size_t i = 0; i < to.size() && i < from.size(); ++i)
    if (to[i].defined() && from[i].defined()) to[i].copy_(from[i]);
}
std::vector<at::Tensor> elements_of(sync::Sync& rule, int64_t step) {
  std::vector<at::Tensor> all;
  for (const sync::ElementState& one : rule.elements(step)) all.insert(all.end(), one.mine.begin(), one.mine.end());
  return all;
}
std::vector<at::Tensor> state_of(sync::Sync& rule) {
  std::vector<at::Tensor> all;
  for (const mesh::NamedTensor& one : rule.state()) all.push_back(one.tensor);
  return all;
}

uint64_t hash_of(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 0;
  for (const at::Tensor& one : tensors) {
    const at::Tensor row = one.contiguous();
    hash = hash * 31 + base::checksum(std::as_bytes(std::span(row.const_data_ptr<float>(), static_cast<size_t>(row.numel()))));
  }
  return hash;
}

}  // namespace

class ChaosLink final : public sync::IslandLink {
 public:
  ChaosLink(ChaosWorld& world, int me) : world_(world), me_(me) {}
  int me() const override { return me_; }
  int size() const override { return world_.count(); }
  bool lost(int island) const override { return island != me_ && !core().reachable(island, world_.now_); }
  bool comes_back() const override { return true; }
  uint64_t incarnation(int island) const override { return island == me_ ? core().incarnation() : core().incarnation(island); }
  void renew() override {
    world_.end_streams(me_);
    ++world_.result_.rejoined;
    core().renew(++world_.at(me_).incarnation, world_.now_);
    world_.at(me_).inbox.clear();
  }
  Nanoseconds now() const override { return world_.now_; }
  void send(int to, std::vector<std::byte> body, comm::Purpose) override {
    auto shared = std::make_shared<std::vector<std::byte>>(std::move(body));
    (void)core().send(to, core().incarnation(to), std::move(shared), world_.now_, world_.now_);
  }
  std::optional<Message> next() override {
    auto& inbox = world_.at(me_).inbox;
    if (inbox.empty()) return std::nullopt;
    Message message = std::move(inbox.front());
    inbox.pop_front();
    return message;
  }
  void wait(Nanoseconds until) override {
    ChaosWorld::Island& island = world_.at(me_);
    island.wakes_on_message = true;
    island.wake_at = std::min<Nanoseconds>(until, world_.now_ + 200ms);
    world_.yield(me_);
  }
  void warn(const std::string&) override {}

 private:
  comm::SiteChannels& core() const { return *world_.at(me_).core; }
  ChaosWorld& world_;
  const int me_;
};

ChaosWorld::ChaosWorld(uint64_t seed, const ChaosFaults& faults, const std::string& kind)
    : random_(base::Random(seed).for_purpose("islands chaos")), faults_(faults), islands_(3 + below(below(3) == 0 ? 7 : 3)) {
  streams_.resize(islands_.size() * islands_.size());
  cut_.resize(streams_.size());
  rule_.kind = below(2) == 0 ? "diloco" : "streaming_diloco";
  rule_.exchange.wire = "fp32";
  rule_.exchange.timeout_s = kTimeout;
  rule_.exchange.minority_timeout_s = kMinorityTimeout;
  rule_.exchange.on_minority = below(6) == 0 ? sync::OnMinority::go_on : sync::OnMinority::wait;
  rule_.outer.every = kEvery;
  rule_.outer.fragment_layers = 1;
  rule_.outer.delay = 1 + static_cast<int64_t>(below(2));
  if (!kind.empty()) rule_.kind = kind;
  rule_.noloco.every = rule_.gossip.every = rule_.co2.every = kEvery;
  rule_.gossip.neighbours = 1;
  founders_ = below(3) == 0 ? 1 + static_cast<int>(below(islands_.size())) : count();
  slow_disks_ = below(4) == 0;
  slow_links_ = below(4) == 0;
}

ChaosWorld::~ChaosWorld() {
  for (int island = 0; island < count(); ++island) kill(island);
  for (Island& one : islands_)
    for (std::thread& thread : one.threads) thread.join();
}

void ChaosWorld::resume(int island) {
  at(island).blocked = false;
  at(island).go.release();
  done_.acquire();
}

// Called on the island's thread.
void ChaosWorld::yield(int island) {
  at(island).blocked = true;
  done_.release();
  at(island).go.acquire();
  if (at(island).killed) throw ChaosKill();
}

void ChaosWorld::pass_time(int island, Nanoseconds time) {
  at(island).wakes_on_message = false;
  at(island).wake_at = now_ + time;
  yield(island);
}

void ChaosWorld::start(int island) {
  Island& one = at(island);
  if (one.runs || one.ended_well) return;
  if (one.incarnation == 0 || !faults_.reuse_incarnation) ++one.incarnation;
  one.core = std::make_unique<comm::SiteChannels>(comm::SiteChannels::Options{.site = island,
                                                                              .sites = count(),
                                                                              .incarnation = one.incarnation,
                                                                              .lost_after = 2s,
                                                                              .silence_max = 1s,
                                                                              .relay_after = 200ms,
                                                                              .faults = faults_.channels},
                                                  now_);
  one.runs = true;
  one.killed = false;
  one.blocked = true;
  one.inbox.clear();
  one.error.clear();
  one.stopped_until = {};
  one.wake_at = now_;
  one.called_at = Nanoseconds{-1};
  one.step_time = 60ms + Nanoseconds(1ms) * static_cast<int64_t>(below(80));
  one.disk.slow = slow_disks_
                      ? std::function<void()>([this, island] { pass_time(island, Nanoseconds(1ms) * static_cast<int64_t>(below(400))); })
                      : std::function<void()>();
  one.disk.saved = [this, island](const comm::RaftState& state) { check_disk(island, state); };
  one.threads.emplace_back([this, island] {
    at(island).go.acquire();
    if (!at(island).killed) live(island);
    at(island).runs = false;
    at(island).blocked = true;
    done_.release();
  });
}

// Like kill -9: it gets to do nothing more.
void ChaosWorld::kill(int island) {
  Island& one = at(island);
  if (!one.runs) return;
  end_streams(island);
  one.killed = true;
  while (one.runs) resume(island);
}

void ChaosWorld::end_streams(int island) {
  for (int other = 0; other < count(); ++other) {
    if (other == island) continue;
    Stream& stream = stream_of(island, other);
    const size_t side = side_of(island, other);
    if (!stream.open[side]) continue;
    stream.open[side] = false;
    stream.ending[side] = true;
    if (below(2) == 0) stream.sent[side].clear();
  }
}

void ChaosWorld::live(int island) {
  std::exception_ptr ended;
  for (const auto& error : comm::LocalNetwork(1).run([&](comm::World& world) { train(island, world); })) ended = error;
  Island& one = at(island);
  if (one.killed) return;
  try {
    if (ended) std::rethrow_exception(ended);
  } catch (const Error& error) {
    one.error = error.what();
    if (error.kind() != Error::Kind::lost_peer) fail(fmt::format("island {} fails: {}", island, error.what()));
  } catch (const std::exception& error) {
    fail(fmt::format("island {} fails: {}", island, error.what()));
  } catch (...) {
    fail(fmt::format("island {} fails", island));
  }
  // Says goodbye, as a process that ends does.
  one.core->leave();
  for (int i = 0; i < 100 && !one.core->has_left(now_) && !one.killed; ++i) {
    try {
      pass_time(island, 100ms);
    } catch (const ChaosKill&) {
    }
  }
  if (!one.killed) end_streams(island);
}

void ChaosWorld::note_model(int island, sync::Sync& rule, int64_t step) {
  if (!rule.apart().empty() || !rule.interruption().empty()) return;
  int64_t epoch = 0;
  for (const mesh::NamedTensor& one : rule.state())
    if (one.name == "outer_lineage") epoch = one.tensor[0].item<int64_t>();
  if (!sync::needs_of(rule_.kind).one_model) {
    for (const auto& [name, value] : rule.metrics())
      if ((name == "islands" && value > 1) || (name == "partner" && value >= 0)) rounds_.insert({epoch, step});
    return;
  }
  const uint64_t model = hash_of(rule.global_parameters());
  const auto [known, is_new] = models_.emplace(std::pair{epoch, step}, model);
  if (known->second != model) fail(fmt::format("two models after step {} of epoch {}: island {} has another one", step, epoch, island));
  for (const auto& [name, value] : rule.metrics()) {
    if (name != "islands" || value <= 0) continue;
    rounds_.insert({epoch, step});
    at(island).last_round = step;
    int running = 0;
    for (int other = 0; other < count(); ++other) running += at(other).runs;
    if (healed_ && now_ > healed_at_ + kNoticed) {
      int& missing = short_rounds_[step];
      missing = std::max(missing, running - static_cast<int>(value));
    }
  }
}

// What any correct log keeps to, on its disks: a vote that was cast in a term stays, and the first entry of a term is written by a site for
// which a majority of its members voted.
void ChaosWorld::check_disk(int island, const comm::RaftState& state) {
  const auto [cast, first] = votes_.try_emplace({state.term, island}, state.voted_for);
  if (cast->second >= 0 && cast->second != state.voted_for)
    fail(fmt::format("island {} has voted for {} in term {}, and now for {}", island, cast->second, state.term, state.voted_for));
  cast->second = state.voted_for;
  if (state.entries.empty() || state.entries.back().term <= last_term_) return;
  last_term_ = state.entries.back().term;
  const std::vector<int>* members = &state.snapshot_members;
  for (const comm::RaftEntry& entry : state.entries)
    if (entry.kind == comm::RaftEntry::Kind::members) members = &entry.members;
  size_t voters = 0;
  for (const int member : *members) {
    const auto vote = votes_.find({last_term_, member});
    voters += vote != votes_.end() && vote->second == island ? 1 : 0;
  }
  if (2 * voters <= members->size())
    fail(fmt::format("island {} leads term {} by {} of {} votes", island, last_term_, voters, members->size()));
}

void ChaosWorld::train(int island, comm::World& world) {
  Island& one = at(island);
  mesh::NamedTensors parameters;
  const std::vector<sync::FullParameter> whole{{"embed", 3}, {"layers.0.weight", 2}, {"layers.1.weight", 3}, {"head", 1}};
  for (const sync::FullParameter& parameter : whole) parameters.push_back({parameter.name, at::full({parameter.elements}, 0.5F)});
  const sync::RemoteIslands remote{.make_link = [&] { return std::make_unique<ChaosLink>(*this, island); },
                                   .log = std::shared_ptr<comm::RaftStore>(&one.disk, [](comm::RaftStore*) {}),
                                   .faults = faults_.log,
                                   .founders_limit = 200s,
                                   .count = count(),
                                   .founders = founders_};
  const std::unique_ptr<sync::Sync> rule = sync::make_sync(rule_, {.replica_group = world.alone(),
                                                                   .model_group = world.alone(),
                                                                   .parameters = parameters,
                                                                   .gradients = {},
                                                                   .model = whole,
                                                                   .steps = kSteps,
                                                                   .seed = 3,
                                                                   .remote_islands = &remote});
  const auto own = [&] {
    std::vector<at::Tensor> all;
    for (const mesh::NamedTensor& parameter : parameters) all.push_back(parameter.tensor);
    return all;
  };
  int64_t step = 0;
  if (one.snapshot) {
    step = one.snapshot->step;
    copy_into(own(), one.snapshot->parameters);
    copy_into(rule->global_parameters(), one.snapshot->global);
    copy_into(elements_of(*rule, step), one.snapshot->elements);
    copy_into(state_of(*rule), one.snapshot->state);
  }
  step = rule->begin(step);
  while (step < kSteps) {
    one.called_at = Nanoseconds{-1};
    pass_time(island, one.step_time);
    ++step;
    const base::Random random = base::Random(11).for_index(static_cast<uint64_t>(island)).for_index(static_cast<uint64_t>(step));
    for (size_t p = 0; p < parameters.size(); ++p)
      for (int64_t i = 0; i < parameters[p].tensor.numel(); ++i) {
        float& value = parameters[p].tensor.mutable_data_ptr<float>()[i];
        value -= 0.1F * (value - random.for_index(p).normal(static_cast<uint64_t>(i)));
      }
    one.called_at = now_;
    rule->after_step({.step = step, .tokens = 10, .learning_rate = 0.1}).wait();
    if (step == kSteps) rule->finish();
    if (const auto position = rule->take_new_position()) step = *position;
    if (!rule->interruption().empty()) throw Error(Error::Kind::lost_peer, rule->interruption());
    note_model(island, *rule, step);
    if (step % kSnapshotEvery == 0 && rule->apart().empty())
      one.snapshot = {step, cloned(own()), cloned(rule->global_parameters()), cloned(elements_of(*rule, step)), cloned(state_of(*rule))};
  }
  one.called_at = Nanoseconds{-1};
  if (!rule->apart().empty()) throw Error(Error::Kind::lost_peer, rule->apart());
  rule->leave();
  one.ended_well = hash_of(sync::needs_of(rule_.kind).one_model ? rule->global_parameters() : std::vector<at::Tensor>{});
}

ChaosResult ChaosWorld::run() {
  result_.islands = count();
  for (int island = 0; island < count(); ++island)
    if (below(6) != 0) start(island);
  const int events = 4 + static_cast<int>(below(16));
  for (int event = 0; event < events && result_.violation.empty(); ++event) {
    advance(kTick * static_cast<int64_t>(below(below(4) == 0 ? 500 : 100)));
    if (result_.violation.empty()) disturb();
  }
  heal();
  advance(kEndsWithin);
  if (result_.violation.empty() && !all_ended()) fail("islands still run long after all was healed");
  std::optional<uint64_t> final_model;
  for (int island = 0; island < count() && result_.violation.empty(); ++island) {
    const Island& one = at(island);
    if (!one.ended_well) continue;
    if (final_model && *final_model != *one.ended_well) fail(fmt::format("island {} ends well with another model than others", island));
    final_model = one.ended_well;
  }
  int64_t missed = 0;
  for (const auto& [step, missing] : short_rounds_) missed += missing > 0;
  // Rounds that began before it was noticed.
  const int64_t in_flight = rule_.kind == "diloco" ? 0 : rule_.kind == "co2" ? 1 : rule_.outer.delay;
  if (result_.violation.empty() && missed > 3 + in_flight) fail(fmt::format("{} rounds go without an island that can be reached", missed));
  result_.rounds = static_cast<int64_t>(rounds_.size());
  result_.virtual_s = static_cast<double>(now_.count()) * 1e-9;
  return result_;
}

}  // namespace chaos

ChaosResult islands_chaos(uint64_t seed, const ChaosFaults& faults, const std::string& kind) {
  return chaos::ChaosWorld(seed, faults, kind).run();
}

}  // namespace cairn::study
