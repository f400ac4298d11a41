#include "sync/islands/messenger.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::sync {
namespace {

constexpr uint32_t kMagic = 0x43a1c0de;
constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kHandledBytesMax = int64_t{1} << 20;  // of a message that is not kept: it may be longer than a small model
constexpr int64_t kKeptMessages = 8;                    // unread messages of one island, in units of the longest

// On the wire before every piece.
struct Header {
  uint32_t magic = kMagic;
  uint8_t kind = 0;
  uint8_t spare[3] = {};
  int32_t part = 0;
  int32_t spare_too = 0;
  int64_t step = 0;
  uint64_t signature = 0;
  int64_t offset = 0;  // of this piece
  int64_t bytes = 0;   // of the whole message
};
static_assert(sizeof(Header) == 48);

}  // namespace

IslandMessenger::IslandMessenger(Parts parts)
    : link_(std::move(parts.link)),
      signature_(parts.signature),
      max_message_bytes_(parts.max_message_bytes),
      bytes_kept_(static_cast<size_t>(link_->size())),
      heard_at_(static_cast<size_t>(link_->size())),
      reuse_buffers_(parts.reuse_buffers) {}

int IslandMessenger::me() const { return link_->me(); }
int IslandMessenger::size() const { return link_->size(); }
bool IslandMessenger::lost(int island) const { return link_->lost(island); }
std::chrono::nanoseconds IslandMessenger::now() const { return link_->now(); }

void IslandMessenger::send(int to, const MessageTag& tag, std::span<const std::byte> body, comm::Purpose purpose) {
  if (!lost(to)) send(to, split(tag, body), purpose);
}

void IslandMessenger::send(int to, Pieces pieces, comm::Purpose purpose) {
  if (lost(to)) return;
  for (std::vector<std::byte>& piece : pieces) link_->send(to, std::move(piece), purpose);
}

IslandMessenger::Pieces IslandMessenger::split(const MessageTag& tag, std::span<const std::byte> body) const {
  Pieces pieces;
  Header head{.kind = static_cast<uint8_t>(tag.kind),
              .part = tag.part,
              .step = tag.step,
              .signature = signature_,
              .bytes = static_cast<int64_t>(body.size())};
  do {
    const int64_t bytes = std::min(kPieceBytes, head.bytes - head.offset);
    std::vector<std::byte>& piece = pieces.emplace_back();
    piece.reserve(sizeof(Header) + static_cast<size_t>(bytes));
    const auto of_head = std::as_bytes(std::span(&head, 1)),
               of_body = body.subspan(static_cast<size_t>(head.offset), static_cast<size_t>(bytes));
    piece.insert(piece.end(), of_head.begin(), of_head.end());
    piece.insert(piece.end(), of_body.begin(), of_body.end());
    head.offset += bytes;
  } while (head.offset < head.bytes);
  return pieces;
}

const std::vector<std::byte>* IslandMessenger::find(int from, const MessageTag& tag) const {
  const auto found = kept_.find({from, tag});
  return found == kept_.end() ? nullptr : &found->second.bytes;
}

uint64_t IslandMessenger::incarnation_of(int from, const MessageTag& tag) const {
  const auto found = kept_.find({from, tag});
  return found == kept_.end() ? 0 : found->second.incarnation;
}

bool IslandMessenger::has_any(int from, MessageTag::Kind kind) const {
  const auto is = [&](const auto& one) { return one.first.first == from && one.first.second.kind == kind; };
  return std::any_of(kept_.begin(), kept_.end(), is) || std::any_of(partial_.begin(), partial_.end(), is);
}

void IslandMessenger::renew() {
  kept_.clear();
  partial_.clear();
  replaced_.clear();
  forgotten_.clear();  // the others may be at an earlier step
  std::fill(bytes_kept_.begin(), bytes_kept_.end(), 0);
  link_->renew();
}

std::vector<std::byte> IslandMessenger::take(int from, const MessageTag& tag) {
  const auto found = kept_.find({from, tag});
  CAIRN_CHECK(found != kept_.end(), "no message of island {}", from);
  std::vector<std::byte> body = std::move(found->second.bytes);
  bytes_kept_[static_cast<size_t>(from)] -= static_cast<int64_t>(body.size());
  kept_.erase(found);
  return body;
}

void IslandMessenger::forget(MessageTag::Kind kind, int64_t step) {
  int64_t& last = forgotten_[kind];
  last = std::max(last, step);
  const auto old = [&](const auto& one) { return one.first.second.kind == kind && one.first.second.step <= step; };
  Pieces read;
  for (auto& one : kept_) {
    if (!old(one)) continue;
    bytes_kept_[static_cast<size_t>(one.first.first)] -= static_cast<int64_t>(one.second.bytes.size());
    read.push_back(std::move(one.second.bytes));
  }
  for (auto& one : partial_)
    if (old(one)) read.push_back(std::move(one.second.bytes));
  std::erase_if(kept_, old);
  std::erase_if(partial_, old);
  std::erase_if(replaced_, [&](const auto& one) { return one.first.kind == kind && one.first.step <= step; });
  recycle(std::move(read));
}

std::vector<std::byte> IslandMessenger::take_buffer(size_t bytes) {
  auto found = free_buffers_.end();
  for (auto one = free_buffers_.begin(); one != free_buffers_.end(); ++one)
    if (one->capacity() >= bytes && one->capacity() / 2 <= bytes && (found == free_buffers_.end() || one->capacity() < found->capacity()))
      found = one;
  if (found == free_buffers_.end()) return {};
  std::vector<std::byte> buffer = std::move(*found);
  free_buffers_.erase(found);
  return buffer;
}

