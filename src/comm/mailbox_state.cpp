// What a mailbox does with parcels, errands and losses.
#include "comm/mailbox_state.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

using Kind = Errand::State::Kind;

// Odd, as all that is not a collective; the same on every rank.
uint64_t group_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : fmt::format("mailbox {}", name)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash | 1;
}

bool fits(const Errand::State& wanted, const Mail& mail) {
  return (wanted.from.empty() || wanted.from == mail.from) && (wanted.tag.empty() || wanted.tag == mail.tag);
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
    Channel::Reader reader{[this](int from, Parcel&& parcel) { arrive(from, std::move(parcel)); },
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
  racks.clear();
  offers.clear();
}

Mailbox::State::Pending Mailbox::State::make(Kind kind, std::chrono::nanoseconds within, std::string what) {
  return std::make_shared<Errand::State>(shared_from_this(), kind, within, std::move(what));
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
  while (losses_seen < transport.losses().size()) {
    const Loss loss = transport.losses()[losses_seen++];
    lose(loss);
  }
  if (leaving.empty() || std::uncaught_exceptions() > 0) return;
  for (const std::string& node : std::exchange(leaving, {})) leave(node);
}

void Mailbox::State::expire(Errand::State& errand) {
  if (closed) return errand.fail(Error(Error::Kind::cancelled, "its mailbox has ended"));
  if (errand.kind == Kind::timer) return errand.succeed();
  errand.timed_out = true;
  errand.fail(overdue(errand));
  if (errand.kind == Kind::send) {
    for (auto& [node, sends] : unannounced) std::erase_if(sends, [&](const auto& one) { return one.second.get() == &errand; });
  }
}

Error Mailbox::State::overdue(const Errand::State& errand) const {
  const std::string waited = fmt::format("{:.1f} s", base::seconds(now() - errand.begun));
  const std::string& about = errand.kind == Kind::send ? errand.node : errand.from;
  const Directory::Member* member = directory.find(about);
  std::string text = errand.kind == Kind::receive ? "nothing came within " + waited
                     : errand.kind == Kind::fetch ? "nothing came any more, after " + waited + " in all"
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

void Mailbox::State::tell_all(Parcel::Kind kind, const std::string& node) {
  for (size_t rank = 0; rank < channels.size(); ++rank) {
    if (!channels[rank] || gone.contains(static_cast<int>(rank))) continue;
    channels[rank]->send({.kind = kind, .epoch = epoch, .from = node}, nullptr);
  }
}

void Mailbox::State::route(Parcel&& parcel, Pending errand) {
  if (const auto trouble = directory.trouble(parcel.to)) {
    if (errand) errand->fail(*trouble);
    return;
  }
  const Directory::Member* member = directory.find(parcel.to);
  if (!member) {
    unannounced[parcel.to].emplace_back(std::move(parcel), std::move(errand));
  } else if (member->rank == world.rank()) {
    handle(member->rank, std::move(parcel));
    if (errand) errand->succeed();
  } else {
    Channel::Sent sent;
    if (errand) sent = [errand](const Error* failure) { failure ? errand->fail(*failure) : errand->succeed(); };
    channels[member->rank]->send(std::move(parcel), std::move(sent));
  }
}

void Mailbox::State::arrive(int rank, Parcel&& parcel) {
  newest = std::max(newest, parcel.epoch);
  if (parcel.damaged && parcel.kind != Parcel::Kind::chunk) {
    counts.damaged += 1;
  } else if (parcel.epoch < epoch) {
    counts.old_epoch += 1;
  } else if (parcel.epoch > epoch) {
    channels[rank]->keep(static_cast<int64_t>(parcel.body.size()) + 3 * kNameBytesMax);
    ahead.emplace_back(rank, std::move(parcel));
  } else {
    handle(rank, std::move(parcel));
  }
}

void Mailbox::State::handle(int rank, Parcel&& parcel) {
  if (parcel.kind != Parcel::Kind::join) {  // nobody speaks for a node of another rank
    const Directory::Member* sender = directory.find(parcel.from);
    if (!sender || sender->rank != rank || sender->fate != Directory::Fate::present) {
      counts.no_node += 1;
      return;
    }
  }
  switch (parcel.kind) {
    case Parcel::Kind::mail:
      return put(
          {std::move(parcel.from), std::move(parcel.to), std::move(parcel.tag), parcel.epoch, parcel.purpose, std::move(parcel.body)},
          rank);
    case Parcel::Kind::join: {
      directory.join(parcel.from, rank);
      if (const auto lost = gone.find(rank); lost != gone.end()) directory.lose(rank, lost->second.reason, lost->second.culprit);
      auto waiting = unannounced.extract(parcel.from);
      if (waiting.empty()) return;
      for (auto& [one, errand] : waiting.mapped()) {
        if (!errand || !errand->complete) route(std::move(one), errand);
      }
      return;
    }
    case Parcel::Kind::leave:
      directory.leave(parcel.from, rank);
      return fail_waiting_for(parcel.from);
    case Parcel::Kind::ask:
      return answer(parcel);
    case Parcel::Kind::chunk:
    case Parcel::Kind::refusal:
      return take_chunk(std::move(parcel));
  }
}

void Mailbox::State::broken(int rank, const Error& error) {
  const bool left = error.kind() == Error::Kind::lost_peer && error.peer() >= 0;
  lose({rank, rank, left ? "it has ended its work" : "it " + error.sentence()});
}

void Mailbox::State::lose(const Loss& loss) {
  if (!gone.emplace(loss.rank, loss).second) return;
  for (const std::string& node : directory.lose(loss.rank, loss.reason, loss.culprit)) fail_waiting_for(node);
  Error error(Error::Kind::lost_peer, fmt::format("rank {} lost: {}", loss.rank, loss.reason));
  if (channels[loss.rank]) channels[loss.rank]->close(error.about_peer(loss.culprit));
}

void Mailbox::State::release(int rank, int64_t bytes) {
  if (channels[rank]) channels[rank]->release(bytes);
}

void Mailbox::State::put(Mail&& mail, int rank) {
  const auto rack = racks.find(mail.to);
  if (rack == racks.end()) {
    counts.no_node += 1;
    return;
  }
  auto& waiting = rack->second.waiting;
  std::erase_if(waiting, [](const auto& one) { return one.expired() || one.lock()->complete; });
  for (const auto& one : waiting) {
    const Pending errand = one.lock();
    if (now() >= errand->due || !fits(*errand, mail)) continue;
    errand->mail = std::move(mail);
    return errand->succeed();
  }
  if (channels[rank]) channels[rank]->keep(weight(mail));
  rack->second.unread.push_back({std::move(mail), rank});
}

void Mailbox::State::receive(const Pending& errand) {
  Rack& rack = racks.at(errand->node);
  const auto found = std::find_if(rack.unread.begin(), rack.unread.end(), [&](const Unread& one) { return fits(*errand, one.mail); });
  if (found == rack.unread.end()) {
    if (const auto trouble = errand->from.empty() ? std::nullopt : directory.trouble(errand->from)) return errand->fail(*trouble);
    rack.waiting.push_back(errand);
    return;
  }
  Unread unread = std::move(*found);
  rack.unread.erase(found);
  const int64_t bytes = weight(unread.mail);
  errand->mail = std::move(unread.mail);
  errand->succeed();
  release(unread.rank, bytes);  // last: more may come at once
}

void Mailbox::State::fail_waiting_for(const std::string& node) {
  const auto trouble = directory.trouble(node);
  for (auto& [name, rack] : racks) {
    for (const auto& one : rack.waiting) {
      if (const Pending errand = one.lock(); errand && errand->from == node) errand->fail(*trouble);
    }
  }
  fail_fetches([&](const Fetch& fetch) { return fetch.from == node; }, *trouble);
}

void Mailbox::State::leave(const std::string& node) {
  tell_all(Parcel::Kind::leave, node);
  directory.leave(node, world.rank());
  fail_waiting_for(node);
  const Error why(Error::Kind::cancelled, fmt::format("node {} has left", node));
  fail_fetches([&](const Fetch& fetch) { return fetch.node == node; }, why);
  std::erase_if(offers, [&](const auto& one) { return one.first.first == node; });
  for (auto& [to, sends] : unannounced) {
    std::erase_if(sends, [&](const auto& one) {
      const auto& [parcel, errand] = one;
      if (parcel.from != node) return false;
      if (errand && !errand->complete) {
        counts.unsent += 1;
        errand->fail(Error(Error::Kind::cancelled, fmt::format("node {} has left before node {} was known", node, to)));
      }
      return true;
    });
  }
  auto rack = racks.extract(node);
  for (const auto& one : rack.mapped().waiting) {
    if (const Pending errand = one.lock()) errand->fail(why);
  }
  for (const Unread& one : rack.mapped().unread) release(one.rank, weight(one.mail));
}

void Mailbox::State::enter(uint64_t next) {
  const Error over(Error::Kind::cancelled, fmt::format("epoch {} is over, epoch {} has begun", epoch, next));
  epoch = next;
  newest = std::max(newest, epoch);
  directory.begin_epoch();
  fail_fetches([](const Fetch&) { return true; }, over);
  for (auto& [node, sends] : std::exchange(unannounced, {})) {
    for (auto& [parcel, errand] : sends) {
      if (errand) errand->fail(over);
    }
  }
  std::vector<std::pair<int, int64_t>> dropped;
  for (auto& [node, rack] : racks) {
    for (const auto& one : std::exchange(rack.waiting, {})) {
      if (const Pending errand = one.lock()) errand->fail(over);
    }
    for (const Unread& one : std::exchange(rack.unread, {})) dropped.emplace_back(one.rank, weight(one.mail));
    directory.join(node, world.rank());
  }
  counts.old_epoch += static_cast<int64_t>(dropped.size());
  for (const auto& [node, rack] : racks) tell_all(Parcel::Kind::join, node);
  for (auto& [rank, parcel] : std::exchange(ahead, {})) {  // in the order in which they came
    dropped.emplace_back(rank, static_cast<int64_t>(parcel.body.size()) + 3 * kNameBytesMax);
    arrive(rank, std::move(parcel));
  }
  for (const auto& [rank, bytes] : dropped) release(rank, bytes);
}

}  // namespace cairn::comm
