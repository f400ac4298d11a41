#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/text.h"
#include "memory/record_state.h"

namespace cairn::memory {
namespace {

constexpr std::chrono::nanoseconds kLookAtClock = std::chrono::seconds(1);

}  // namespace

void PendingTransfer::finish(std::optional<Error> error, std::shared_ptr<Buffer> buffer, bool forwarded) {
  {
    const std::lock_guard lock(mutex_);
    CAIRN_CHECK(!done_, "{}: done twice", what);
    done_ = true;
    error_ = std::move(error);
    buffer_ = std::move(buffer);
    forwarded_ = forwarded;
  }
  changed_.notify_all();
}

std::shared_ptr<Buffer> PendingTransfer::wait() {
  std::unique_lock lock(mutex_);
  if (done_) {
    ++counters->ready_waits;
  } else {
    const std::chrono::nanoseconds begun = clock->now();
    ++counters->stalls;
    while (!done_) {
      const std::chrono::nanoseconds left = deadline - clock->now();
      if (left.count() <= 0) break;
      changed_.wait_for(lock, std::min(left, kLookAtClock));
    }
    counters->stall_ns += (clock->now() - begun).count();
  }
  if (!done_) throw Error(Error::Kind::disk, fmt::format("{}: not done within {}", what, base::human_duration(patience)));
  if (error_) {
    seen_ = true;
    throw Error(*error_);
  }
  return std::move(buffer_);
}

bool PendingTransfer::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

bool PendingTransfer::forwarded() const {
  const std::lock_guard lock(mutex_);
  return forwarded_;
}

bool PendingTransfer::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

std::optional<Error> PendingTransfer::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void WriteHandle::wait() { transfer_->wait(); }
bool WriteHandle::ready() const { return transfer_->done(); }
bool WriteHandle::cancel() { return transfer_->store->cancel(*transfer_); }

std::shared_ptr<const Buffer> ReadHandle::wait() {
  if (buffer_ == nullptr) buffer_ = transfer_->wait();
  return buffer_;
}
bool ReadHandle::ready() const { return transfer_->done(); }
bool ReadHandle::cancel() { return transfer_->store->cancel(*transfer_); }
bool ReadHandle::forwarded() const { return transfer_->forwarded(); }

Buffer ReadHandle::take() {
  CAIRN_CHECK(exclusive_, "{}: take() is for exclusive reads", transfer_->what);
  wait();
  CAIRN_CHECK(*buffer_, "{}: was taken already", transfer_->what);
  return std::move(*buffer_);
}

}  // namespace cairn::memory
