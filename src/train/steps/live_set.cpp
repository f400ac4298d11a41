#include "train/steps/live_set.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"

namespace cairn::train {
namespace {

using std::chrono::nanoseconds;

constexpr const char* kReady = "ready";
constexpr const char* kLive = "live";

std::string node_of(int rank) { return fmt::format("rank-{}", rank); }

// On the wire: of "ready", step and rank; of "live", step and rank 0, then a byte and a double for each rank.
struct Head {
  int64_t step = 0;
  int64_t rank = 0;
};

}  // namespace

LiveSet::LiveSet(comm::World& world, comm::Group& ranks, const sync::GradientCode& code, double mu)
    : world_(world),
      ranks_(ranks),
      code_(code),
      mu_(mu),
      me_(ranks.rank()),
      size_(ranks.size()),
      mailbox_(world, {.name = "coded step", .within = ranks.deadline()}),
      node_(mailbox_.open(node_of(me_))) {
  listen();
}

LiveSet::~LiveSet() = default;

void LiveSet::listen() {
  message_ = is_host() ? node_.receive({.tag = kReady, .within = ranks_.deadline()})
                       : node_.receive({.from = node_of(0), .tag = kLive, .within = ranks_.deadline()});
}

void LiveSet::begin(int64_t step) {
  CAIRN_CHECK(closed_, "step {} begins before step {} is closed", step, step_);
  step_ = step;
  closed_ = false;
  begun_ = world_.clock().now();
  first_ = nanoseconds(-1);
  ready_.assign(static_cast<size_t>(size_), 0);
  for (const auto& [rank, of] : std::exchange(early_, {})) note_ready(rank, of);
}

void LiveSet::note_ready(int rank, int64_t step) {
  if (step > step_) early_.emplace_back(rank, step);
  if (step != step_ || closed_) return;  // of an earlier step: it came too late for it
  if (first_ < nanoseconds(0)) first_ = world_.clock().now();
  ready_[static_cast<size_t>(rank)] = 1;
}

nanoseconds LiveSet::cut_off() const {
  return begun_ + nanoseconds(static_cast<int64_t>((1 + mu_) * static_cast<double>((first_ - begun_).count())));
}

void LiveSet::close_if_due() {
  if (closed_ || first_ < nanoseconds(0)) return;
  const bool all = std::all_of(ready_.begin(), ready_.end(), [](char is) { return is != 0; });
  if (!all && world_.clock().now() < cut_off()) return;
  sync::Decoding found = code_.decode(ready_);
  if (found.weights.empty()) return;
  decoding_ = std::move(found);
  live_ = ready_;
  announce();
  closed_ = true;
}

void LiveSet::announce() {
  const Head head{.step = step_};
  std::vector<std::byte> body(sizeof(Head) + static_cast<size_t>(size_) * (1 + sizeof(double)));
  std::memcpy(body.data(), &head, sizeof(Head));
  std::memcpy(body.data() + sizeof(Head), live_.data(), live_.size());
  std::memcpy(body.data() + sizeof(Head) + live_.size(), decoding_.weights.data(), live_.size() * sizeof(double));
  for (int rank = 1; rank < size_; ++rank) node_.send(node_of(rank), kLive, body, {.purpose = comm::Purpose::control});
}

// Handles what has come. The body is from a peer of this run; its size is checked all the same.
void LiveSet::take_messages() {
  while (message_.ready()) {
    if (message_.timed_out()) {
      listen();
      continue;
    }
    const comm::MailboxMessage message = message_.message();
    listen();
    const auto ranks = static_cast<size_t>(size_);
    const size_t expected = sizeof(Head) + (is_host() ? 0 : ranks * (1 + sizeof(double)));
    CAIRN_CHECK(message.body.size() == expected, "a message of {} bytes from {}, not {}", message.body.size(), message.from, expected);
    Head head;
    std::memcpy(&head, message.body.data(), sizeof(Head));
    if (is_host()) {
      CAIRN_CHECK(head.rank >= 0 && head.rank < size_, "rank {} of {} is ready", head.rank, size_);
      note_ready(static_cast<int>(head.rank), head.step);
      continue;
    }
    CAIRN_CHECK(head.step == step_ && !closed_, "step {} is closed, and this rank is at step {}", head.step, step_);
    live_.resize(ranks);
    decoding_.weights.resize(ranks);
    std::memcpy(live_.data(), message.body.data() + sizeof(Head), ranks);
    std::memcpy(decoding_.weights.data(), message.body.data() + sizeof(Head) + ranks, ranks * sizeof(double));
    closed_ = true;
    return;  // what comes next belongs to the next step
  }
}

bool LiveSet::closed() {
  if (closed_) return true;
  mailbox_.progress();
  take_messages();
  if (is_host()) close_if_due();
  return closed_;
}

// Until a message, the cut-off, or this time.
void LiveSet::wait_for_event(nanoseconds until) {
  const nanoseconds now = world_.clock().now();
  std::vector<comm::Request> requests{message_, mailbox_.timer(until - now)};
  if (is_host() && first_ >= nanoseconds(0) && cut_off() > now) requests.push_back(mailbox_.timer(cut_off() - now));
  mailbox_.first(requests);
}

void LiveSet::pause(nanoseconds length) {
  const nanoseconds until = world_.clock().now() + length;
  while (!closed() && world_.clock().now() < until) wait_for_event(until);
}

void LiveSet::ready() {
  if (is_host()) {
    note_ready(0, step_);
    return;
  }
  const Head head{.step = step_, .rank = me_};
  std::vector<std::byte> body(sizeof(Head));
  std::memcpy(body.data(), &head, sizeof(Head));
  node_.send(node_of(0), kReady, std::move(body), {.purpose = comm::Purpose::control});
}

const sync::Decoding& LiveSet::wait() {
  const nanoseconds until = world_.clock().now() + ranks_.deadline();
  while (!closed()) {
    if (world_.clock().now() >= until) {
      std::vector<int> late;
      for (int rank = 0; is_host() && rank < size_; ++rank)
        if (!ready_[static_cast<size_t>(rank)]) late.push_back(rank);
      throw Error(Error::Kind::lost_peer,
                  fmt::format("step {}: {} within {:.0f} s", step_,
                              is_host() ? fmt::format("too few gradients to decode, ranks {} are not ready", fmt::join(late, ", "))
                                        : std::string("rank 0 did not say whose gradients count"),
                              base::seconds(ranks_.deadline())))
          .about_peer(is_host() && !late.empty() ? ranks_.ranks()[static_cast<size_t>(late.front())] : ranks_.ranks().front());
    }
    wait_for_event(until);
  }
  return decoding_;
}

}  // namespace cairn::train
