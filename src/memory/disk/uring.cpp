// Direct I/O through io_uring: blocks are put into a ring that the kernel reads, and their results are read off another one. A read of an
// eventfd in the same ring lets other threads wake the one that waits.
#include <cerrno>
#include <cstring>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <fmt/format.h>
#include <liburing.h>

#include "base/check.h"
#include "memory/disk/back_end.h"

namespace cairn::memory {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr size_t kRegisteredMax = size_t{1} << 30;  // the kernel takes no longer piece

class Uring final : public IoBackEnd {
 public:
  // Sets `error` (an errno) where the kernel refuses it.
  Uring(int depth, const std::vector<std::span<std::byte>>& memory, int& error) {
    error = -::io_uring_queue_init(static_cast<unsigned>(depth) + 2, &ring_, 0);
    if (error != 0) return;
    is_open_ = true;
    event_ = ::eventfd(0, EFD_CLOEXEC);
    if (event_ < 0) {
      error = errno;
      return;
    }
    register_memory(memory);
    arm();
  }
  ~Uring() override {
    if (is_open_) ::io_uring_queue_exit(&ring_);
    if (event_ >= 0) ::close(event_);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  void submit(std::span<const BlockTransfer> blocks) override {
    for (const BlockTransfer& block : blocks) {
      io_uring_sqe* entry = next_entry();
      const int piece = registered(block);
      const auto bytes = static_cast<unsigned>(block.bytes);
      const auto offset = static_cast<uint64_t>(block.offset);
      if (piece < 0 && block.write)
        ::io_uring_prep_write(entry, block.file, block.data, bytes, offset);
      else if (piece < 0)
        ::io_uring_prep_read(entry, block.file, block.data, bytes, offset);
      else if (block.write)
        ::io_uring_prep_write_fixed(entry, block.file, block.data, bytes, offset, piece);
      else
        ::io_uring_prep_read_fixed(entry, block.file, block.data, bytes, offset, piece);
      ::io_uring_sqe_set_data64(entry, block.tag);
    }
    ::io_uring_submit(&ring_);  // what it leaves in the ring goes with the next call
  }

  void wait(std::vector<BlockResult>& done, std::chrono::nanoseconds at_most) override {
    __kernel_timespec time{.tv_sec = at_most.count() / 1'000'000'000, .tv_nsec = at_most.count() % 1'000'000'000};
    io_uring_cqe* first = nullptr;
    const int error = ::io_uring_submit_and_wait_timeout(&ring_, &first, 1, &time, nullptr);
    CAIRN_CHECK(error >= 0 || error == -ETIME || error == -EINTR || error == -EAGAIN || error == -EBUSY, "io_uring: {}",
                std::strerror(-error));
    unsigned head = 0, seen = 0;
    bool woken = false;
    io_uring_cqe* one = nullptr;
    io_uring_for_each_cqe(&ring_, head, one) {
      ++seen;
      if (one->user_data == kWakeTag)
        woken = true;
      else
        done.push_back({one->user_data, one->res});
    }
    ::io_uring_cq_advance(&ring_, seen);
    if (woken) arm();
  }

  void wake() override {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_, &one, sizeof one);
  }

  std::string description() const override { return registration_; }

 private:
  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      ::io_uring_submit(&ring_);
      entry = ::io_uring_get_sqe(&ring_);
    }
    CAIRN_CHECK(entry != nullptr, "io_uring: the ring is full");
    return entry;
  }

  void arm() {
    io_uring_sqe* entry = next_entry();
    ::io_uring_prep_read(entry, event_, &events_, sizeof events_, 0);
    ::io_uring_sqe_set_data64(entry, kWakeTag);
  }

  void register_memory(const std::vector<std::span<std::byte>>& memory) {
    for (std::span<std::byte> left : memory) {
      while (!left.empty()) {
        const std::span<std::byte> piece = left.first(std::min(left.size(), kRegisteredMax));
        pieces_.push_back({piece.data(), piece.size()});
        left = left.subspan(piece.size());
      }
    }
    if (pieces_.empty()) {
      registration_ = "io_uring";
      return;
    }
    const int error = ::io_uring_register_buffers(&ring_, pieces_.data(), static_cast<unsigned>(pieces_.size()));
    registration_ = error == 0 ? "io_uring with registered buffers"
                               : fmt::format("io_uring, buffers not registered ({}; see ulimit -l)", std::strerror(-error));
    if (error != 0) pieces_.clear();
  }

  // The registered piece that a block lies in; -1: none.
  int registered(const BlockTransfer& block) const {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto* begin = static_cast<const std::byte*>(pieces_[i].iov_base);
      if (block.data >= begin && block.data + block.bytes <= begin + pieces_[i].iov_len) return static_cast<int>(i);
    }
    return -1;
  }

  io_uring ring_{};
  bool is_open_ = false;
  int event_ = -1;
  uint64_t events_ = 0;
  std::vector<iovec> pieces_;
  std::string registration_;
};

}  // namespace

std::unique_ptr<IoBackEnd> make_uring(int depth, const std::vector<std::span<std::byte>>& memory, std::string& why_not) {
  int error = 0;
  auto ring = std::make_unique<Uring>(depth, memory, error);
  if (error == 0) return ring;
  why_not = fmt::format("the kernel refuses it: {}", std::strerror(error));
  return nullptr;
}

}  // namespace cairn::memory
