#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace cairn::base {

// Text for people: whole lines, and below them at most one live line that is rewritten in place. All text of a process for one screen goes
// through one Terminal, so that lines never mix. Thread-safe.
class Terminal {
 public:
  using Writer = std::function<void(std::string_view)>;

  // The process's standard output. Live if that is a screen.
  Terminal();
  // Writes elsewhere (tests, a file). `columns`: where the live line is cut.
  Terminal(Writer writer, bool live, int columns = 80);
  ~Terminal();  // ends the live line, if one is shown
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool live() const { return live_; }
  void line(std::string_view text);       // above the live line, if there is one
  void show_live(std::string_view text);  // replaces the live line; nothing where not live()
  void end_live();                        // removes the live line

 private:
  void clear();  // under the lock
  std::string cut(std::string_view text) const;

  Writer writer_;
  bool live_;
  int columns_;  // 0: ask the screen each time, it may be resized
  std::mutex mutex_;
  std::string shown_;
};

// The text without terminal control: control characters other than newline and tab become '?'. Bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text);

}  // namespace cairn::base
