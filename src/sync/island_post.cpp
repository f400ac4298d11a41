#include "sync/island_post.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::sync {
namespace {

constexpr uint32_t kMagic = 0x43a1c0de;
constexpr int64_t kPieceBytes = int64_t{8} << 20;  // of a long message: others pass between its pieces
constexpr int64_t kKeptMessages = 8;               // of the longest, from one island: nobody fills up another without end

struct Head {
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
static_assert(sizeof(Head) == 48);

}  // namespace

IslandPost::IslandPost(Parts parts)
    : link_(std::move(parts.link)),
      signature_(parts.signature),
      bytes_most_(parts.bytes_most),
      bytes_kept_(static_cast<size_t>(link_->size())),
      keeps_memory_(parts.keeps_memory) {}

int IslandPost::me() const { return link_->me(); }
int IslandPost::size() const { return link_->size(); }
bool IslandPost::lost(int island) const { return link_->lost(island); }
std::chrono::nanoseconds IslandPost::now() const { return link_->now(); }

void IslandPost::send(int to, const Subject& subject, std::span<const std::byte> body, comm::Purpose purpose) {
  if (!lost(to)) send(to, cut(subject, body), purpose);
}

void IslandPost::send(int to, Pieces pieces, comm::Purpose purpose) {
  if (lost(to)) return;
  for (std::vector<std::byte>& piece : pieces) link_->send(to, std::move(piece), purpose);
}

IslandPost::Pieces IslandPost::cut(const Subject& subject, std::span<const std::byte> body) const {
  Pieces pieces;
  Head head{.kind = static_cast<uint8_t>(subject.kind),
            .part = subject.part,
            .step = subject.step,
            .signature = signature_,
            .bytes = static_cast<int64_t>(body.size())};
  do {
    const int64_t bytes = std::min(kPieceBytes, head.bytes - head.offset);
    std::vector<std::byte>& piece = pieces.emplace_back();
    piece.reserve(sizeof(Head) + static_cast<size_t>(bytes));
    const auto of_head = std::as_bytes(std::span(&head, 1)),
               of_body = body.subspan(static_cast<size_t>(head.offset), static_cast<size_t>(bytes));
    piece.insert(piece.end(), of_head.begin(), of_head.end());
    piece.insert(piece.end(), of_body.begin(), of_body.end());
    head.offset += bytes;
  } while (head.offset < head.bytes);
  return pieces;
}

const std::vector<std::byte>* IslandPost::find(int from, const Subject& subject) const {
  const auto found = kept_.find({from, subject});
  return found == kept_.end() ? nullptr : &found->second;
}

std::vector<std::byte> IslandPost::take(int from, const Subject& subject) {
  const auto found = kept_.find({from, subject});
  CAIRN_CHECK(found != kept_.end(), "nothing has come from island {}", from);
  std::vector<std::byte> body = std::move(found->second);
  bytes_kept_[static_cast<size_t>(from)] -= static_cast<int64_t>(body.size());
  kept_.erase(found);
  return body;
}

void IslandPost::forget(Subject::Kind kind, int64_t step) {
  int64_t& last = forgotten_[kind];
  last = std::max(last, step);
  const auto old = [&](const auto& one) { return one.first.second.kind == kind && one.first.second.step <= step; };
  Pieces read;
  for (auto& one : kept_) {
    if (!old(one)) continue;
    bytes_kept_[static_cast<size_t>(one.first.first)] -= static_cast<int64_t>(one.second.size());
    read.push_back(std::move(one.second));
  }
  for (auto& one : halves_)
    if (old(one)) read.push_back(std::move(one.second.bytes));
  std::erase_if(kept_, old);
  std::erase_if(halves_, old);
  give_back(std::move(read));
}

std::vector<std::byte> IslandPost::room(size_t bytes) {
  auto found = spare_.end();
  for (auto one = spare_.begin(); one != spare_.end(); ++one)
    if (one->capacity() >= bytes && one->capacity() / 2 <= bytes && (found == spare_.end() || one->capacity() < found->capacity()))
      found = one;
  if (found == spare_.end()) return {};
  std::vector<std::byte> room = std::move(*found);
  spare_.erase(found);
  return room;
}

void IslandPost::give_back(Pieces pieces) {
  if (!keeps_memory_) return;
  for (std::vector<std::byte>& piece : pieces) {
    if (std::ssize(piece) < kPieceBytes) continue;
    spare_.push_back(std::move(piece));
    if (std::ssize(spare_) > size()) spare_.erase(std::ranges::min_element(spare_, {}, &std::vector<std::byte>::capacity));
  }
}

void IslandPost::pump() {
  while (const auto letter = link_->next()) arrived(*letter);
}

bool IslandPost::wait(const std::function<bool()>& done, std::chrono::nanoseconds until) {
  while (true) {
    pump();
    if (done()) return true;
    if (now() >= until) return false;
    link_->wait(until);
  }
}

void IslandPost::answer(Subject::Kind kind, Answer answer) { answers_[kind] = std::move(answer); }

void IslandPost::arrived(const IslandLink::Letter& letter) {
  Head head;
  const auto refuse = [&](std::string_view why) {
    if (refused_++ < 10) link_->warn(fmt::format("a message of island {} is refused: {}", letter.from, why));
  };
  if (letter.from < 0 || letter.from >= size() || letter.from == me()) return refuse("it is none of the islands");
  if (letter.body.size() < sizeof(Head)) return refuse("it is too short");
  std::memcpy(&head, letter.body.data(), sizeof(Head));
  const auto bytes = static_cast<int64_t>(letter.body.size() - sizeof(Head));
  if (head.magic != kMagic) return refuse("it is of another kind");
  if (head.signature != signature_) return refuse("it is of another model, layout or rule: all islands need the same recipe");
  if (head.bytes < 0 || head.bytes > bytes_most_ || head.offset < 0 || head.offset + bytes > head.bytes ||
      bytes != std::min(kPieceBytes, head.bytes - head.offset))
    return refuse("its length is wrong");
  const Subject subject{static_cast<Subject::Kind>(head.kind), head.step, head.part};
  if (const auto answer = answers_.find(subject.kind); answer != answers_.end()) {
    if (bytes != head.bytes) return refuse("it is too long");
    return answer->second(letter.from, subject, std::span(letter.body).subspan(sizeof(Head)));
  }
  if (const auto old = forgotten_.find(subject.kind); old != forgotten_.end() && subject.step <= old->second) return;
  const std::pair key{letter.from, subject};
  if (kept_.contains(key)) return refuse("it came before");
  int64_t& kept = bytes_kept_[static_cast<size_t>(letter.from)];
  const auto half = halves_.find(key);
  if (half == halves_.end() && kept + head.bytes > kKeptMessages * bytes_most_) return refuse("too much of it lies unread here");
  const std::byte* content = letter.body.data() + sizeof(Head);
  if (bytes == head.bytes) {
    kept += bytes;
    kept_.emplace(key, std::vector<std::byte>(content, content + bytes));
    return;
  }
  // Pieces come in order, so the first says how much there is to be, and none is accepted twice.
  if ((half == halves_.end()) != (head.offset == 0)) return refuse("a piece of it is missing");
  Half& whole = halves_[key];
  if (head.offset == 0) {
    whole.whole = head.bytes;
    whole.bytes = room(static_cast<size_t>(head.bytes));
    whole.bytes.clear();
    whole.bytes.reserve(static_cast<size_t>(head.bytes));  // filled as it comes: a gigabyte at once would hold up whoever trains here
  }
  if (whole.whole != head.bytes || static_cast<int64_t>(whole.bytes.size()) != head.offset) return refuse("a piece of it is missing");
  whole.bytes.insert(whole.bytes.end(), content, content + bytes);
  if (static_cast<int64_t>(whole.bytes.size()) < whole.whole) return;
  kept += head.bytes;
  kept_.emplace(key, std::move(whole.bytes));
  halves_.erase(key);
}

}  // namespace cairn::sync
