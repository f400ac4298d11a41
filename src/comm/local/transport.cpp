// One rank's end of the simulated network: matches messages with receives, and regions with pulls.
#include "comm/local/transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "comm/local/network.h"

namespace cairn::comm {
namespace {

std::shared_ptr<std::byte[]> copied(const void* data, int64_t bytes) {
  auto copy = std::make_shared_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
  if (bytes > 0) std::memcpy(copy.get(), data, static_cast<size_t>(bytes));
  return copy;
}

}  // namespace

LocalTransport::LocalTransport(LocalNetwork::Net& net, int rank, int size)
    : net_(net), rank_(rank), size_(size), left_(static_cast<size_t>(size)) {}

LocalTransport::~LocalTransport() {
  for (int peer = 0; peer < size_ && !failed_; ++peer) {
    if (peer != rank_) post({.kind = LocalEvent::Kind::left, .to = peer});
  }
  net_.gone(*this);
}

void LocalTransport::post(LocalEvent event) {
  event.from = rank_;
  event.posted = clock_.now();
  event.number = posted_++;
  posts_.push_back(std::move(event));
}

Completion LocalTransport::send(int to, const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::send;
  transfer->peer = to;
  transfer->outgoing = true;
  transfer->data = const_cast<void*>(data);
  transfer->bytes = bytes;
  post({.to = to, .envelope = envelope, .purpose = purpose, .data = copied(data, bytes), .bytes = bytes, .sent = transfer});
  return Completion(*this, std::move(transfer));
}

Completion LocalTransport::recv(int from, const Envelope& envelope, void* into, int64_t bytes) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::recv;
  transfer->peer = from;
  transfer->envelope = envelope;
  transfer->data = into;
  transfer->bytes = bytes;
  return ask(from, std::move(transfer));
}

Completion LocalTransport::recv_view(int from, const Envelope& envelope, int64_t bytes) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::recv_view;
  transfer->peer = from;
  transfer->envelope = envelope;
  transfer->bytes = bytes;
  return ask(from, std::move(transfer));
}

Completion LocalTransport::ask(int from, std::shared_ptr<LocalTransfer> transfer) {
  const PeerKey key{from, transfer->envelope.key()};
  if (const auto found = early_.find(key); found != early_.end()) {
    deliver(transfer, found->second.front());
    found->second.erase(found->second.begin());
    if (found->second.empty()) early_.erase(found);
  } else if (left_[from]) {
    done_.fail(transfer, peer_has_left(from, transfer->envelope));
  } else {
    wanted_[key].push_back(transfer);
  }
  return Completion(*this, std::move(transfer));
}

Completion LocalTransport::expose(const Envelope& envelope, Purpose purpose, const void* data, int64_t bytes) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::expose;
  transfer->envelope = envelope;
  transfer->purpose = purpose;
  transfer->data = const_cast<void*>(data);
  transfer->bytes = bytes;
  exposed_[envelope.key()] = transfer;
  for (const LocalEvent& pull : std::exchange(early_pulls_, {})) {
    if (pull.envelope.key() == envelope.key()) {
      answer(pull, *transfer);
    } else {
      early_pulls_.push_back(pull);
    }
  }
  return Completion(*this, std::move(transfer));
}

Completion LocalTransport::pull(int peer, const Envelope& envelope, int64_t offset, void* into, int64_t bytes, PullMode mode, Dtype dtype) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::pull;
  transfer->peer = peer;
  transfer->envelope = envelope;
  transfer->data = into;
  transfer->bytes = bytes;
  transfer->mode = mode;
  transfer->dtype = dtype;
  post({.kind = LocalEvent::Kind::pull, .to = peer, .envelope = envelope, .bytes = bytes, .offset = offset, .asked = transfer});
  return Completion(*this, std::move(transfer));
}

LinkFacts LocalTransport::link_facts(const std::vector<int>& ranks) const { return facts_of(net_.options().link, ranks); }

Completion LocalTransport::timer(Nanoseconds at) {
  auto transfer = std::make_shared<LocalTransfer>();
  transfer->kind = LocalTransfer::Kind::timer;
  post({.kind = LocalEvent::Kind::timer, .to = rank_, .time = at, .asked = transfer});
  return Completion(*this, std::move(transfer));
}

void LocalTransport::cancel(Transfer& transfer) {
  auto& one = static_cast<LocalTransfer&>(transfer);
  one.data = nullptr;
  one.done = true;
  if (one.kind != LocalTransfer::Kind::expose && one.kind != LocalTransfer::Kind::timer) cancelled_ += 1;
  if (one.kind == LocalTransfer::Kind::expose) exposed_.erase(one.envelope.key());
  if (one.kind != LocalTransfer::Kind::recv && one.kind != LocalTransfer::Kind::recv_view) return;
  const auto found = wanted_.find({one.peer, one.envelope.key()});
  if (found == wanted_.end()) return;
  std::erase_if(found->second, [&](const auto& other) { return other.get() == &one; });
  if (found->second.empty()) wanted_.erase(found);
}

bool LocalTransport::drive(const std::function<bool()>& done, Nanoseconds until, const std::string& doing) {
  done_.run();
  if (done()) return true;
  return net_.wait(rank_, done, until, doing);
}

void LocalTransport::fail(const std::string& reason, int culprit) {
  if (std::exchange(failed_, true)) return;
  const auto loss = std::make_shared<const LostPeer>(LostPeer{rank_, culprit, reason});
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) post({.kind = LocalEvent::Kind::lost, .to = peer, .loss = loss});
  }
}

std::shared_ptr<void> LocalTransport::allocate(int64_t bytes) { return allocate_plain(bytes); }

