// How a mailbox routes messages.
//
// Names: a node is announced to all ranks (join). A message to an unknown node waits in `unannounced` until the join arrives. join, leave
// and messages of one rank share a channel, so a message never arrives before the join of its sender. Epochs: every frame carries its
// sender's epoch. Lower than ours: dropped and counted. Higher: held until this rank enters that epoch. Flow control: unread bytes are
// counted per sending rank; above the limit its channel stops reading until messages are received.
#include "comm/mailbox/state.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

using Kind = Request::State::Kind;

// The group id of the transport messages: the same on every rank, and odd, as for everything that is not a collective.
uint64_t group_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : fmt::format("mailbox {}", name)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash | 1;
}

bool fits(const Request::State& filter, const MailboxMessage& message) {
  return (filter.from.empty() || filter.from == message.from) && (filter.tag.empty() || filter.tag == message.tag);
}

}  // namespace

Mailbox::State::State(World& of, MailboxOptions how) : world(of), transport(of.transport()), options(std::move(how)) {
  CAIRN_CHECK(options.chunk_bytes > 0 && options.chunk_bytes <= options.body_bytes_max && options.chunks_in_flight > 0,
              "{} chunks of {} bytes, of at most {}", options.chunks_in_flight, options.chunk_bytes, options.body_bytes_max);
  for (int rank = 0; rank < of.size(); ++rank) {
    if (rank == of.rank()) {
      channels.push_back(nullptr);
      continue;
    }
    Channel::Reader reader{[this](int from, MailboxFrame&& frame) { arrive(from, std::move(frame)); },
                           [this](int from, const Error& error) { broken(from, error); }};
    channels.push_back(std::make_unique<Channel>(transport, rank, group_of(options.name), options.body_bytes_max, options.unread_bytes_max,
                                                 std::move(reader)));
  }
}

void Mailbox::State::start() {
  for (const auto& channel : channels) {
    if (channel) channel->start();
  }
}

void Mailbox::State::close() {
  closed = true;
  channels.clear();
  unannounced.clear();
  fetches.clear();
  queues.clear();
  offers.clear();
}

Mailbox::State::Pending Mailbox::State::make(Kind kind, std::chrono::nanoseconds within, std::string what) {
  return std::make_shared<Request::State>(shared_from_this(), kind, within, std::move(what));
}

void Mailbox::State::drive(const std::function<bool()>& done, std::chrono::nanoseconds until, const std::string& doing) {
  const auto settled = [&] {
    settle();
    return done();
  };
  if (settled() || transport.spin(settled)) return;
  const Completion alarm = transport.timer(until);
  transport.drive(settled, until, doing);
}

void Mailbox::State::settle() {
  while (lost_peers_seen < transport.lost_peers().size()) {
    const LostPeer loss = transport.lost_peers()[lost_peers_seen++];
    lose(loss);
  }
  if (leaving.empty() || std::uncaught_exceptions() > 0) return;
  for (const std::string& node : std::exchange(leaving, {})) leave(node);
}

void Mailbox::State::expire(Request::State& request) {
  if (closed) return request.fail(Error(Error::Kind::cancelled, "its mailbox has ended"));
  if (request.kind == Kind::timer) return request.succeed();
  request.timed_out = true;
  request.fail(overdue(request));
  if (request.kind == Kind::send) {
    for (auto& [node, sends] : unannounced) std::erase_if(sends, [&](const auto& one) { return one.second.get() == &request; });
  }
}

Error Mailbox::State::overdue(const Request::State& request) const {
  const std::string waited = fmt::format("{:.1f} s", base::seconds(now() - request.begun));
  const std::string& about = request.kind == Kind::send ? request.node : request.from;
  const NodeDirectory::Member* member = directory.find(about);
  std::string text = request.kind == Kind::receive ? "nothing came within " + waited
                     : request.kind == Kind::fetch ? "nothing came any more, after " + waited + " in all"
                                                   : "not gone within " + waited;
  if (!about.empty() && !member) text += ": " + directory.unknown(about, epoch);
  if (newest > epoch) text += fmt::format("; others are in epoch {}, this rank in {}", newest, epoch);
  for (size_t rank = 0; rank < channels.size(); ++rank) {
    if (!channels[rank] || !channels[rank]->full() || (member && member->rank != static_cast<int>(rank))) continue;
    text += fmt::format("; {} bytes from rank {} lie unread here, and what follows waits until they are received",
                        channels[rank]->unread_bytes(), rank);
  }
  Error error(Error::Kind::lost_peer, text);
  return error.about_peer(member ? member->rank : -1);
}

