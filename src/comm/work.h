#pragma once
#include <functional>
#include <memory>
#include <vector>

namespace cairn::comm {

// Something under way: a handle, cheap to copy. It keeps the buffers it uses alive, carries the deadline of its group, and rethrows on wait
// what went wrong. Until it is done, neither write what it reads nor touch what it writes.
class [[nodiscard]] Work {
 public:
  // What a transport or tier implements. Both are called by the owning rank's thread only.
  class State {
   public:
    virtual ~State() = default;
    virtual bool ready() const = 0;  // asks, moves nothing
    virtual void wait() = 0;         // throws cairn::Error; may be called again
    virtual void wait_host() { wait(); }
  };

  Work() = default;  // done already
  explicit Work(std::shared_ptr<State> state);
  static Work done() { return {}; }
  static Work all(std::vector<Work> parts);  // waits for every part, then throws the first error

  // Work that runs `last` once, on the waiting thread, when this one is done; a part of waiting for it.
  Work then(std::function<void()> last) const;

  void wait() const;       // orders the stream after it: what is queued on the device afterwards sees the result. On CPU: blocks
  void wait_host() const;  // blocks until the host may read the result
  bool ready() const;      // does not make progress (Group::progress does)

 private:
  std::shared_ptr<State> state_;  // null: done
};

}  // namespace cairn::comm