void IslandMessenger::recycle(Pieces pieces) {
  if (!reuse_buffers_) return;
  for (std::vector<std::byte>& piece : pieces) {
    if (std::ssize(piece) < kPieceBytes) continue;
    free_buffers_.push_back(std::move(piece));
    if (std::ssize(free_buffers_) > size())
      free_buffers_.erase(std::ranges::min_element(free_buffers_, {}, &std::vector<std::byte>::capacity));
  }
}

void IslandMessenger::pump() {
  while (const auto message = link_->next()) arrived(*message);
  if (tick_) tick_();
}

bool IslandMessenger::wait(const std::function<bool()>& done, std::chrono::nanoseconds until) {
  while (true) {
    pump();
    if (done()) return true;
    if (now() >= until) return false;
    link_->wait(until);
  }
}

void IslandMessenger::on_message(MessageTag::Kind kind, Handler handler) { handlers_[kind] = std::move(handler); }

// What an earlier process of the island sent is no longer waited for.
void IslandMessenger::replace_older(int from, uint64_t incarnation) {
  for (auto one = kept_.begin(); one != kept_.end();) {
    if (one->first.first != from || one->second.incarnation >= incarnation) {
      ++one;
      continue;
    }
    bytes_kept_[static_cast<size_t>(from)] -= static_cast<int64_t>(one->second.bytes.size());
    replaced_.emplace_back(one->first.second, std::move(one->second.bytes));
    one = kept_.erase(one);
  }
}

void IslandMessenger::arrived(const IslandLink::Message& message) {
  Header head;
  const auto refuse = [&](std::string_view why) {
    if (refused_++ < 10) link_->warn(fmt::format("a message of island {} is refused: {}", message.from, why));
  };
  if (message.from < 0 || message.from >= size() || message.from == me()) return refuse("there is no such island");
  if (message.body.size() < sizeof(Header)) return refuse("it is too short");
  std::memcpy(&head, message.body.data(), sizeof(Header));
  const auto bytes = static_cast<int64_t>(message.body.size() - sizeof(Header));
  if (head.magic != kMagic) return refuse("it is of another kind");
  if (head.signature != signature_) return refuse("it is of another model, layout or rule: all islands need the same recipe");
  const auto handler = handlers_.find(static_cast<MessageTag::Kind>(head.kind));
  const int64_t most = handler == handlers_.end() ? max_message_bytes_ : std::max(max_message_bytes_, kHandledBytesMax);
  if (head.bytes < 0 || head.bytes > most || head.offset < 0 || head.offset + bytes > head.bytes ||
      bytes != std::min(kPieceBytes, head.bytes - head.offset))
    return refuse("its length is wrong");
  heard_at_[static_cast<size_t>(message.from)] = now();
  const MessageTag tag{static_cast<MessageTag::Kind>(head.kind), head.step, head.part};
  if (handler != handlers_.end()) {
    if (bytes != head.bytes) return refuse("it is too long");
    return handler->second({message.from, message.incarnation, tag, std::span(message.body).subspan(sizeof(Header))});
  }
  if (const auto old = forgotten_.find(tag.kind); old != forgotten_.end() && tag.step <= old->second) return;
  const std::pair key{message.from, tag};
  int64_t& kept = bytes_kept_[static_cast<size_t>(message.from)];
  if (const auto before = kept_.find(key); before != kept_.end()) {
    if (before->second.incarnation >= message.incarnation) return refuse("it came before");
    kept -= static_cast<int64_t>(before->second.bytes.size());
    replaced_.emplace_back(tag, std::move(before->second.bytes));
    kept_.erase(before);
  }
  if (const auto before = partial_.find(key); before != partial_.end() && before->second.incarnation < message.incarnation)
    partial_.erase(before);
  const auto half = partial_.find(key);
  const auto is_full = [&] { return half == partial_.end() && kept + head.bytes > kKeptMessages * max_message_bytes_; };
  if (is_full()) replace_older(message.from, message.incarnation);
  if (is_full()) return refuse("too many of its messages are unread");
  const std::byte* content = message.body.data() + sizeof(Header);
  if (bytes == head.bytes) {
    kept += bytes;
    kept_.emplace(key, KeptMessage{message.incarnation, std::vector<std::byte>(content, content + bytes)});
    return;
  }
  // Pieces arrive in order. The first one says how long the message is, and none is accepted twice.
  if ((half == partial_.end()) != (head.offset == 0)) return refuse("a piece of it is missing");
  PartialMessage& whole = partial_[key];
  if (head.offset == 0) {
    whole.incarnation = message.incarnation;
    whole.whole = head.bytes;
    whole.bytes = take_buffer(static_cast<size_t>(head.bytes));
    whole.bytes.clear();
    whole.bytes.reserve(static_cast<size_t>(head.bytes));  // not resized: touching a gigabyte at once would hold up training
  }
  if (whole.whole != head.bytes || static_cast<int64_t>(whole.bytes.size()) != head.offset) return refuse("a piece of it is missing");
  whole.bytes.insert(whole.bytes.end(), content, content + bytes);
  if (static_cast<int64_t>(whole.bytes.size()) < whole.whole) return;
  kept += head.bytes;
  kept_.emplace(key, KeptMessage{message.incarnation, std::move(whole.bytes)});
  partial_.erase(key);
}

}  // namespace cairn::sync
