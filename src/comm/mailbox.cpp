#include "comm/mailbox.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "comm/mailbox/state.h"

namespace cairn::comm {
namespace {

constexpr auto kFarewell = std::chrono::seconds(2);  // for outgoing messages when a mailbox ends

}  // namespace

Mailbox::Mailbox(World& world, MailboxOptions options) : state_(std::make_shared<State>(world, std::move(options))) { state_->start(); }

Mailbox::~Mailbox() {
  try {
    state_->settle();
    const auto idle = [this] {
      return std::all_of(state_->channels.begin(), state_->channels.end(), [](auto& c) { return !c || c->idle(); });
    };
    if (!idle()) state_->drive(idle, state_->now() + kFarewell, "the last messages of a mailbox to go");
  } catch (...) {  // a destructor never throws
  }
  state_->close();
}

Node Mailbox::open(std::string name) {
  check_name("node", name);
  state_->settle();
  if (state_->queues.contains(name))
    base::fail_input("node {} is open on rank {} already: give one another name", name, state_->world.rank());
  state_->queues[name];
  state_->tell_all(MailboxFrame::Kind::join, name);
  state_->handle(state_->world.rank(), {.kind = MailboxFrame::Kind::join, .epoch = state_->epoch, .from = name});
  return Node(state_, std::move(name));
}

std::map<std::string, int> Mailbox::nodes() const {
  state_->settle();
  return state_->directory.present();
}

void Mailbox::enter(uint64_t epoch) {
  if (epoch <= state_->epoch) base::fail_input("epoch {} after epoch {}: a new one has a higher number", epoch, state_->epoch);
  state_->enter(epoch);
}

uint64_t Mailbox::epoch() const { return state_->epoch; }
uint64_t Mailbox::newest_epoch() const { return state_->newest; }

Request Mailbox::timer(std::chrono::nanoseconds after) {
  return Request(state_->make(Request::State::Kind::timer, after, fmt::format("a timer of {:.3f} s", base::seconds(after))));
}

size_t Mailbox::first(std::span<const Request> requests) {
  CAIRN_CHECK(!requests.empty(), "the first of no requests");
  const auto ready = [&] { return std::find_if(requests.begin(), requests.end(), [](const Request& one) { return one.ready(); }); };
  while (ready() == requests.end()) {
    auto until = std::chrono::nanoseconds::max();
    for (const Request& one : requests) until = std::min(until, one.state_->due);
    state_->drive([&] { return ready() != requests.end(); }, until, requests.front().state_->what + ", or another of several requests");
  }
  return static_cast<size_t>(ready() - requests.begin());
}

MailboxCounts Mailbox::counts() const {
  MailboxCounts counts = state_->counts;
  counts.ahead = static_cast<int64_t>(state_->ahead.size());
  return counts;
}

void Mailbox::progress() {
  state_->transport.poll();
  state_->settle();
}

Node& Node::operator=(Node&& other) noexcept {
  if (this != &other) {
    leave();
    state_ = std::move(other.state_);
    name_ = std::move(other.name_);
  }
  return *this;
}

void Node::leave() {
  const auto state = std::exchange(state_, nullptr);
  if (!state || state->closed) return;
  if (std::uncaught_exceptions() > 0) {  // most likely this rank ends, and reports that itself
    state->leaving.push_back(name_);
  } else {
    state->leave(name_);
  }
}

Request Node::send(std::string_view to, std::string_view tag, std::vector<std::byte> body, const SendOptions& options) {
  CAIRN_CHECK(state_ && !state_->closed, "node {} sends after it has left", name_);
  check_name("node", to);
  check_name("tag", tag);
  const auto bytes = static_cast<int64_t>(body.size());
  if (bytes > state_->options.body_bytes_max) {
    base::fail_input("node {} sends {} of {} bytes to node {}: at most {} are allowed in one message, offer it to be fetched", name_, tag,
                     bytes, to, state_->options.body_bytes_max);
  }
  state_->settle();
  const auto request =
      state_->make(Request::State::Kind::send, state_->limit(options.within), fmt::format("node {} sends {} to node {}", name_, tag, to));
  request->node = to;
  state_->route({.kind = MailboxFrame::Kind::message,
                 .purpose = options.purpose,
                 .epoch = state_->epoch,
                 .from = name_,
                 .to = std::string(to),
                 .tag = std::string(tag),
                 .body = std::move(body)},
                request);
  return Request(request);
}

Request Node::send(std::string_view to, std::string_view tag, std::string_view text, const SendOptions& options) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return send(to, tag, std::vector<std::byte>(first, first + text.size()), options);
}

Request Node::receive(const ReceiveFilter& filter) {
  CAIRN_CHECK(state_ && !state_->closed, "node {} receives after it has left", name_);
  state_->settle();
  const auto request = state_->make(Request::State::Kind::receive, state_->limit(filter.within),
                                    fmt::format("node {} waits for {} from {}", name_, filter.tag.empty() ? "a message" : filter.tag,
                                                filter.from.empty() ? "anybody" : "node " + filter.from));
  request->node = name_;
  request->from = filter.from;
  request->tag = filter.tag;
  state_->receive(request);
  return Request(request);
}

void Node::offer(std::string_view id, std::shared_ptr<const std::vector<std::byte>> bytes, Purpose purpose) {
  CAIRN_CHECK(state_ && !state_->closed, "node {} offers after it has left", name_);
  check_name("transfer", id);
  const uint64_t checksum = base::checksum(*bytes);
  state_->offers[{name_, std::string(id)}] = {std::move(bytes), checksum, purpose};
}

void Node::withdraw(std::string_view id) {
  if (state_) state_->offers.erase({name_, std::string(id)});
}

Request Node::fetch(std::string_view from, std::shared_ptr<IncomingTransfer> into, std::chrono::nanoseconds within) {
  CAIRN_CHECK(state_ && !state_->closed, "node {} fetches after it has left", name_);
  check_name("node", from);
  check_name("transfer", into->id());
  state_->settle();
  const auto limit = state_->limit(within);
  const auto request =
      state_->make(Request::State::Kind::fetch, limit, fmt::format("node {} fetches {} from node {}", name_, into->id(), from));
  request->from = from;
  const int64_t received = into->received();
  state_->fetch({.node = name_, .from = std::string(from), .into = std::move(into), .request = request, .within = limit, .asked = received},
                request);
  return Request(request);
}

}  // namespace cairn::comm
