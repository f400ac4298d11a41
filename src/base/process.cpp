#include "base/process.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

namespace cairn::base {

std::string host_name() {
  char host[256] = {};
  return ::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0' ? "localhost" : host;
}

std::vector<std::string> process_stat(int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the program's name may hold anything
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  return {std::istream_iterator<std::string>(fields), {}};
}

}  // namespace cairn::base
