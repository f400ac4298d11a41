// Tensors whose memory lies in a tier (device, host or disk) between their uses.
//
//   at::Tensor moments = swapper.make({.name = "optimizer.layers.3", .home = memory::TierKind::disk, ...}, elements, options);
//   swapper.prefetch(moments);                                        // starts to read
//   {
//     const TensorSwapper::Hold hold = swapper.hold(moments, TensorSwapper::Access::update);
//     ... moments, and every view of it, may be read and written here ...
//   }
//   swapper.write_back(moments);                                      // starts to write what has changed
//
// Tensor and views stay what they are: only the memory behind their storage comes and goes (as FSDP frees the storage of gathered
// parameters). A view that is read while nobody holds it reads address 0.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory/tier.h"

namespace cairn::mesh {

// Not thread-safe: the thread that trains makes, holds and reads ahead. The disk works on a thread of its own.
class TensorSwapper {
 public:
  explicit TensorSwapper(std::unique_ptr<memory::Tier> tier, const base::Clock& clock);
  ~TensorSwapper();
  TensorSwapper(const TensorSwapper&) = delete;
  TensorSwapper& operator=(const TensorSwapper&) = delete;

  struct Place {
    std::string name;                                // unique
    memory::TierKind home = memory::TierKind::disk;  // host or disk
    base::MemoryUse use = base::MemoryUse::other;
    memory::IoClass io_class = memory::IoClass::parameters;  // of its reads
  };
  // A flat tensor of zeros. In the host tier of a CPU run it has its memory for good. Takes the room that it needs of its tier; throws
  // out_of_memory where there is none.
  at::Tensor make(const Place& place, int64_t elements, const at::TensorOptions& options);

  enum class Access : uint8_t {
    read,
    update,     // changes it
    overwrite,  // changes all of it: what it held is not read
  };

  // While it lives, the memory is there. Holds nest. It must not outlive the swapper.
  class Hold {
   public:
    Hold() = default;
    ~Hold();
    Hold(Hold&& other) noexcept : swapper_(other.swapper_), items_(std::exchange(other.items_, {})) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(swapper_, other.swapper_);
      std::swap(items_, other.items_);
      return *this;
    }

   private:
    friend class TensorSwapper;
    TensorSwapper* swapper_ = nullptr;
    std::vector<size_t> items_;
  };
  // Tensors of this swapper, or views of them; others are left out. Waits for the disk. Throws what went wrong there, with file and
  // offset; then nothing is held, and nothing has changed.
  Hold hold(std::span<const at::Tensor> tensors, Access access);
  Hold hold(const at::Tensor& tensor, Access access) { return hold({&tensor, 1}, access); }

  // Whether its memory comes and goes.
  bool owns(const at::Tensor& tensor) const { return find(tensor) != nullptr; }
  bool same(const at::Tensor& a, const at::Tensor& b) const { return find(a) == find(b); }

  // Starts to read it, if there is room without taking that of anything read ahead. False: there was none.
  bool prefetch(const at::Tensor& tensor);
  // Starts to write it, if it has changed; its room is free once it is written.
  void write_back(const at::Tensor& tensor);
  // Writes all that has changed, and waits for it. Throws the first error of a write.
  void flush();

  struct Counters {
    int64_t hits = 0;    // holds that found their memory there, or read already
    int64_t waits = 0;   // holds that waited for the disk
    double wait_s = 0;
    int64_t skipped = 0;  // prefetches that found no room
  };
  const Counters& counters() const { return counters_; }
  memory::TierReport report() const { return tier_->report(); }

  // What happened since the last call.
  struct Since {
    Counters counts;
    int64_t read_bytes = 0, written_bytes = 0;
    double busy_s = 0;  // of the disk
    double depth = 0;   // mean blocks on their way meanwhile
  };
  Since take_since();
  memory::Tier& tier() { return *tier_; }

 private:
  struct Item;
  Item* find(const at::Tensor& tensor) const;
  size_t index_of(const Item& item) const;
  void bring(Item& item, Access access);
  void attach(Item& item);  // its memory to the tensor
  void detach(Item& item);
  void leave(Item& item);  // nobody holds it any more
  void start_write(Item& item);
  void collect_writes();
  std::optional<memory::Buffer> take_if_free(const Item& item);
  memory::Buffer take(const Item& item);
  bool evict_clean(const Item& for_whom);
  bool evict_dirty();
  bool wait_for_write();
  bool evict_read_ahead();

  std::unique_ptr<memory::Tier> tier_;
  const base::Clock& clock_;
  std::vector<std::unique_ptr<Item>> items_;
  std::unordered_map<const void*, size_t> by_storage_;
  std::deque<memory::WriteHandle> writes_;  // on their way, oldest first
  int64_t turn_ = 0;
  Counters counters_;
  Counters counters_before_;
  memory::DiskCounters disk_before_;
};

// Nothing where there is no swapper.
inline TensorSwapper::Hold hold(TensorSwapper* swapper, const at::Tensor& tensor, TensorSwapper::Access access) {
  return swapper && tensor.defined() ? swapper->hold(tensor, access) : TensorSwapper::Hold();
}

}  // namespace cairn::mesh
