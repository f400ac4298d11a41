// Class labels in a text file, one on each line, for data whose samples lie in one array.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

// The classes in `path`, from 0 to classes - 1, one line for each of `samples`; refused with file and line otherwise. `kind` is the recipe
// section of the data, as messages name it: "clips", "images".
std::vector<int64_t> read_label_file(const std::string& path, int64_t samples, int64_t classes, const std::string& kind);

}  // namespace cairn::data
