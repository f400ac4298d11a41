#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "base/files/disk.h"

namespace cairn::base {

// A file that only grows and may be read meanwhile, and that a run does not depend on: metrics, TensorBoard events. Only opening it throws.
// What the disk refuses later waits in memory and is written before the next piece, so that the file has no gap. A file that was deleted is
// begun again, with a whole piece. `warn`, if there is one, gets one line for each outage, and one for the pieces lost in it.
class LogFile {
 public:
  using Warn = std::function<void(const std::string& text)>;
  static constexpr size_t kWaitingMax = 16 << 20;  // bytes; pieces beyond it are lost, and counted

  // `header` comes first in a file that is empty or begun again. `disk` must outlive the file.
  explicit LogFile(std::filesystem::path path, const Disk& disk = real_disk(), Warn warn = {}, std::string header = {});
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // One write call where the disk allows. `before` is the piece that this one continues, where it continues one: a file that is begun again
  // between the two gets both. False: the piece is lost (kWaitingMax); one that continues another never is.
  bool append(std::span<const std::byte> bytes, std::string before = {});

  const std::filesystem::path& path() const { return path_; }
  int64_t pieces_lost() const { return pieces_lost_; }

 private:
  void open();  // throws Kind::disk
  void begin_again_if_deleted();
  void write_waiting();

  const Disk& disk_;
  const std::filesystem::path path_;
  const Warn warn_;
  const std::string header_;
  int file_ = -1;
  struct Piece {
    std::string text;
    std::string before = {};
    bool is_header = false;
  };
  std::deque<Piece> waiting_;  // pieces that are not written yet, each whole
  size_t written_ = 0;         // bytes of the first one that are
  size_t waiting_bytes_ = 0;   // of all pieces
  bool outage_ = false;
  int64_t pieces_lost_ = 0;
  int64_t losses_told_ = 0;
};

}  // namespace cairn::base
