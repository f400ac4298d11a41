#include "federate/coded_master.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/stop.h"
#include "comm/mailbox.h"
#include "comm/world.h"
#include "federate/coded_messages.h"
#include "federate/coding/job_gradients.h"

namespace cairn::federate {
namespace {

using std::chrono::nanoseconds;

constexpr double kLook = 0.25;          // seconds between two looks at who is still there
constexpr double kStartDeadline = 300;  // until all workers are there

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

class Master {
 public:
  Master(comm::World& world, const MasterOptions& options, Streams& streams, const base::Stop& stop,
         const std::function<void(const RoundRecord&)>& on_round)
      : world_(world),
        o_(options),
        streams_(streams),
        stop_(stop),
        on_round_(on_round),
        mailbox_(world, {.name = "coded", .body_bytes_max = options.message_bytes_max, .unread_bytes_max = 16 * options.message_bytes_max}),
        node_(mailbox_.open(kMasterNode)) {
    for (int i = 0; i < options.workers; ++i) alive_.push_back(i);
    valid_.assign(alive_.size(), 0);
    listen();
  }

  MasterResult run() {
    wait_for_workers();
    for (int64_t stream = 0; stream < streams_.streams(); ++stream) send_weights(stream);
    if (o_.choose) choose();
    run_until(o_.jobs, result_.spec = o_.choose ? result_.spec : o_.spec);
    for (const int worker : alive_) sends_.push_back(node_.send(worker_node(worker), kWorkTag, encode_stop()));
    for (const comm::Request& one : sends_) one.wait();
    return std::move(result_);
  }

 private:
  double now() const { return base::seconds(world_.clock().now()); }
  void listen() { reply_ = node_.receive({.tag = kReplyTag, .within = std::chrono::hours(1)}); }

  void wait_until(double at) {
    const double left = std::max(0.0, at - now());
    const std::vector<comm::Request> requests{reply_, mailbox_.timer(nanoseconds(static_cast<int64_t>(left * 1e9) + 1))};
    mailbox_.first(requests);
  }

  void wait_for_workers() {
    const double until = now() + kStartDeadline;
    while (static_cast<int>(mailbox_.nodes().size()) < o_.workers + 1) {
      if (now() > until)
        throw Error(Error::Kind::lost_peer, fmt::format("only {} of {} workers came", mailbox_.nodes().size() - 1, o_.workers));
      wait_until(now() + kLook);
    }
  }

  void post(int worker, std::vector<std::byte> body, comm::Purpose purpose = comm::Purpose::control) {
    node_.send(worker_node(worker), kWorkTag, std::move(body), {.purpose = purpose});
  }

  void send_weights(int64_t stream) {
    const std::vector<float> weights = streams_.weights(stream);
    for (const int worker : alive_) post(worker, encode_weights(stream, weights), comm::Purpose::parameter);
  }

  // Rounds under one scheme until so many jobs are done. A lost worker begins anew with a placement for the others.
  void run_until(int64_t jobs, SchemeSpec spec) {
    while (done_ < jobs && !stop_.requested()) {
      const auto n = static_cast<int>(alive_.size());
      if (n == 0) throw Error(Error::Kind::lost_peer, "all workers are lost");
      spec.s = std::min(spec.s, n - 1);
      spec.lambda = std::min(spec.lambda, n);
      result_.spec = spec;
      base_ = done_;
      forget_ = true;
      gradients_.forget_all();
      Rounds rounds(make_scheme(spec, n, jobs - done_, o_.code, o_.seed, &codes_), o_.mu);
      while (!rounds.over() && !stop_.requested())
        if (!run_round(rounds, spec)) break;  // a worker was lost
    }
  }

  // False: workers were removed, and the round did not count.
  bool run_round(Rounds& rounds, const SchemeSpec& spec) {
    const std::vector<Task>& tasks = rounds.begin();
    record_ = {.round = next_round_++, .scheme = spec.text(), .load = rounds.scheme().load()};
    record_.samples.assign(static_cast<size_t>(o_.workers), -1);
    for (size_t i = 0; i < tasks.size(); ++i) post(alive_[i], encode(order_for(i, tasks[i], rounds.scheme())));
    forget_ = false;
    begun_ = now();
    arrivals_.assign(alive_.size(), -1);
    while (true) {
      take_replies(rounds);
      const double elapsed = now() - begun_;
      const std::optional<double> closes = rounds.closes_at();
      if (closes && elapsed + 1e-9 >= *closes) break;
      if (remove_lost(rounds, elapsed)) return false;
      wait_until(begun_ + std::min(elapsed + kLook, closes.value_or(elapsed + kLook)));
    }
    finish(rounds);
    return true;
  }

