#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/files.h"

namespace cairn::comm {

// Gives the numbers of a site's incarnations: each is at least `least` and higher than any given before.
using NextIncarnation = std::function<uint64_t(uint64_t least)>;

// Keeps the last number in a file, so that every start of a site gets a higher one, whatever its clock says. One process uses it at a time.
class IncarnationFile {
 public:
  explicit IncarnationFile(std::filesystem::path path, const base::Disk& disk = base::real_disk());
  // The number is on disk when this returns. Throws Kind::disk, or Kind::bad_input if the file holds something else.
  uint64_t operator()(uint64_t least) const;

 private:
  std::filesystem::path path_;
  const base::Disk* disk_;
};

// For a site without a folder. Starts at the time in microseconds, so a later start usually gets a higher number; where the clock went
// back, the other sites say which number they accept (introduce.cpp).
NextIncarnation incarnations_in_memory();

}  // namespace cairn::comm
