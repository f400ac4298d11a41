#include "model/name_pattern.h"

namespace cairn::model {

// Greedy matching with backtracking to the last *.
bool matches(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace cairn::model