void Mailbox::State::tell_all(MailboxFrame::Kind kind, const std::string& node) {
  for (size_t rank = 0; rank < channels.size(); ++rank) {
    if (!channels[rank] || gone.contains(static_cast<int>(rank))) continue;
    channels[rank]->send({.kind = kind, .epoch = epoch, .from = node}, nullptr);
  }
}

void Mailbox::State::route(MailboxFrame&& frame, Pending request) {
  if (const auto trouble = directory.trouble(frame.to)) {
    if (request) request->fail(*trouble);
    return;
  }
  const NodeDirectory::Member* member = directory.find(frame.to);
  if (!member) {
    unannounced[frame.to].emplace_back(std::move(frame), std::move(request));
  } else if (member->rank == world.rank()) {
    handle(member->rank, std::move(frame));
    if (request) request->succeed();
  } else {
    Channel::Sent sent;
    if (request) sent = [request](const Error* failure) { failure ? request->fail(*failure) : request->succeed(); };
    channels[member->rank]->send(std::move(frame), std::move(sent));
  }
}

void Mailbox::State::arrive(int rank, MailboxFrame&& frame) {
  newest = std::max(newest, frame.epoch);
  if (frame.damaged && frame.kind != MailboxFrame::Kind::chunk) {
    counts.damaged += 1;
  } else if (frame.epoch < epoch) {
    counts.old_epoch += 1;
  } else if (frame.epoch > epoch) {
    channels[rank]->keep(static_cast<int64_t>(frame.body.size()) + 3 * kNameBytesMax);
    ahead.emplace_back(rank, std::move(frame));
  } else {
    handle(rank, std::move(frame));
  }
}

void Mailbox::State::handle(int rank, MailboxFrame&& frame) {
  if (frame.kind != MailboxFrame::Kind::join) {  // a rank speaks only for its own nodes
    const NodeDirectory::Member* sender = directory.find(frame.from);
    if (!sender || sender->rank != rank || sender->status != NodeDirectory::Status::present) {
      counts.no_node += 1;
      return;
    }
  }
  switch (frame.kind) {
    case MailboxFrame::Kind::message:
      return put({std::move(frame.from), std::move(frame.to), std::move(frame.tag), frame.epoch, frame.purpose, std::move(frame.body)},
                 rank);
    case MailboxFrame::Kind::join: {
      directory.join(frame.from, rank);
      if (const auto lost = gone.find(rank); lost != gone.end()) directory.lose(rank, lost->second.reason, lost->second.culprit);
      auto waiting = unannounced.extract(frame.from);
      if (waiting.empty()) return;
      for (auto& [one, request] : waiting.mapped()) {
        if (!request || !request->complete) route(std::move(one), request);
      }
      return;
    }
    case MailboxFrame::Kind::leave:
      directory.leave(frame.from, rank);
      return fail_waiting_for(frame.from);
    case MailboxFrame::Kind::ask:
      return answer(frame);
    case MailboxFrame::Kind::chunk:
    case MailboxFrame::Kind::refusal:
      return take_chunk(std::move(frame));
  }
}

void Mailbox::State::broken(int rank, const Error& error) {
  const bool left = error.kind() == Error::Kind::lost_peer && error.peer() >= 0;
  lose({rank, rank, left ? "it has ended its work" : "it " + error.sentence()});
}

void Mailbox::State::lose(const LostPeer& loss) {
  if (!gone.emplace(loss.rank, loss).second) return;
  for (const std::string& node : directory.lose(loss.rank, loss.reason, loss.culprit)) fail_waiting_for(node);
  Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: {}", loss.rank, loss.reason));
  if (channels[loss.rank]) channels[loss.rank]->close(error.about_peer(loss.culprit));
}

void Mailbox::State::release(int rank, int64_t bytes) {
  if (channels[rank]) channels[rank]->release(bytes);
}

