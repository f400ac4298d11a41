// The agents of several machines, and how they agree on generations.
//
// Each agent is a site of a comm::Bridge: authenticated with the run's key, connected with every other agent, and told when one is lost.
// All agents know all addresses, so that the machine that the others met at may be lost like any other one.
//
//   state     Every agent sends the others what it does, at every change and twice a second: the generation that its ranks run or ran last,
//             whether they have ended, how, and where the ranks that it would start next listen.
//   over      A generation is over on every machine as soon as one of its machines says that its ranks did not end well, or is lost.
//   leader    The lowest machine that ran the newest generation. When all machines of the generation that are left have ended their ranks,
//             it decides:
//               finish     all ended well, a stop was requested, wrong input, or the budget for restarts is used up
//               start      all machines are there (restart), or enough of them are (shrink)
//               wait       for machines that are lost, or replacements with the same number, until policy.replacement_timeout
//   start     goes to each machine: the generation, the addresses of all ranks, the numbers of its own, a fresh key. Ranks of an earlier
//             generation do not know this key and cannot join. A message for other set-ups than the present ones is ignored.
//   shrink    Two halves of a run that lost each other must not both go on. So a generation may shrink only to more than half of its
//             machines, or to half of them with the lowest one.
//
// What the leader must know is in every start message, so that another machine can lead after the loss of this one.
#include "train/agent_group.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unistd.h>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/text.h"
#include "comm/bridge/bridge.h"
#include "comm/net/listen.h"
#include "comm/net/setup.h"
#include "train/agent_messages.h"

namespace cairn::train {
namespace {

using base::Json;
using Nanoseconds = std::chrono::nanoseconds;

constexpr auto kSayEvery = std::chrono::milliseconds(500);   // states are repeated
constexpr auto kStopGlance = std::chrono::milliseconds(50);  // how often a requested stop is noticed
constexpr auto kTellEvery = std::chrono::seconds(10);        // who is waited for
constexpr auto kMeetLimit = std::chrono::seconds(20);        // for two machines of a new generation to reach each other
constexpr auto kStopLimit = std::chrono::seconds(3);         // for the others to hear that a stop was requested here
constexpr int kSilenceParts = 2;                             // a silent connection is made again after this part of lost_after

std::string list_of(const std::vector<int>& machines) {
  return fmt::format("machine{} {}", machines.size() == 1 ? "" : "s", fmt::join(machines, ", "));
}

class AgentGroup final : public GenerationSource {
 public:
  AgentGroup(AgentGroupOptions options, base::Log& log, const base::Stop& stop)
      : options_(std::move(options)),
        log_(log),
        stop_(stop),
        listens_at_(comm::address_to_listen(options_.endpoint.host, options_.endpoint.port)),
        budget_(options_.policy.max_restarts),
        bridge_(open_bridge()) {
    own_.node = options_.node;
    own_.count = options_.count;
    own_.host = options_.address.empty() ? listens_at_ : options_.address;
    own_.host_name = base::host_name();
    wait_until_ = clock_.now() + options_.deadline;
  }
  ~AgentGroup() override { close_setups(); }

  std::optional<GenerationStart> next(const std::optional<RanksEnded>& last) override {
    if (last) note_end(*last);
    prepare();
    while (true) {
      receive();
      if (finish_) return finished();
      if (start_) return begin(*std::exchange(start_, std::nullopt));
      if (const std::string why = bridge_->refusal(); !why.empty()) base::fail_input("{}", of_machines(why));
      if (stop_.requested() && stops()) return std::nullopt;
      if (leader() == options_.node) lead();
      say();
      if (!finish_ && !start_) bridge_->wait(kStopGlance);
    }
  }

  // While ranks run.
  bool over() override {
    receive();
    say();
    if (finish_) return true;
    const Nanoseconds now = clock_.now();
    for (const Member& member : generation_.members) {
      if (member.node == options_.node) continue;
      const bool here = bridge_->reachable(member.node) && bridge_->incarnation(member.node) == member.incarnation;
      if (here) met_.insert(member.node);
      if (!here && (met_.contains(member.node) || bridge_->incarnation(member.node) > member.incarnation || now - begun_ > kMeetLimit))
        return true;
      const auto state = states_.find(member.node);
      if (here && state != states_.end() && state->second.generation == own_.generation && state->second.ready && !state->second.well)
        return true;
    }
    return false;
  }

