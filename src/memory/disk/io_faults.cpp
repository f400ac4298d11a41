#include "memory/disk/io_faults.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <utility>

#include "memory/budget.h"

namespace cairn::memory {
namespace {

class FaultyBackEnd final : public IoBackEnd {
 public:
  FaultyBackEnd(std::unique_ptr<IoBackEnd> back_end, const IoFaults& faults) : back_end_(std::move(back_end)), faults_(faults) {}

  void submit(std::span<const BlockTransfer> blocks) override {
    std::vector<BlockTransfer> let_through;
    for (BlockTransfer block : blocks) {
      if (const std::optional<int64_t> result = decide(block))
        ready_.push_back({block.tag, *result});
      else
        let_through.push_back(block);
    }
    back_end_->submit(let_through);
  }

  void wait(std::vector<BlockResult>& done, std::chrono::nanoseconds at_most) override {
    const size_t before = done.size();
    back_end_->wait(done, ready_.empty() ? at_most : std::chrono::nanoseconds(0));
    for (size_t i = before; i < done.size(); ++i) {
      const auto pretended = pretended_.find(done[i].tag);
      if (pretended == pretended_.end()) continue;
      if (done[i].result > 0) done[i].result = pretended->second;
      pretended_.erase(pretended);
    }
    done.insert(done.end(), ready_.begin(), ready_.end());
    ready_.clear();
  }

  void wake() override { back_end_->wake(); }
  std::string description() const override { return back_end_->description() + ", with faults"; }

 private:
  // The result of a block that does not reach the disk; the others do, shortened perhaps.
  std::optional<int64_t> decide(BlockTransfer& block) {
    if (faults_.longest_block_bytes >= 0) block.bytes = std::min(block.bytes, faults_.longest_block_bytes);
    return block.write ? decide_write(block) : decide_read(block);
  }

  std::optional<int64_t> decide_read(BlockTransfer& block) {
    if (faults_.read_error_after_bytes >= 0 && read_ >= faults_.read_error_after_bytes) return -EIO;
    if (faults_.ends_after_bytes >= 0) block.bytes = std::min(block.bytes, std::max<int64_t>(0, faults_.ends_after_bytes - read_));
    read_ += block.bytes;
    if (block.bytes == 0) return 0;
    return std::nullopt;
  }

  std::optional<int64_t> decide_write(BlockTransfer& block) {
    if (faults_.write_error_after_bytes >= 0 && written_ >= faults_.write_error_after_bytes) return -EIO;
    if (faults_.full_after_bytes >= 0 && written_ >= faults_.full_after_bytes) return -ENOSPC;
    written_ += block.bytes;
    const int64_t number = writes_++;
    if (number == faults_.lost_write) return block.bytes;
    if (number == faults_.torn_write) {
      pretended_[block.tag] = block.bytes;
      block.bytes = std::max<int64_t>(kPageBytes, block.bytes / 2 / kPageBytes * kPageBytes);
    }
    return std::nullopt;
  }

  std::unique_ptr<IoBackEnd> back_end_;
  const IoFaults faults_;
  int64_t read_ = 0, written_ = 0, writes_ = 0;
  std::vector<BlockResult> ready_;
  std::map<uint64_t, int64_t> pretended_;  // tag -> bytes that are reported
};

}  // namespace

std::unique_ptr<IoBackEnd> make_faulty(std::unique_ptr<IoBackEnd> back_end, const IoFaults& faults) {
  return std::make_unique<FaultyBackEnd>(std::move(back_end), faults);
}

}  // namespace cairn::memory
