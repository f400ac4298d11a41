#include "comm/work.h"

#include <exception>
#include <utility>

namespace cairn::comm {
namespace {

class All final : public Work::State {
 public:
  explicit All(std::vector<Work> parts) : parts_(std::move(parts)) {}

  bool ready() const override {
    for (const Work& part : parts_) {
      if (!part.ready()) return false;
    }
    return true;
  }

  void wait() override { each(&Work::wait); }
  void wait_host() override { each(&Work::wait_host); }

 private:
  void each(void (Work::*wait_for)() const) {
    std::exception_ptr first;
    for (const Work& part : parts_) {
      try {
        (part.*wait_for)();
      } catch (...) {  // the other parts still use their buffers
        if (!first) first = std::current_exception();
      }
    }
    if (first) std::rethrow_exception(first);
  }

  std::vector<Work> parts_;
};

class Then final : public Work::State {
 public:
  Then(Work before, std::function<void()> last) : before_(std::move(before)), last_(std::move(last)) {}

  bool ready() const override { return before_.ready(); }

  void wait() override {
    before_.wait();
    if (last_) std::exchange(last_, nullptr)();
  }

  void wait_host() override {
    before_.wait_host();
    wait();
  }

 private:
  Work before_;
  std::function<void()> last_;
};

}  // namespace

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

Work Work::all(std::vector<Work> parts) {
  std::erase_if(parts, [](const Work& part) { return !part.state_; });
  if (parts.empty()) return {};
  return Work(std::make_shared<All>(std::move(parts)));
}

Work Work::then(std::function<void()> last) const { return Work(std::make_shared<Then>(*this, std::move(last))); }

void Work::wait() const {
  if (state_) state_->wait();
}

void Work::wait_host() const {
  if (state_) state_->wait_host();
}

bool Work::ready() const { return !state_ || state_->ready(); }

}  // namespace cairn::comm
