#include "base/run_events.h"

#include <cmath>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <string>
#include <unistd.h>

#include "base/clock.h"

namespace cairn::base {

bool RunEvents::write(std::string_view event, const OrderedJson& facts) const noexcept {
  if (run_.empty()) return false;
  try {
    OrderedJson line{{"time", std::round(wall_time() * 1000) / 1000}, {"event", std::string(event)}};
    for (const auto& [name, value] : facts.items()) line[name] = value;
    std::string text = compact(line) + "\n";
    const int file = ::open((run_ / kFile).c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return false;
    char last = '\n';
    const off_t size = ::lseek(file, 0, SEEK_END);
    if (size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n') text.insert(0, "\n");
    const bool whole = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    return ::close(file) == 0 && whole;
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<Json> read_events(const std::filesystem::path& run) {
  std::vector<Json> events;
  std::ifstream file(run / RunEvents::kFile);
  for (std::string line; std::getline(file, line);) {
    try {
      if (Json event = parse_json(line); event.is_object() && event.contains("event")) events.push_back(std::move(event));
    } catch (const std::exception&) {  // the rest of a line whose writer was killed
    }
  }
  return events;
}

}  // namespace cairn::base