  TaskOrder order_for(size_t i, const Task& task, const Scheme& scheme) {
    TaskOrder order{.round = record_.round, .last_valid = !forget_ && valid_[i], .forget = forget_, .jobs_done = done_};
    int64_t units = 0;
    for (const Slot& slot : task) {
      const int64_t job = base_ + slot.job, streams = streams_.streams();
      SlotOrder& one = order.slots.emplace_back(
          SlotOrder{.job = job, .stream = job % streams, .step = job / streams + 1, .group = slot.group, .send_total = slot.completes});
      const int64_t samples = streams_.samples(one.stream, one.step);
      for (size_t k = 0; k < slot.chunks.size(); ++k) {
        const Chunk& chunk = scheme.chunks()[static_cast<size_t>(slot.chunks[k])];
        const int64_t first = samples * chunk.first / scheme.units(), end = samples * (chunk.first + chunk.count) / scheme.units();
        one.ranges.push_back({first, end - first, slot.weights[k], slot.chunks[k]});
        units += chunk.count;
      }
    }
    order.load = static_cast<double>(units) / static_cast<double>(scheme.units());
    return order;
  }

  void take_replies(Rounds& rounds) {
    mailbox_.progress();
    while (reply_.ready()) {
      TaskReply reply = decode_reply(reply_.message().body);
      listen();
      const auto place = std::find(alive_.begin(), alive_.end(), static_cast<int>(reply.worker));
      if (reply.round != record_.round || place == alive_.end()) continue;  // too late: its round is closed
      const auto i = static_cast<size_t>(place - alive_.begin());
      const double at = now() - begun_;
      if (const auto closes = rounds.closes_at(); closes && at > *closes) continue;  // it came while the master was busy
      rounds.arrived(static_cast<int>(i), at);
      arrivals_[i] = at;
      record_.samples[static_cast<size_t>(reply.worker)] = reply.samples;
      for (SlotReply& slot : reply.slots) {
        for (const auto& [chunk, loss] : slot.losses) gradients_.add_loss(slot.job, static_cast<int>(chunk), loss);
        if (slot.gradient.empty()) continue;
        if (slot.group < 0)
          gradients_.add_own_sum(slot.job, slot.gradient);
        else
          gradients_.add_coded(slot.job, static_cast<int>(slot.group), static_cast<int>(i), std::move(slot.gradient));
      }
    }
  }

  // Workers that have left, and those who hold up a round beyond all measure.
  bool remove_lost(const Rounds& rounds, double elapsed) {
    const std::map<std::string, int> nodes = mailbox_.nodes();
    const Workers late = rounds.late_now();
    const double usual = median(durations_);
    const bool hopeless = !durations_.empty() && elapsed > static_cast<double>(o_.dead_after) * usual;
    std::vector<int> left;
    for (size_t i = 0; i < alive_.size(); ++i) {
      if (nodes.contains(worker_node(alive_[i])) && !(hopeless && late[i])) {
        left.push_back(alive_[i]);
        continue;
      }
      if (nodes.contains(worker_node(alive_[i]))) post(alive_[i], encode_stop());
      result_.lost.push_back(alive_[i]);
      world_.log().warn("worker {} is lost: its part goes to the others", alive_[i]);
    }
    if (left.size() == alive_.size()) return false;
    for (const int worker : left) post(worker, encode_cancel(record_.round));
    result_.seconds += elapsed;
    alive_ = std::move(left);
    valid_.assign(alive_.size(), 0);
    return true;
  }