  int code() const override { return code_; }

 private:
  // The bridge of machine 0 listens at the endpoint, where that is free: others find it there.
  std::unique_ptr<comm::Bridge> open_bridge() const {
    comm::BridgeOptions o{.site = options_.node, .sites = options_.nodes, .key = comm::derive(options_.key, "agents")};
    o.address = listens_at_;
    o.known_as = options_.address;
    o.port = options_.node == 0 ? options_.endpoint.port : uint16_t{0};
    o.endpoints = {options_.endpoint};
    o.config_fingerprint = options_.config_fingerprint;
    o.lost_after = options_.lost_after;
    o.silence_max = options_.lost_after / kSilenceParts;
    try {
      return std::make_unique<comm::Bridge>(o);
    } catch (const Error& error) {
      if (o.port == 0) throw;
      log_.warn("{}: machine 0 listens at another port, and others find it only if they run already", error.what());
      o.port = 0;
      return std::make_unique<comm::Bridge>(o);
    }
  }

  void close_setups() {
    for (const comm::NetSetup& setup : std::exchange(setups_, {}))
      for (const int fd : setup.fds())
        if (fd >= 0) ::close(fd);
  }

  // New set-ups for the ranks that this machine may start.
  void prepare() {
    close_setups();
    std::vector<int> places(static_cast<size_t>(options_.count));
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i);
    setups_ = comm::make_machine_setups(places, listens_at_);
    own_.ports.clear();
    for (const comm::NetSetup& setup : setups_) own_.ports.push_back(setup.addresses[0].outside_port);
    own_.token = base::random_name();
    own_.ready = true;
    said_at_.reset();
    judged_ = false;
    told_.clear();
  }

  void note_end(const RanksEnded& last) {
    own_.well = last.code == 0 && !last.cause && !last.over;
    own_.code = last.code;
    own_.lost = last.cause;
    own_.stopped = last.stopped;
    own_.ended_at = last.at;
    own_.step = last_recorded_step(generation_.run);
    ended_at_ = clock_.now();
  }

  // --- messages --------------------------------------------------------------------------------------------------------------------------

  bool send(int node, const Json& message) {
    const std::string text = base::compact(message);
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return bridge_->send(node, bridge_->incarnation(node), {bytes, bytes + text.size()});
  }

  void say() {
    const Nanoseconds now = clock_.now();
    if (said_at_ && now - *said_at_ < kSayEvery) return;
    said_at_ = now;
    for (int node = 0; node < options_.nodes; ++node)
      if (node != options_.node && bridge_->reachable(node)) send(node, to_json(own_));
  }

  void receive() {
    while (const std::optional<comm::Bridge::Message> message = bridge_->next()) {
      try {
        const Json said = base::parse_json({reinterpret_cast<const char*>(message->body.data()), message->body.size()});
        const std::string type = said.at("type");
        if (type == kStateMessage) {
          AgentState state = state_from_json(said);
          state.node = message->from;
          state.incarnation = message->incarnation;
          const bool is_new = !states_.contains(state.node);
          states_.insert_or_assign(state.node, std::move(state));
          if (is_new) said_at_.reset();  // it hears of this machine at once
        } else if (type == kStartMessage) {
          GenerationPlan plan = plan_from_json(said);
          if (plan.token == own_.token && own_.ready && plan.generation > own_.generation) start_ = std::move(plan);
        } else if (type == kFinishMessage && said.at("generation").get<int>() >= own_.generation) {
          finish_ = {said.at("code").get<int>(), said.at("why").get<std::string>()};
        }
      } catch (const std::exception& error) {
        log_.warn("machine {} has sent something that is no message: {}", message->from, error.what());
      }
    }
  }

  // The machine's state, if it is there now.
  const AgentState* state_of(int node) const {
    if (node == options_.node) return &own_;
    const auto found = states_.find(node);
    if (found == states_.end() || !bridge_->reachable(node) || bridge_->incarnation(node) != found->second.incarnation) return nullptr;
    return &found->second;
  }

  std::vector<int> machines_that(const std::function<bool(const AgentState*)>& fit) const {
    std::vector<int> machines;
    for (int node = 0; node < options_.nodes; ++node)
      if (fit(state_of(node))) machines.push_back(node);
    return machines;
  }

