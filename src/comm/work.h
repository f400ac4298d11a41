#pragma once
#include <functional>
#include <memory>
#include <vector>

namespace cairn::comm {

// A handle on an operation in flight (as c10d's Work); cheap to copy. It keeps the operation's buffers alive; its wait has the deadline of
// the group and throws the operation's error. Until it is done, do not write its inputs and do not touch its outputs.
class [[nodiscard]] Work {
 public:
  // What the source of the work implements. Called by the owning rank's thread only.
  class State {
   public:
    virtual ~State() = default;
    virtual bool ready() const = 0;  // makes no progress
    virtual void wait() = 0;         // throws cairn::Error; may be called repeatedly
    virtual void wait_host() { wait(); }
  };

  Work() = default;  // done already
  explicit Work(std::shared_ptr<State> state);
  static Work done() { return {}; }
  static Work all(std::vector<Work> parts);  // waits for all parts, then throws the first error

  // Work that waits for this one and then runs `last`, once, on the waiting thread.
  Work then(std::function<void()> last) const;

  void wait() const;       // on a device: orders the current stream after it; on CPU: blocks
  void wait_host() const;  // blocks until the host may read the result
  bool ready() const;      // makes no progress (Group::progress does)

 private:
  std::shared_ptr<State> state_;  // null: done
};

}  // namespace cairn::comm
