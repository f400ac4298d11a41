// Direct I/O by threads: each takes a block, reads or writes it, and takes the next.
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "base/files/disk.h"
#include "memory/disk/back_end.h"

namespace cairn::memory {
namespace {

class IoThreads final : public IoBackEnd {
 public:
  IoThreads(int threads, const base::Disk& disk) : disk_(disk) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~IoThreads() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    todo_changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(std::span<const BlockTransfer> blocks) override {
    {
      const std::lock_guard lock(mutex_);
      todo_.insert(todo_.end(), blocks.begin(), blocks.end());
    }
    todo_changed_.notify_all();
  }

  void wait(std::vector<BlockResult>& done, std::chrono::nanoseconds at_most) override {
    std::unique_lock lock(mutex_);
    done_changed_.wait_for(lock, at_most, [&] { return woken_ || !done_.empty(); });
    woken_ = false;
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    done_changed_.notify_one();
  }

  std::string description() const override { return fmt::format("{} threads with pread and pwrite", threads_.size()); }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      todo_changed_.wait(lock, [&] { return stopping_ || !todo_.empty(); });
      if (todo_.empty()) return;
      const BlockTransfer block = todo_.front();
      todo_.pop_front();
      lock.unlock();
      const int64_t result = transfer(block);
      lock.lock();
      done_.push_back({block.tag, result});
      done_changed_.notify_one();
    }
  }

  int64_t transfer(const BlockTransfer& block) const {
    const auto bytes = static_cast<size_t>(block.bytes);
    int64_t n = -1;
    if (block.write) {
      n = disk_.write_at(block.file, {block.data, bytes}, block.offset);
    } else {
      do n = ::pread(block.file, block.data, bytes, block.offset);
      while (n < 0 && errno == EINTR);
    }
    return n < 0 ? -errno : n;
  }

  const base::Disk& disk_;
  std::mutex mutex_;
  std::condition_variable todo_changed_, done_changed_;
  std::deque<BlockTransfer> todo_;
  std::vector<BlockResult> done_;
  bool woken_ = false, stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoBackEnd> make_io_threads(int threads, const base::Disk& disk) { return std::make_unique<IoThreads>(threads, disk); }

}  // namespace cairn::memory
