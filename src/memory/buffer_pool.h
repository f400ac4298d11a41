#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/memory_tags.h"
#include "memory/budget.h"

namespace cairn::memory {

// The end of every buffer and of every record on disk: where the record's seal is written (disk/seal.h).
inline constexpr int64_t kSealBytes = 64;

// What a buffer or record of so many bytes takes of a pool or of a swap file: its bytes and its seal, in whole pages.
constexpr int64_t sealed_bytes(int64_t bytes) { return (bytes + kSealBytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

class Buffer;

// How memory is pinned for a GPU (cudaHostRegister and its inverse). Empty: the memory is not pinned.
struct PinMemory {
  std::function<void(std::span<std::byte>)> pin = {}, unpin = {};
};

// Memory of a fixed budget, mapped once. Buffers are pieces of it, at the start of a page. A buffer may outlive the pool. A copy
// of this object is the same pool. Thread-safe.
class BufferPool {
 public:
  BufferPool(std::string key, int64_t bytes, PinMemory pin = {});  // the key of the recipe that sets its budget
  BufferPool(std::string key, std::span<std::byte> memory);        // memory of a GPU, or any other; it is borrowed

  // For `label`, of exactly so many bytes. Throws out_of_memory where they do not fit (budget.h).
  Buffer take(int64_t bytes, base::MemoryUse use, const std::string& label);
  std::optional<Buffer> try_take(int64_t bytes, base::MemoryUse use, const std::string& label);
  Buffer wait_and_take(int64_t bytes, base::MemoryUse use, const std::string& label, const base::Clock& clock,
                       std::chrono::nanoseconds deadline);

  std::span<std::byte> memory() const;
  const Budget& budget() const;

 private:
  friend class Buffer;
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;
};

// A piece of a pool, given back at the end. Movable.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::span<std::byte> bytes() const { return whole_.first(static_cast<size_t>(size_)); }  // what its owner uses
  std::span<std::byte> whole() const { return whole_; }                                    // with padding and seal: whole pages
  int64_t size() const { return size_; }
  explicit operator bool() const { return mapping_ != nullptr; }

 private:
  friend class BufferPool;
  Buffer(std::shared_ptr<BufferPool::Mapping> mapping, Range range, int64_t size);

  std::shared_ptr<BufferPool::Mapping> mapping_;
  Range range_;
  int64_t size_ = 0;
  std::span<std::byte> whole_;
};

}  // namespace cairn::memory
