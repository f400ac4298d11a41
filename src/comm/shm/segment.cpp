// The layout of the shared segment for n ranks:  n status boards | n directories | n flight recorders | n * n rings | n arenas.
// It is a sealed memfd, mapped by every rank; pages exist once they are touched.
#include "comm/shm/segment.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>
#include <unistd.h>

#include <fmt/format.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int64_t kSegmentPage = 4096;
constexpr int64_t kArenasTotal = int64_t{64} << 30;  // of address space, not of memory
constexpr int64_t kBoardBytes = kSegmentPage;
static_assert(sizeof(StatusBoard) <= kBoardBytes);
constexpr int64_t kDirectoryBytes = (static_cast<int64_t>(sizeof(ShmSlotsDirectory)) + kSegmentPage - 1) / kSegmentPage * kSegmentPage;
constexpr int64_t kFlightBytes = (static_cast<int64_t>(sizeof(FlightMemory)) + kSegmentPage - 1) / kSegmentPage * kSegmentPage;
static_assert(std::is_trivially_copyable_v<Envelope> && sizeof(Envelope) % sizeof(uint64_t) == 0);

// Bytes of one ring buffer. Many ranks get less, so that all rings together stay within a few hundred megabytes.
int64_t ring_capacity(int ranks) {
  if (ranks <= 8) return 256 << 10;
  if (ranks <= 32) return 64 << 10;
  return 32 << 10;
}

struct Layout {
  explicit Layout(int ranks)
      : capacity(ring_capacity(ranks)),
        ring_bytes(capacity + kSegmentPage),
        directories(ranks * kBoardBytes),
        flights(directories + ranks * kDirectoryBytes),
        rings(flights + ranks * kFlightBytes),
        arenas(rings + ranks * ranks * ring_bytes),
        arena_bytes(kArenasTotal / ranks / kSegmentPage * kSegmentPage),
        total(arenas + ranks * arena_bytes) {}
  int64_t capacity, ring_bytes, directories, flights, rings, arenas, arena_bytes, total;
};

[[noreturn]] void fail(const char* what) {
  throw Error(Error::Kind::bad_input, fmt::format("shared memory between ranks: {}: {}", what, std::strerror(errno)));
}

}  // namespace

void StatusBoard::publish_operation(const Envelope& envelope) {
  const uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::array<uint64_t, std::tuple_size_v<decltype(doing_)>> words;
  std::memcpy(words.data(), &envelope, sizeof envelope);
  for (size_t i = 0; i < words.size(); ++i) doing_[i].store(words[i], std::memory_order_relaxed);
  version_.store(version + 2, std::memory_order_release);
}

std::optional<Envelope> StatusBoard::read_operation() const {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint64_t before = version_.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;
    std::array<uint64_t, std::tuple_size_v<decltype(doing_)>> words;
    for (size_t i = 0; i < words.size(); ++i) words[i] = doing_[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) continue;
    auto seen = std::bit_cast<Envelope>(words);
    return flaw_in(seen).empty() ? std::optional(seen) : std::nullopt;
  }
  return std::nullopt;  // its process was stopped in the middle of a write
}

int SharedSegment::create(int ranks) {
  const int fd = ::memfd_create("cairn-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail("memfd_create");
  // Sealed, so that no rank can truncate the memory of the others.
  if (::ftruncate(fd, Layout(ranks).total) != 0 || ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    ::close(fd);
    fail("ftruncate");
  }
  return fd;
}

SharedSegment::SharedSegment(int fd, int ranks) : ranks_(ranks) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(Layout(ranks).total), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) fail("mmap");
  memory_ = static_cast<std::byte*>(memory);
}

SharedSegment::~SharedSegment() { ::munmap(memory_, static_cast<size_t>(Layout(ranks_).total)); }

StatusBoard& SharedSegment::board(int rank) const { return *reinterpret_cast<StatusBoard*>(memory_ + rank * kBoardBytes); }

ShmSlotsDirectory& SharedSegment::directory(int rank) const {
  return *reinterpret_cast<ShmSlotsDirectory*>(memory_ + Layout(ranks_).directories + rank * kDirectoryBytes);
}

FlightMemory& SharedSegment::flight(int rank) const {
  return *reinterpret_cast<FlightMemory*>(memory_ + Layout(ranks_).flights + rank * kFlightBytes);
}

std::byte* SharedSegment::ring(int from, int to) const {
  const Layout layout(ranks_);
  return memory_ + layout.rings + (int64_t{from} * ranks_ + to) * layout.ring_bytes;
}

RingWriter SharedSegment::writer(int from, int to) const {
  std::byte* at = ring(from, to);
  return RingWriter(*reinterpret_cast<RingPositions*>(at), at + kSegmentPage, Layout(ranks_).capacity);
}

RingReader SharedSegment::reader(int from, int to) const {
  std::byte* at = ring(from, to);
  return RingReader(*reinterpret_cast<RingPositions*>(at), at + kSegmentPage, Layout(ranks_).capacity);
}

std::span<std::byte> SharedSegment::arena(int rank) const {
  const Layout layout(ranks_);
  return {memory_ + layout.arenas + rank * layout.arena_bytes, static_cast<size_t>(layout.arena_bytes)};
}

}  // namespace cairn::comm