  int leader() const {
    int generation = 0;
    for (int node = 0; node < options_.nodes; ++node)
      if (const AgentState* state = state_of(node)) generation = std::max(generation, state->generation);
    return machines_that([&](const AgentState* state) { return state && state->generation == generation; }).front();
  }

  // --- the leader ------------------------------------------------------------------------------------------------------------------------

  void lead() {
    const std::vector<int> ready = machines_that([](const AgentState* state) { return state && state->ready; });
    const std::vector<int> absent = machines_that([](const AgentState* state) { return !state || !state->ready; });
    if (own_.generation == 0) {
      lead_first(ready, absent);
      return;
    }
    for (const Member& member : generation_.members) {
      const AgentState* state = present(member);
      if (state && !state->ready) return;  // it sees this machine's state, and ends its ranks
    }
    if (!judged_ && !judge()) return;
    for (const Member& member : generation_.members)
      if (const AgentState* state = present(member); state && state->stopped) return finish(0, "");
    const Nanoseconds now = clock_.now();
    if (now < pause_until_) return;
    std::string why;
    if (absent.empty() || (options_.policy.on_loss == OnLoss::shrink && may_shrink(ready, why))) {
      why = options_.check_layout(rank_count(ready), static_cast<int>(ready.size()) < options_.nodes);
      if (why.empty()) return start_all(ready);
    }
    if (now > wait_until_)
      return finish(4, fmt::format("{} did not come back within {:.0f} s (train.replacement_timeout_s){}", list_of(absent),
                                   base::seconds(options_.policy.replacement_timeout), why.empty() ? "" : ": " + why));
    tell_once(fmt::format(
        "waiting up to {:.0f} s for {}: start it again with the same command line, on another machine with "
        "--rendezvous {}:{}{}{}",
        base::seconds(options_.policy.replacement_timeout), list_of(absent), own_.host, bridge_->port(), why.empty() ? "" : ". ", why));
  }

  void lead_first(const std::vector<int>& ready, const std::vector<int>& absent) {
    if (absent.empty()) {
      try {
        const GroupRun run = options_.choose_run(rank_count(ready));
        generation_.run = run.path;
        generation_.resume = run.resume;
      } catch (const Error& error) {
        finish(error.exit_code(), std::string("machine 0: ") + error.what());
        throw;
      }
      return start_all(ready);
    }
    if (clock_.now() > wait_until_)
      return finish(4, fmt::format("{} did not come to {}:{} within {:.0f} s", list_of(absent), options_.endpoint.host,
                                   options_.endpoint.port, base::seconds(options_.deadline)));
    tell_once(fmt::format("waiting for {}", list_of(absent)));
  }

  // The state of a machine that ran the last generation and is there still.
  const AgentState* present(const Member& member) const {
    const AgentState* state = state_of(member.node);
    return state && state->generation == own_.generation ? state : nullptr;
  }

  // How the generation ended, once its machines have ended their ranks. False: the run is over.
  bool judge() {
    judged_ = true;
    const base::RunEvents events(generation_.run);
    std::vector<int> lost_machines;
    std::optional<LostRank> cause;
    bool all_well = true, stopped = false;
    double lost_at = 0;
    for (const Member& member : generation_.members) {
      const AgentState* state = present(member);
      if (!state) {
        lost_machines.push_back(member.node);
        continue;
      }
      all_well = all_well && state->well;
      stopped = stopped || state->stopped;
      own_.step = std::max(own_.step, state->step);
      if (!state->lost) continue;
      if (!cause || (cause->consequence && !state->lost->consequence)) cause = state->lost;
    }
    if (all_well && present(generation_.members.front())) return end_run(0, "");
    if (stopped) return end_run(!cause || cause->consequence ? 0 : cause->code, "");
    for (const Member& member : generation_.members) {
      const AgentState* state = present(member);
      if (!state || !state->lost || (state->lost->consequence && (!cause->consequence || !lost_machines.empty()))) continue;
      events.write("rank_lost", loss_event(*state->lost, own_.generation, state->host_name, member.node));
      log_.write(base::Level::error, fmt::format("rank {} on machine {} {}", state->lost->rank, member.node, state->lost->how));
      lost_at = lost_at > 0 ? std::min(lost_at, state->lost->at) : state->lost->at;
    }
    for (const int machine : lost_machines) {
      events.write("machine_lost", {{"generation", own_.generation}, {"machine", machine}});
      log_.write(base::Level::error, fmt::format("machine {} is lost", machine));
      lost_at = lost_at > 0 ? lost_at : base::wall_time() - base::seconds(clock_.now() - ended_at_);
    }
    if (lost_machines.empty() && cause && cause->wrong_input) return end_run(cause->code, "");
    if (!cause) cause = LostRank{.code = 4, .how = ""};
    generation_.lost_at = lost_at > 0 ? lost_at : cause->at;
    return decide_restart(*cause, lost_machines);
  }

