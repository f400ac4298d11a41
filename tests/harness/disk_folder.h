#pragma once
#include <filesystem>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <vector>

namespace cairn::harness {

// A new empty folder beside the build, which goes away with the test: the system's temporary folder may be in memory.
class DiskFolder {
 public:
  DiskFolder() {
    std::string name = std::string(CAIRN_BINARY_DIR) + "/cairn-disk-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for a test");
    path_ = name;
  }
  ~DiskFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) all.push_back(entry.path().filename().string());
    return all;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace cairn::harness
