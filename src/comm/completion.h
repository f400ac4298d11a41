#pragma once
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cairn::comm {

class FlightRecorder;
class Transport;

// What the flight recorder knows of a transfer; without a recorder nothing is recorded.
struct FlightMark {
  FlightRecorder* recorder = nullptr;
  uint64_t operation = 0;
  int64_t bytes = 0;
  std::chrono::nanoseconds posted{};
};

// One request to a transport. Transports derive their own kinds.
struct Transfer {
  virtual ~Transfer() = default;
  virtual std::vector<int> awaited() const { return done ? std::vector<int>() : std::vector<int>{peer}; }  // the ranks it waits for
  int peer = -1;                                                                                           // -1: several
  bool outgoing = false;
  bool done = false;
  bool cancelled = false;
  std::optional<Error> error;
  std::coroutine_handle<> waiter;
  const std::byte* view = nullptr;  // of a finished recv_view: the bytes
  std::shared_ptr<void> held = {};  // keeps them alive
  FlightMark flight = {};
};

// The caller's handle on a transfer: `co_await` it inside a Coroutine. Destroying it before it is done cancels the transfer.
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

// Finished transfers whose waiters have not run yet. A transport fills it while it moves bytes and runs it when its own state is
// consistent, because a waiter may start new transfers.
class CompletionQueue {
 public:
  void finish(const std::shared_ptr<Transfer>& transfer);
  void fail(const std::shared_ptr<Transfer>& transfer, Error error);
  bool empty() const { return queue_.empty(); }
  void run();

 private:
  std::vector<std::shared_ptr<Transfer>> queue_;
};

}  // namespace cairn::comm