  void finish(Rounds& rounds) {
    ClosedRound closed = rounds.close(now() - begun_);
    for (size_t i = 0; i < alive_.size(); ++i) {
      valid_[i] = !closed.late[i];
      if (!closed.late[i]) continue;
      post(alive_[i], encode_cancel(record_.round));
      record_.late.push_back(alive_[i]);
    }
    record_.seconds = closed.seconds;
    record_.waited = closed.waited;
    if (closed.completed) complete(*closed.completed);
    result_.seconds += closed.seconds;
    durations_.push_back(closed.seconds);
    if (on_round_) on_round_(record_);
    result_.rounds.push_back(record_);
  }

  void complete(JobDecoding how) {
    how.job += base_;
    CAIRN_CHECK(how.job == done_, "job {} is complete after job {}", how.job, done_ - 1);
    const JobGradients::Decoded decoded = gradients_.decode(how);
    const int64_t stream = how.job % streams_.streams();
    streams_.apply(stream, how.job / streams_.streams() + 1, decoded.gradient, decoded.loss_sum);
    record_.job = how.job;
    ++done_;
    send_weights(stream);
  }

  // The probe: rounds without coding, then some with twice the load, which say how many seconds a load costs.
  void choose() {
    const auto n = static_cast<int>(alive_.size());
    const int64_t uncoded = std::min(o_.jobs, std::max<int64_t>(1, o_.probe_rounds * 3 / 4)), all = std::min(o_.jobs, o_.probe_rounds);
    std::vector<std::pair<double, double>> by_load;
    const auto probe = [&](int64_t jobs, const SchemeSpec& spec, bool keep) {
      while (done_ < jobs && !stop_.requested()) {
        run_until(done_ + 1, spec);
        std::vector<double> replied;
        for (const double at : arrivals_)
          if (at >= 0) replied.push_back(at);
        by_load.emplace_back(record_.load, median(replied));
        if (keep && static_cast<int>(arrivals_.size()) == n && static_cast<int>(replied.size()) == n)
          result_.profile.seconds.push_back(arrivals_);
      }
    };
    probe(uncoded, {}, true);
    const int s = std::max(1, n / 4);
    if (n > 1) probe(all, {.kind = SchemeKind::gc, .s = s}, false);
    result_.probe_seconds = result_.seconds;
    result_.probe_jobs = done_;
    if (result_.profile.seconds.empty()) {  // too many workers were lost
      result_.spec = {};
      return;
    }
    result_.profile.load = 1.0 / n;
    result_.profile.per_load = fit_per_load(by_load);
    ChooseOptions options{.workers = n,
                          .jobs = std::max<int64_t>(1, o_.jobs - done_),
                          .delay_max = std::min<int>(o_.delay_max, static_cast<int>(streams_.streams()) - 1),
                          .mu = o_.mu,
                          .code = o_.code,
                          .seed = o_.seed,
                          .codes = &codes_};
    if (!o_.any_kind) options.kinds = {o_.spec.kind};
    result_.choices = rank_parameters(options, result_.profile.times());
    if (result_.choices.empty())
      throw Error(Error::Kind::bad_input, fmt::format("no parameters of {} work with {} workers", name_of(o_.spec.kind), n));
    result_.spec = result_.choices.front().spec;
    world_.log().info("{} is predicted to take {:.1f} s for {} jobs", result_.spec.text(), result_.choices.front().seconds, options.jobs);
  }

  comm::World& world_;
  const MasterOptions& o_;
  Streams& streams_;
  const base::Stop& stop_;
  const std::function<void(const RoundRecord&)>& on_round_;
  comm::Mailbox mailbox_;
  comm::Node node_;
  comm::Request reply_;
  std::vector<comm::Request> sends_;
  std::vector<int> alive_;  // by place in the scheme: the worker
  Workers valid_;           // by place: its results of the last round count
  bool forget_ = true;
  int64_t done_ = 0, base_ = 0;  // jobs that are complete; the first job of the scheme
  int64_t next_round_ = 0;
  double begun_ = 0;
  std::vector<double> arrivals_;   // of this round, by place; -1: none
  std::vector<double> durations_;  // of all rounds
  JobGradients gradients_;
  CodeCache codes_;
  RoundRecord record_;
  MasterResult result_;
};

}  // namespace

MasterResult run_coded_master(comm::World& world, const MasterOptions& options, Streams& streams, const base::Stop& stop,
                              const std::function<void(const RoundRecord&)>& on_round) {
  return Master(world, options, streams, stop, on_round).run();
}

}  // namespace cairn::federate
