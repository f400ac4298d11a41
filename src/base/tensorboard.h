#pragma once
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/disk.h"
#include "base/log_file.h"

namespace cairn::base {

// Writes a TensorBoard event file, `events.out.tfevents.<unix time>.<host>`, into a folder. Thread-safe. Writing never
// throws (LogFile); `warn` hears of trouble.
class TensorBoard {
 public:
  explicit TensorBoard(const std::filesystem::path& folder, const Disk& disk = real_disk(), LogFile::Warn warn = {});
  void scalar(std::string_view tag, int64_t step, double value);  // TensorBoard keeps single precision
  void text(std::string_view tag, int64_t step, std::string_view markdown);
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  std::mutex mutex_;
  LogFile file_;
};

struct TensorBoardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string tag;
  std::optional<float> scalar;
  std::optional<std::string> text;
};
// Reads such a file back, for tests and `cairn doctor`. Damage is corrupt_file with its offset.
std::vector<TensorBoardEvent> read_tensorboard(const std::filesystem::path& path);

}  // namespace cairn::base
