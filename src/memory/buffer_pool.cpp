#include "memory/buffer_pool.h"

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"

namespace cairn::memory {

struct BufferPool::Mapping {
  Mapping(std::string key, int64_t bytes, PinMemory how) : budget(std::move(key), bytes), pin(std::move(how)) {
    const auto length = static_cast<size_t>(budget.capacity());
    if (length == 0) return;
    void* start = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
      throw Error(Error::Kind::out_of_memory, fmt::format("{} = {}: the system does not map so much: {}. Lower it.", budget.key(),
                                                          base::human_bytes(budget.capacity()), std::strerror(errno)));
    memory = {static_cast<std::byte*>(start), length};
    owned = true;
    ::madvise(start, length, MADV_HUGEPAGE);  // best effort
    if (pin.pin) pin.pin(memory);
  }
  Mapping(std::string key, std::span<std::byte> given) : budget(std::move(key), static_cast<int64_t>(given.size())), memory(given) {}
  ~Mapping() {
    if (!owned) return;
    if (pin.unpin) pin.unpin(memory);
    ::munmap(memory.data(), memory.size());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  Budget budget;
  PinMemory pin;
  std::span<std::byte> memory;
  bool owned = false;
};

BufferPool::BufferPool(std::string key, int64_t bytes, PinMemory pin)
    : mapping_(std::make_shared<Mapping>(std::move(key), bytes, std::move(pin))) {}
BufferPool::BufferPool(std::string key, std::span<std::byte> memory) : mapping_(std::make_shared<Mapping>(std::move(key), memory)) {}

Buffer BufferPool::take(int64_t bytes, base::MemoryUse use, const std::string& label) {
  return {mapping_, mapping_->budget.take(sealed_bytes(bytes), use, label), bytes};
}

std::optional<Buffer> BufferPool::try_take(int64_t bytes, base::MemoryUse use, const std::string& label) {
  const std::optional<Range> range = mapping_->budget.try_take(sealed_bytes(bytes), use, label);
  if (!range) return std::nullopt;
  return Buffer(mapping_, *range, bytes);
}

Buffer BufferPool::wait_and_take(int64_t bytes, base::MemoryUse use, const std::string& label, const base::Clock& clock,
                                 std::chrono::nanoseconds deadline) {
  return {mapping_, mapping_->budget.wait_and_take(sealed_bytes(bytes), use, label, clock, deadline), bytes};
}

std::span<std::byte> BufferPool::memory() const { return mapping_->memory; }
const Budget& BufferPool::budget() const { return mapping_->budget; }

Buffer::Buffer(std::shared_ptr<BufferPool::Mapping> mapping, Range range, int64_t size)
    : mapping_(std::move(mapping)), range_(range), size_(size) {
  whole_ = mapping_->memory.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.bytes));
}

Buffer::~Buffer() {
  if (mapping_ != nullptr) mapping_->budget.give_back(range_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : mapping_(std::move(other.mapping_)),
      range_(other.range_),
      size_(std::exchange(other.size_, 0)),
      whole_(std::exchange(other.whole_, {})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(range_, other.range_);
  std::swap(size_, other.size_);
  std::swap(whole_, other.whole_);
  return *this;
}

}  // namespace cairn::memory
