#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace cairn::kernels {

// Which algorithm was found to be the fastest for a product, by a description of it: in a file, for later runs. Several programs may keep
// the same file; what one of them adds at the same moment as another may be lost, and is found again.
class ProductChoices {
 public:
  using Algorithm = std::array<uint64_t, 8>;  // as the library has it

  explicit ProductChoices(std::filesystem::path file);  // empty: nothing is kept. A file that cannot be read counts as an empty one.
  std::optional<Algorithm> find(const std::string& product) const;
  // A file that cannot be written is no error: the choice holds for this run.
  void keep(const std::string& product, const Algorithm& algorithm);

 private:
  using Choices = std::map<std::string, Algorithm>;
  static Choices read(const std::filesystem::path& file);

  std::filesystem::path file_;
  mutable std::mutex lock_;
  Choices known_;
};

// "NAME.json" in the folder where Cairn keeps what it may lose; empty where there is no home.
std::filesystem::path product_choices_file(const std::string& name);

}  // namespace cairn::kernels
