#include "comm/completion.h"

#include "comm/flight/recorder.h"
#include "comm/transport.h"

namespace cairn::comm {

Completion& Completion::operator=(Completion&& other) noexcept {
  if (this != &other) {
    release();
    transport_ = other.transport_;
    transfer_ = std::move(other.transfer_);
  }
  return *this;
}

void Completion::release() noexcept {
  if (!transfer_) return;
  transfer_->waiter = nullptr;
  if (!transfer_->done) {
    transfer_->cancelled = true;
    transport_->cancel(*transfer_);
  }
  transfer_->held.reset();
  transfer_.reset();
}

void CompletionQueue::finish(const std::shared_ptr<Transfer>& transfer) {
  if (transfer->done) return;
  transfer->done = true;
  if (transfer->flight.recorder) transfer->flight.recorder->finished(*transfer);
  queue_.push_back(transfer);
}

void CompletionQueue::fail(const std::shared_ptr<Transfer>& transfer, Error error) {
  transfer->error = std::move(error);
  finish(transfer);
}

void CompletionQueue::run() {
  while (!queue_.empty()) {
    const std::vector<std::shared_ptr<Transfer>> batch = std::exchange(queue_, {});
    for (const auto& transfer : batch) {
      if (const auto waiter = std::exchange(transfer->waiter, nullptr)) waiter.resume();
    }
  }
}

}  // namespace cairn::comm
