#include "sync/island_post.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "comm/group.h"
#include "comm/world.h"

namespace cairn::sync {
namespace {

constexpr uint32_t kMagic = 0x43a1c0de;
constexpr int64_t kPieceBytes = int64_t{8} << 20;       // of a long message: others pass between its pieces
constexpr int64_t kKeptMessages = 8;                    // of the longest, from one island: nobody fills up another without end
constexpr auto kLook = std::chrono::milliseconds(200);  // how often losses are looked for while nothing comes
constexpr auto kWithin = std::chrono::hours(24 * 365);  // waits have limits of their own

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

std::string node_of(int rank) { return fmt::format("rank {}", rank); }

}  // namespace

IslandPost::IslandPost(Parts parts)
    : islands_(parts.islands),
      signature_(parts.signature),
      bytes_most_(parts.bytes_most),
      mailbox_(parts.islands.world(), {.name = "islands", .within = kWithin}),
      node_(mailbox_.open(node_of(parts.islands.world().rank()))),
      bytes_kept_(static_cast<size_t>(parts.islands.size())) {
  for (int island = 0; island < islands_.size(); ++island) island_of_[node_of(islands_.ranks()[static_cast<size_t>(island)])] = island;
  next_ = node_.receive();
}

int IslandPost::me() const { return islands_.rank(); }
int IslandPost::size() const { return islands_.size(); }

bool IslandPost::lost(int island) const {
  const std::vector<int> gone = islands_.world().lost();
  return std::find(gone.begin(), gone.end(), islands_.ranks()[static_cast<size_t>(island)]) != gone.end();
}

std::chrono::nanoseconds IslandPost::now() const { return islands_.world().clock().now(); }

void IslandPost::send(int to, const Subject& subject, std::span<const std::byte> body, comm::Purpose purpose) {
  if (lost(to)) return;
  Head head{.kind = static_cast<uint8_t>(subject.kind),
            .part = subject.part,
            .step = subject.step,
            .signature = signature_,
            .bytes = static_cast<int64_t>(body.size())};
  const std::string name = node_of(islands_.ranks()[static_cast<size_t>(to)]);
  do {
    const int64_t bytes = std::min(kPieceBytes, head.bytes - head.offset);
    std::vector<std::byte> piece(sizeof(Head) + static_cast<size_t>(bytes));
    std::memcpy(piece.data(), &head, sizeof(Head));
    if (bytes > 0) std::memcpy(piece.data() + sizeof(Head), body.data() + head.offset, static_cast<size_t>(bytes));
    // Whoever is gone by now gets nothing, and is found lost by those who wait for it.
    (void)node_.send(name, "island", std::move(piece), {.purpose = purpose, .within = kWithin});
    head.offset += bytes;
  } while (head.offset < head.bytes);
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
  for (const auto& one : kept_)
    if (old(one)) bytes_kept_[static_cast<size_t>(one.first.first)] -= static_cast<int64_t>(one.second.size());
  std::erase_if(kept_, old);
  std::erase_if(halves_, old);
}

void IslandPost::pump() {
  mailbox_.progress();
  while (next_.ready()) {
    const comm::Mail mail = next_.mail();
    next_ = node_.receive();
    arrived(mail);
  }
}

bool IslandPost::wait(const std::function<bool()>& done, std::chrono::nanoseconds until) {
  while (true) {
    pump();
    if (done()) return true;
    const std::chrono::nanoseconds time = now();
    if (time >= until) return false;
    const std::array<comm::Errand, 2> either{next_, mailbox_.timer(std::min<std::chrono::nanoseconds>(until - time, kLook))};
    (void)mailbox_.first(either);
  }
}

void IslandPost::answer(Subject::Kind kind, std::function<void(int from, const Subject&)> answer) { answers_[kind] = std::move(answer); }

void IslandPost::arrived(const comm::Mail& mail) {
  const auto from = island_of_.find(mail.from);
  Head head;
  const auto refuse = [&](std::string_view why) {
    if (refused_++ < 10) islands_.world().log().warn("a message of {} is refused: {}", mail.from, why);
  };
  if (from == island_of_.end() || from->second == me()) return refuse("it is none of the islands");
  if (mail.body.size() < sizeof(Head)) return refuse("it is too short");
  std::memcpy(&head, mail.body.data(), sizeof(Head));
  const auto bytes = static_cast<int64_t>(mail.body.size() - sizeof(Head));
  if (head.magic != kMagic) return refuse("it is of another kind");
  if (head.signature != signature_) return refuse("it is of another model, layout or rule: all islands need the same recipe");
  if (head.bytes < 0 || head.bytes > bytes_most_ || head.offset < 0 || head.offset + bytes > head.bytes ||
      bytes != std::min(kPieceBytes, head.bytes - head.offset))
    return refuse("its length is wrong");
  const Subject subject{static_cast<Subject::Kind>(head.kind), head.step, head.part};
  if (const auto answer = answers_.find(subject.kind); answer != answers_.end()) return answer->second(from->second, subject);
  if (const auto old = forgotten_.find(subject.kind); old != forgotten_.end() && subject.step <= old->second) return;
  const std::pair key{from->second, subject};
  if (kept_.contains(key)) return refuse("it came before");
  int64_t& kept = bytes_kept_[static_cast<size_t>(from->second)];
  const auto half = halves_.find(key);
  if (half == halves_.end() && kept + head.bytes > kKeptMessages * bytes_most_) return refuse("too much of it lies unread here");
  const std::byte* content = mail.body.data() + sizeof(Head);
  if (bytes == head.bytes) {
    kept += bytes;
    kept_.emplace(key, std::vector<std::byte>(content, content + bytes));
    return;
  }
  // Pieces come in order, so the first says how much there is to be, and none is accepted twice.
  if ((half == halves_.end()) != (head.offset == 0)) return refuse("a piece of it is missing");
  Half& whole = halves_[key];
  if (head.offset == 0) whole = {std::vector<std::byte>(static_cast<size_t>(head.bytes)), head.bytes};
  if (static_cast<int64_t>(whole.bytes.size()) != head.bytes || head.bytes - whole.missing != head.offset)
    return refuse("a piece of it is missing");
  std::memcpy(whole.bytes.data() + head.offset, content, static_cast<size_t>(bytes));
  whole.missing -= bytes;
  if (whole.missing > 0) return;
  kept += head.bytes;
  kept_.emplace(key, std::move(whole.bytes));
  halves_.erase(key);
}

}  // namespace cairn::sync