  bool decide_restart(const LostRank& cause, const std::vector<int>& lost_machines) {
    const std::string what = cause.how.empty() ? list_of(lost_machines) + " lost" : fmt::format("rank {} {}", cause.rank, cause.how);
    const auto pause = budget_.loss(own_.step);
    if (budget_.in_a_row() <= 1 || generation_.first_error.empty()) {
      generation_.first_error = what;
      generation_.first_code = cause.code;
    }
    if (!pause) {
      const std::string why = fmt::format("train.max_restarts = {}: {}: {} without getting beyond that step", options_.policy.max_restarts,
                                          generation_.first_error, base::plural(budget_.in_a_row(), "restart"));
      base::RunEvents(generation_.run).write("gave_up", {{"generation", own_.generation}, {"code", generation_.first_code}, {"why", why}});
      return end_run(generation_.first_code, why);
    }
    pause_until_ = clock_.now() + *pause;
    wait_until_ = clock_.now() + options_.policy.replacement_timeout;
    return true;
  }

  bool end_run(int code, const std::string& why) {
    finish(code, why);
    return false;
  }

  // Whether the machines that are ready may go on without the others.
  bool may_shrink(const std::vector<int>& ready, std::string& why) const {
    size_t left = 0;
    for (const Member& member : generation_.members) left += std::count(ready.begin(), ready.end(), member.node) > 0 ? 1 : 0;
    const size_t all = generation_.members.size();
    const bool lowest = std::count(ready.begin(), ready.end(), generation_.members.front().node) > 0;
    if (2 * left > all || (2 * left == all && lowest)) return true;
    why = fmt::format(
        "train.on_loss = shrink: {} of {} machines are left; the others may go on too where the network is cut: more than "
        "half must be left, or half of them with machine {}",
        left, all, generation_.members.front().node);
    return false;
  }

  int rank_count(const std::vector<int>& machines) const {
    int ranks = 0;
    for (const int node : machines) ranks += state_of(node)->count;
    return ranks;
  }

  void start_all(const std::vector<int>& machines) {
    GenerationPlan plan = generation_;
    plan.generation = own_.generation + 1;
    plan.key = comm::fresh_key();
    plan.budget = budget_.state();
    plan.members.clear();
    plan.addresses.clear();
    std::map<int, std::vector<int>> ranks;
    for (int place = 0; const int node : machines) {
      const AgentState& state = *state_of(node);
      plan.members.push_back({node, node == options_.node ? bridge_->incarnation(node) : state.incarnation});
      for (const uint16_t port : state.ports) {
        ranks[node].push_back(static_cast<int>(plan.addresses.size()));
        plan.addresses.push_back({.machine = place, .port = 0, .host = state.host, .outside_port = port});
      }
      ++place;
    }
    base::OrderedJson facts{{"generation", plan.generation}, {"ranks", plan.addresses.size()}, {"machines", machines.size()}};
    if (plan.generation > 1) {
      facts["ended_s"] = std::max(0.0, std::round((own_.ended_at - plan.lost_at) * 1000) / 1000);
      facts["since_loss_s"] = std::round((base::wall_time() - plan.lost_at) * 1000) / 1000;
      log_.warn("the ranks are started again, as generation {}: {} on {}{}", plan.generation, base::plural(plan.addresses.size(), "rank"),
                base::plural(machines.size(), "machine"),
                budget_.in_a_row() > 1
                    ? fmt::format(" (restart {} of {} without progress)", budget_.in_a_row(), options_.policy.max_restarts)
                    : "");
    }
    base::RunEvents(plan.run).write("generation_started", facts);
    for (const int node : machines) {
      plan.token = state_of(node)->token;
      plan.ranks = ranks[node];
      if (node == options_.node)
        start_ = plan;
      else
        send(node, to_json(plan));
    }
  }

