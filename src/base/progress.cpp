#include "base/progress.h"

#include "base/clock.h"
#include "base/terminal.h"

namespace cairn::base {

Progress::Progress(Terminal& terminal, const Clock& clock, std::chrono::nanoseconds interval)
    : terminal_(terminal), clock_(clock), interval_(terminal.live() ? std::chrono::milliseconds(100) : interval) {}

bool Progress::due() const { return clock_.now() >= next_; }

void Progress::update(std::string_view text) {
  if (!due()) return;
  next_ = clock_.now() + interval_;
  if (terminal_.live()) {
    terminal_.show_live(text);
  } else {
    terminal_.line(text);
  }
}

void Progress::finish(std::string_view text) {
  terminal_.end_live();
  if (!text.empty()) terminal_.line(text);
}

}  // namespace cairn::base
