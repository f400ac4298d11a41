#include "data/corpus/bad_lines.h"

#include "base/check.h"

namespace cairn::data {

void BadLines::add(const std::string& path, const BadLine& bad) {
  ++count;
  if (named.size() < kNamed) named.push_back(fmt::format("{}:{}: {}", path, bad.line, bad.why));
}

void BadLines::add(const BadLines& more) {
  count += more.count;
  for (const std::string& name : more.named)
    if (named.size() < kNamed) named.push_back(name);
}

std::string BadLines::summary() const {
  if (count == 0) return "";
  std::string text = fmt::format("{} bad line{} skipped: ", count, count == 1 ? " was" : "s were");
  for (size_t i = 0; i < named.size(); ++i) text += (i == 0 ? "" : "; ") + named[i];
  if (count > static_cast<int64_t>(named.size())) text += "; …";
  return text;
}

void refuse(const std::string& path, const BadLine& bad) {
  base::fail_input("{}:{}: {}. Fix the line, or set data.on_bad = \"skip\" to leave such lines out.", path, bad.line, bad.why);
}

}  // namespace cairn::data