  void finish(int code, const std::string& why) {
    finish_ = {code, why};
    for (int node = 0; node < options_.nodes; ++node)
      if (node != options_.node && bridge_->reachable(node)) send(node, finish_message(own_.generation, code, why));
  }

  // --- all machines ----------------------------------------------------------------------------------------------------------------------

  std::optional<GenerationStart> begin(GenerationPlan plan) {
    const bool first = plan.members.front().node == options_.node;
    if (first)
      options_.hold_run(plan.run);
    else
      options_.release_run();
    for (size_t i = 0; i < setups_.size(); ++i) {
      setups_[i].rank = plan.ranks.at(i);
      plan.addresses.at(static_cast<size_t>(plan.ranks[i])).port = setups_[i].addresses[0].port;
    }
    comm::set_addresses(setups_, plan.addresses, plan.key);
    GenerationStart start{.generation = plan.generation, .lost_at = plan.lost_at, .setups = std::exchange(setups_, {})};
    if (first) start.env = run_directory_env(plan.run, plan.generation == 1 ? plan.resume : can_resume(plan.run));
    if (static_cast<int>(plan.members.size()) < options_.nodes) start.env.emplace_back("CAIRN_SHRUNK", "1");
    budget_ = RestartBudget(options_.policy.max_restarts, plan.budget);
    own_.generation = plan.generation;
    own_.ready = own_.well = own_.stopped = false;
    own_.lost.reset();
    generation_ = std::move(plan);
    met_.clear();
    begun_ = clock_.now();
    said_at_.reset();
    say();
    return start;
  }

  std::optional<GenerationStart> finished() {
    code_ = finish_->code;
    if (!finish_->why.empty()) log_.write(base::Level::error, finish_->why);
    return std::nullopt;
  }

  // A stop was requested and no rank runs here. True: this machine need not wait for the others any longer.
  bool stops() {
    if (!stop_until_) {
      stop_until_ = clock_.now() + kStopLimit;
      own_.stopped = true;
      said_at_.reset();
    }
    if (own_.generation == 0) {
      finish(0, "");  // machines that wait for the start wait no longer; those of a run in progress go on
      return true;
    }
    if (leader() == options_.node || clock_.now() < *stop_until_) return false;
    code_ = own_.lost && !own_.lost->consequence ? own_.code : 0;
    return true;
  }

  void tell_once(const std::string& what) {
    const Nanoseconds now = clock_.now();
    if (what == told_ && now - told_at_ < kTellEvery * 6) return;
    if (what != told_ && !told_.empty() && now - told_at_ < kStopGlance * 4) return;
    told_ = what;
    told_at_ = now;
    options_.tell(what);
  }

  struct Finish {
    int code = 0;
    std::string why;
  };

  const AgentGroupOptions options_;
  base::Log& log_;
  const base::Stop& stop_;
  base::RealClock clock_;
  const std::string listens_at_;
  AgentState own_;
  std::map<int, AgentState> states_;  // of the other machines
  GenerationPlan generation_;         // that this machine's ranks run, or ran last
  RestartBudget budget_;
  std::vector<comm::NetSetup> setups_;
  std::set<int> met_;  // machines of this generation that were reachable
  std::optional<GenerationPlan> start_;
  std::optional<Finish> finish_;
  std::optional<Nanoseconds> said_at_;
  Nanoseconds begun_{}, ended_at_{}, pause_until_{}, wait_until_{}, told_at_{};
  std::optional<Nanoseconds> stop_until_;
  bool judged_ = false;
  std::string told_;
  int code_ = 0;
  std::unique_ptr<comm::Bridge> bridge_;  // last: its end tells the others that this machine leaves
};

}  // namespace

std::unique_ptr<GenerationSource> join_agent_group(AgentGroupOptions options, base::Log& log, const base::Stop& stop) {
  return std::make_unique<AgentGroup>(std::move(options), log, stop);
}

}  // namespace cairn::train