void Mailbox::State::put(MailboxMessage&& message, int rank) {
  const auto queue = queues.find(message.to);
  if (queue == queues.end()) {
    counts.no_node += 1;
    return;
  }
  auto& waiting = queue->second.waiting;
  std::erase_if(waiting, [](const auto& one) { return one.expired() || one.lock()->complete; });
  for (const auto& one : waiting) {
    const Pending request = one.lock();
    if (now() >= request->due || !fits(*request, message)) continue;
    request->message = std::move(message);
    return request->succeed();
  }
  if (channels[rank]) channels[rank]->keep(weight(message));
  queue->second.unread.push_back({std::move(message), rank});
}

void Mailbox::State::receive(const Pending& request) {
  NodeQueue& queue = queues.at(request->node);
  const auto found = std::find_if(queue.unread.begin(), queue.unread.end(), [&](const Unread& one) { return fits(*request, one.message); });
  if (found == queue.unread.end()) {
    if (const auto trouble = request->from.empty() ? std::nullopt : directory.trouble(request->from)) return request->fail(*trouble);
    queue.waiting.push_back(request);
    return;
  }
  Unread unread = std::move(*found);
  queue.unread.erase(found);
  const int64_t bytes = weight(unread.message);
  request->message = std::move(unread.message);
  request->succeed();
  release(unread.rank, bytes);  // last: it may deliver more messages at once
}

void Mailbox::State::fail_waiting_for(const std::string& node) {
  const auto trouble = directory.trouble(node);
  for (auto& [name, queue] : queues) {
    for (const auto& one : queue.waiting) {
      if (const Pending request = one.lock(); request && request->from == node) request->fail(*trouble);
    }
  }
  fail_fetches([&](const Fetch& fetch) { return fetch.from == node; }, *trouble);
}

void Mailbox::State::leave(const std::string& node) {
  tell_all(MailboxFrame::Kind::leave, node);
  directory.leave(node, world.rank());
  fail_waiting_for(node);
  const Error why(Error::Kind::cancelled, fmt::format("node {} has left", node));
  fail_fetches([&](const Fetch& fetch) { return fetch.node == node; }, why);
  std::erase_if(offers, [&](const auto& one) { return one.first.first == node; });
  for (auto& [to, sends] : unannounced) {
    std::erase_if(sends, [&](const auto& one) {
      const auto& [frame, request] = one;
      if (frame.from != node) return false;
      if (request && !request->complete) {
        counts.unsent += 1;
        request->fail(Error(Error::Kind::cancelled, fmt::format("node {} has left before node {} was known", node, to)));
      }
      return true;
    });
  }
  auto queue = queues.extract(node);
  for (const auto& one : queue.mapped().waiting) {
    if (const Pending request = one.lock()) request->fail(why);
  }
  for (const Unread& one : queue.mapped().unread) release(one.rank, weight(one.message));
}

void Mailbox::State::enter(uint64_t next) {
  const Error over(Error::Kind::cancelled, fmt::format("epoch {} is over, epoch {} has begun", epoch, next));
  epoch = next;
  newest = std::max(newest, epoch);
  directory.begin_epoch();
  fail_fetches([](const Fetch&) { return true; }, over);
  for (auto& [node, sends] : std::exchange(unannounced, {})) {
    for (auto& [frame, request] : sends) {
      if (request) request->fail(over);
    }
  }
  std::vector<std::pair<int, int64_t>> dropped;
  for (auto& [node, queue] : queues) {
    for (const auto& one : std::exchange(queue.waiting, {})) {
      if (const Pending request = one.lock()) request->fail(over);
    }
    for (const Unread& one : std::exchange(queue.unread, {})) dropped.emplace_back(one.rank, weight(one.message));
    directory.join(node, world.rank());
  }
  counts.old_epoch += static_cast<int64_t>(dropped.size());
  for (const auto& [node, queue] : queues) tell_all(MailboxFrame::Kind::join, node);
  for (auto& [rank, frame] : std::exchange(ahead, {})) {  // in the order of arrival
    dropped.emplace_back(rank, static_cast<int64_t>(frame.body.size()) + 3 * kNameBytesMax);
    arrive(rank, std::move(frame));
  }
  for (const auto& [rank, bytes] : dropped) release(rank, bytes);
}

}  // namespace cairn::comm
