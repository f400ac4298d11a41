#include "federate/coded_worker.h"

#include <chrono>
#include <deque>
#include <utility>

#include "base/check.h"
#include "comm/mailbox.h"
#include "comm/world.h"
#include "federate/coding/job_gradients.h"

namespace cairn::federate {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::minutes kMasterSilent{30};

class Worker {
 public:
  Worker(comm::World& world, const WorkerOptions& options, GradientSource& source)
      : world_(world),
        options_(options),
        source_(source),
        mailbox_(world, {.name = "coded", .body_bytes_max = options.message_bytes_max, .unread_bytes_max = 16 * options.message_bytes_max}),
        node_(mailbox_.open(worker_node(options.worker))) {
    listen();
  }

  void serve() {
    while (true) {
      const std::vector<std::byte> message = next();
      switch (kind_of(message)) {
        case WorkKind::stop:
          return;
        case WorkKind::cancel:
          break;  // of a task that was done already
        case WorkKind::weights: {
          const auto [stream, weights] = decode_weights(message);
          source_.take_weights(stream, weights);
          break;
        }
        case WorkKind::task:
          run(decode_order(message));
          break;
      }
    }
  }

 private:
  void listen() { message_ = node_.receive({.from = kMasterNode, .tag = kWorkTag, .within = kMasterSilent}); }

  std::vector<std::byte> next() {
    if (!backlog_.empty()) {
      std::vector<std::byte> first = std::move(backlog_.front());
      backlog_.pop_front();
      return first;
    }
    std::vector<std::byte> body = message_.message().body;
    listen();
    return body;
  }

  // Whether the master has cancelled this round. Other messages are kept for later.
  bool given_up(int64_t round) {
    if (given_up_) return true;
    mailbox_.progress();
    while (message_.ready()) {
      std::vector<std::byte> body = message_.message().body;
      listen();
      const bool cancelled = kind_of(body) == WorkKind::cancel && decode_cancel(body) == round;
      given_up_ |= cancelled || kind_of(body) == WorkKind::stop;
      if (!cancelled) backlog_.push_back(std::move(body));
    }
    return given_up_;
  }

  void pause(const TaskOrder& order) {
    const nanoseconds until = world_.clock().now() + nanoseconds(static_cast<int64_t>(1e9 * options_.delay(order.round, order.load)));
    while (!given_up(order.round) && world_.clock().now() < until) {
      const std::vector<comm::Request> requests{message_, mailbox_.timer(until - world_.clock().now())};
      mailbox_.first(requests);
    }
  }

  void run(const TaskOrder& order) {
    if (order.forget) own_.forget_all();
    own_.settle(order.last_valid);
    own_.forget_before(order.jobs_done);
    if (order.slots.empty()) return;
    given_up_ = false;
    if (options_.delay) pause(order);
    TaskReply reply{.round = order.round, .worker = options_.worker};
    for (const SlotOrder& slot : order.slots) {
      if (given_up(order.round)) return;
      std::optional<GradientSource::Gradient> found =
          source_.compute(slot.stream, slot.step, slot.ranges, [&] { return given_up(order.round); });
      if (!found) return;
      SlotReply& one = reply.slots.emplace_back(SlotReply{.job = slot.job, .group = slot.group});
      for (size_t k = 0; k < slot.ranges.size(); ++k) {
        one.losses.emplace_back(slot.ranges[k].chunk, found->losses[k]);
        reply.samples += slot.ranges[k].count;
      }
      if (slot.group >= 0) {
        one.gradient = std::move(found->sum);
        continue;
      }
      own_.add(slot.job, std::move(found->sum));
      if (slot.send_total) one.gradient = own_.total(slot.job);
    }
    node_.send(kMasterNode, kReplyTag, encode(reply), {.purpose = comm::Purpose::gradient});
  }

  comm::World& world_;
  const WorkerOptions& options_;
  GradientSource& source_;
  comm::Mailbox mailbox_;
  comm::Node node_;
  comm::Request message_;
  std::deque<std::vector<std::byte>> backlog_;  // came while a task was computed
  bool given_up_ = false;
  OwnSums own_;
};

}  // namespace

void run_coded_worker(comm::World& world, const WorkerOptions& options, GradientSource& source) { Worker(world, options, source).serve(); }

}  // namespace cairn::federate
