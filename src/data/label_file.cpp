#include "data/label_file.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/check.h"
#include "base/files.h"

namespace cairn::data {
namespace {

constexpr int64_t kLabelBytesMax = int64_t{1} << 30;

}  // namespace

std::vector<int64_t> read_label_file(const std::string& path, int64_t samples, int64_t classes, const std::string& kind) {
  const std::string text = base::read_file(path, kLabelBytesMax);
  std::vector<int64_t> labels;
  int64_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    int64_t label = -1;
    const auto [after, error] = std::from_chars(line.data(), line.data() + line.size(), label);
    if (error != std::errc() || after != line.data() + line.size() || label < 0 || label >= classes)
      base::fail_input("{}:{}: is no class from 0 to {} ({}.classes = {}). Write one class on each line.", path, number, classes - 1, kind,
                       classes);
    labels.push_back(label);
  }
  if (static_cast<int64_t>(labels.size()) != samples)
    base::fail_input("{}: has {} classes for {} {}. Write one line for each.", path, labels.size(), samples, kind);
  return labels;
}

}  // namespace cairn::data
