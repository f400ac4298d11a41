#pragma once
#include <chrono>
#include <string>
#include <string_view>

namespace cairn::base {

class Clock;
class Terminal;

// The progress display of a long job: one line rewritten in place on a screen, plain lines now and then elsewhere.
class Progress {
 public:
  // At most one plain line per `interval` (a screen is refreshed ten times a second). Both must outlive this.
  Progress(Terminal& terminal, const Clock& clock, std::chrono::nanoseconds interval = std::chrono::seconds(1));

  bool due() const;  // whether update() would show anything: lets the caller skip making the text
  void update(std::string_view text);
  void finish(std::string_view text);  // leaves this text as a line; empty: leaves nothing

 private:
  Terminal& terminal_;
  const Clock& clock_;
  std::chrono::nanoseconds interval_;
  std::chrono::nanoseconds next_{0};
};

}  // namespace cairn::base
