#include "base/terminal.h"

#include <cerrno>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "base/text.h"

namespace cairn::base {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[2K";

// Output that cannot be written any more (a closed pipe) must not fail a run.
void write_standard_output(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

int screen_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Terminal::Terminal() : Terminal(write_standard_output, ::isatty(STDOUT_FILENO) == 1, 0) {}
Terminal::Terminal(Writer writer, bool live, int columns) : writer_(std::move(writer)), live_(live), columns_(columns) {}
Terminal::~Terminal() { end_live(); }

void Terminal::clear() {
  if (!shown_.empty()) writer_(kEraseLine);
}

void Terminal::line(std::string_view text) {
  const std::lock_guard lock(mutex_);
  std::string out;
  if (!shown_.empty()) out += kEraseLine;
  out += printable(text);
  out += '\n';
  out += shown_;
  writer_(out);  // one write: other processes on the same screen do not come between
}

void Terminal::show_live(std::string_view text) {
  if (!live_) return;
  const std::lock_guard lock(mutex_);
  shown_ = cut(text);
  writer_(std::string(kEraseLine) + shown_);
}

void Terminal::end_live() {
  const std::lock_guard lock(mutex_);
  clear();
  shown_.clear();
}

// A line that wraps cannot be erased: it is cut one short of the edge, between characters.
std::string Terminal::cut(std::string_view text) const {
  std::string line = printable(text);
  for (char& c : line)
    if (c == '\n' || c == '\t') c = ' ';
  const int columns = columns_ > 0 ? columns_ : screen_columns();
  int used = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (starts_character && ++used >= columns) return line.substr(0, i);
  }
  return line;
}

std::string printable(std::string_view text) {
  std::string out = valid_utf8(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return out;
}

}  // namespace cairn::base
