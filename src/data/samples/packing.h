// How the documents of a source fill samples: the words of data.packing.
#pragma once
#include <string>
#include <vector>

namespace cairn::data {

enum class Packing {
  stream,     // windows of equal length over all documents; attention and loss reach across documents
  separate,   // the same windows; attention and loss stay within a document
  documents,  // whole documents, several to a sample where they fit
  none,       // whole documents, one to a sample
};

// Refuses an unknown word and suggests the nearest.
Packing parse_packing(const std::string& word);
std::vector<std::string> packing_names();

// Whether attention and loss stay within documents. Batches then have the fields `documents` and `positions`.
inline bool separates_documents(Packing packing) { return packing != Packing::stream; }

}  // namespace cairn::data