void LocalTransport::deliver(const std::shared_ptr<LocalTransfer>& transfer, const LocalEvent& event) {
  const bool reply = event.kind == LocalEvent::Kind::reply;
  if (!reply && (event.envelope.signature != transfer->envelope.signature || event.bytes != transfer->bytes)) {
    done_.fail(transfer, mismatch_error(event.from, event.envelope, rank_, transfer->envelope.signature, transfer->envelope.what));
    if (tell_early_) tell_early_(event.from, event.envelope);
    return;
  }
  if (transfer->kind == LocalTransfer::Kind::recv_view) {
    transfer->held = event.data;
    transfer->view = event.data.get();
  } else if (transfer->mode == PullMode::add) {
    add_into(transfer->dtype, transfer->data, event.data.get(), event.bytes / size_of(transfer->dtype));
  } else if (event.bytes > 0) {
    std::memcpy(transfer->data, event.data.get(), static_cast<size_t>(event.bytes));
  }
  done_.finish(transfer);
}

void LocalTransport::arrive(const LocalEvent& event) {
  if (event.checksum && *event.checksum != event.computed_checksum()) {
    const std::string what = fmt::format("a message of {} bytes from it was damaged on its way: checksum {:016x} where {:016x} was sent",
                                         event.bytes, event.computed_checksum(), *event.checksum);
    return lose_and_tell({event.from, event.from, what});
  }
  const PeerKey key{event.from, event.envelope.key()};
  switch (event.kind) {
    case LocalEvent::Kind::message:
      if (const auto found = wanted_.find(key); found != wanted_.end()) {
        const auto transfer = found->second.front();
        found->second.erase(found->second.begin());
        if (found->second.empty()) wanted_.erase(found);
        deliver(transfer, event);
      } else {
        early_[key].push_back(event);
        if (tell_early_) tell_early_(event.from, event.envelope);
      }
      break;
    case LocalEvent::Kind::pull:
      if (const auto region = exposed_.find(event.envelope.key()); region != exposed_.end()) {
        answer(event, *region->second);
      } else {
        early_pulls_.push_back(event);
      }
      break;
    case LocalEvent::Kind::reply:
      if (const auto transfer = event.asked.lock(); transfer && transfer->data) deliver(transfer, event);
      break;
    case LocalEvent::Kind::timer:
      if (const auto transfer = event.asked.lock()) done_.finish(transfer);
      break;
    case LocalEvent::Kind::lost:
      lose(*event.loss);
      break;
    case LocalEvent::Kind::silence:
      if (!left_[event.from]) event.fault_seen_by_all ? lose(*event.loss) : lose_and_tell(*event.loss);
      break;
    case LocalEvent::Kind::left:
      peer_left(event.from);
      break;
    case LocalEvent::Kind::fault:
    case LocalEvent::Kind::thaw:
    case LocalEvent::Kind::heal:
      CAIRN_CHECK(false, "an event of the network itself arrived at rank {}", rank_);
  }
}

void LocalTransport::arrived(const LocalEvent& event) {
  if (!event.carries_data()) return;
  ledger_.book(event.booking());
  const auto transfer = event.sent.lock();
  if (!transfer) return;
  const bool checked = net_.options().check_buffers && transfer->data && event.bytes > 0 && !event.damaged && !transfer->done;
  if (checked && std::memcmp(transfer->data, event.data.get(), static_cast<size_t>(event.bytes)) != 0) {
    const std::string what = describe(event.envelope.signature, event.envelope.what);
    return done_.fail(transfer,
                      Error(Error::Kind::broken_invariant,
                            fmt::format("rank {} wrote over a buffer while it was being sent to rank {}: {}", rank_, event.to, what)));
  }
  done_.finish(transfer);
}

void LocalTransport::answer(const LocalEvent& pull, const LocalTransfer& region) {
  const bool inside = pull.offset >= 0 && pull.bytes >= 0 && pull.offset <= region.bytes - pull.bytes;
  CAIRN_CHECK(inside, "rank {} pulls {} bytes at {} from a region of {}", pull.from, pull.bytes, pull.offset, region.bytes);
  const auto* first = static_cast<const std::byte*>(region.data) + pull.offset;
  post({.kind = LocalEvent::Kind::reply,
        .to = pull.from,
        .envelope = pull.envelope,
        .purpose = region.purpose,
        .data = copied(first, pull.bytes),
        .bytes = pull.bytes,
        .asked = pull.asked});
}

void LocalTransport::lose(const LostPeer& loss) {
  const auto known = std::any_of(lost_peers_.begin(), lost_peers_.end(), [&](const LostPeer& other) { return other.rank == loss.rank; });
  if (!known) lost_peers_.push_back(loss);
}

// A loss that only this rank has seen is reported to all, the culprit included: otherwise ranks that wait for this one would run into their
// deadlines and blame it.
void LocalTransport::lose_and_tell(const LostPeer& loss) {
  lose(loss);
  const auto told =
      std::make_shared<const LostPeer>(LostPeer{loss.rank, loss.culprit, fmt::format("{}, says rank {}", loss.reason, rank_)});
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) post({.kind = LocalEvent::Kind::lost, .to = peer, .loss = told});
  }
}

void LocalTransport::peer_left(int peer) {
  left_[peer] = true;
  for (auto one = wanted_.begin(); one != wanted_.end();) {
    if (one->first.first != peer) {
      ++one;
      continue;
    }
    for (const auto& transfer : one->second) done_.fail(transfer, peer_has_left(peer, transfer->envelope));
    one = wanted_.erase(one);
  }
}

}  // namespace cairn::comm
