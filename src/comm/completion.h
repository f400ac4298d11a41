#pragma once
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cairn::comm {

class Transport;

// One thing a transport was asked to do. Transports derive what they need to remember.
struct Transfer {
  virtual ~Transfer() = default;
  virtual std::vector<int> awaited() const { return done ? std::vector<int>() : std::vector<int>{peer}; }  // for whom it waits
  int peer = -1;                                                                                           // none: several
  bool outgoing = false;
  bool done = false;
  bool cancelled = false;
  std::optional<Error> error;
  std::coroutine_handle<> waiter;
  const std::byte* view = nullptr;  // of a recv_view that is done: where the bytes are
  std::shared_ptr<void> held = {};  // what keeps them there
};

// The asking side's hold on a transfer: `co_await` it inside a Task. Destroying it before it is done cancels the transfer.
class Completion {
 public:
  Completion() = default;  // done already
  Completion(Transport& transport, std::shared_ptr<Transfer> transfer) : transport_(&transport), transfer_(std::move(transfer)) {}
  Completion(Completion&& other) noexcept = default;
  Completion& operator=(Completion&& other) noexcept;
  ~Completion() { release(); }

  const std::shared_ptr<Transfer>& transfer() const { return transfer_; }
  bool done() const { return !transfer_ || transfer_->done; }
  const std::byte* view() const { return transfer_->view; }  // of a recv_view that is done

  bool await_ready() const noexcept { return done(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { transfer_->waiter = waiter; }
  void await_resume() const {
    if (transfer_ && transfer_->error) throw Error(*transfer_->error);
  }

 private:
  void release() noexcept;
  Transport* transport_ = nullptr;
  std::shared_ptr<Transfer> transfer_;
};

// Transfers that are done and whose waiters have yet to run. Transports fill it while they move bytes and run it when they are consistent,
// because a waiter may at once ask for more.
class DoneQueue {
 public:
  void finish(const std::shared_ptr<Transfer>& transfer);
  void fail(const std::shared_ptr<Transfer>& transfer, Error error);
  bool empty() const { return queue_.empty(); }
  void run();

 private:
  std::vector<std::shared_ptr<Transfer>> queue_;
};

}  // namespace cairn::comm
