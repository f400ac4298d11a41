#pragma once
#include <string>
#include <vector>

namespace cairn::study {

// Proofs for which `cairn prove --data` may name a folder: of pictures, or of instructions. All others read a text file. The list is in
// proofs/proofs.cpp.
const std::vector<std::string>& picture_proofs();

}  // namespace cairn::study
