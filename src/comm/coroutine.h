#pragma once
#include <coroutine>
#include <exception>
#include <utility>

namespace cairn::comm {

// The coroutine type of collectives and channels. It starts when called, runs to its first unfinished Completion, and continues when the
// transport finishes that. One coroutine may await another. Destroying it cancels the transfers that it holds.
class [[nodiscard]] Coroutine {
 public:
  struct promise_type {
    std::exception_ptr error;
    std::coroutine_handle<> continuation;

    struct Last {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
        if (self.promise().continuation) self.promise().continuation.resume();
      }
      void await_resume() const noexcept {}
    };
    Coroutine get_return_object() { return Coroutine(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    Last final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { error = std::current_exception(); }
  };

  Coroutine() = default;
  explicit Coroutine(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  Coroutine(Coroutine&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Coroutine& operator=(Coroutine&& other) noexcept {
    if (this != &other) {
      destroy();
      handle_ = std::exchange(other.handle_, {});
    }
    return *this;
  }
  ~Coroutine() { destroy(); }

  bool done() const { return !handle_ || handle_.done(); }
  std::exception_ptr error() const { return handle_ ? handle_.promise().error : nullptr; }
  void destroy() {
    if (handle_) std::exchange(handle_, {}).destroy();
  }

  bool await_ready() const noexcept { return done(); }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { handle_.promise().continuation = waiter; }
  void await_resume() const {
    if (auto failed = error()) std::rethrow_exception(failed);
  }

 private:
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace cairn::comm
