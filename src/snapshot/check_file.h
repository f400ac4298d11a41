// Compares one file of a snapshot with its manifest. What is wrong is reported with the file and the tensors that it hits.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
#include "snapshot/cells.h"
#include "snapshot/safetensors.h"

namespace cairn::snapshot {

// The file, which must be so long. Throws corrupt_file.
std::shared_ptr<const base::MappedFile> file_of_length(const std::string& path, int64_t expected);

// The file, after its length and all of its bytes were compared. Throws corrupt_file.
std::shared_ptr<const base::MappedFile> checked_file(const std::string& path, const FileRecord& expected);

// Compares the cells that `which` chooses. Throws corrupt_file.
void check_cells(const base::MappedFile& file, const FileRecord& expected, const std::function<bool(const CellUnit&)>& which);

// "model.norm.weight", or "a, b and 3 more".
std::string some_of(const std::vector<std::string>& names);

// The tensors of which a safetensors file, as its header says, has bytes in this range; also where the file is cut. Empty: it has none, or
// its header cannot be read.
std::vector<std::string> tensors_between(const base::MappedFile& file, int64_t begin, int64_t end);

}  // namespace cairn::snapshot
