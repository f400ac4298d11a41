#include "cli/launch/gpus.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "cli/environment.h"

namespace cairn::cli {

std::vector<std::string> visible_gpus() {
  std::vector<std::string> gpus;
  if (const auto named = variable("CUDA_VISIBLE_DEVICES")) {
    std::istringstream list(*named);
    for (std::string one; std::getline(list, one, ',');) {
      if (one == "-1") break;  // what CUDA cannot find ends its list
      if (!one.empty()) gpus.push_back(one);
    }
    return gpus;
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > 6 && name.starts_with("nvidia") &&
                          std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (numbered) gpus.push_back(name.substr(6));
  }
  // CUDA counts those it may use from 0, whatever their files are called.
  for (size_t i = 0; i < gpus.size(); ++i) gpus[i] = std::to_string(i);
  return gpus;
}

void select_gpu(int local_rank) {
  const std::vector<std::string> gpus = visible_gpus();
  if (gpus.size() > 1) set_variable("CUDA_VISIBLE_DEVICES", gpus[static_cast<size_t>(local_rank) % gpus.size()]);
}

}  // namespace cairn::cli
