// How the documents of a source fill samples: the words of data.packing.
#pragma once
#include <string>
#include <vector>

#include "base/enum_names.h"

namespace cairn::data {

enum class Packing {
  stream,     // windows of equal length over all documents; attention and loss reach across documents
  separate,   // the same windows; attention and loss stay within a document
  documents,  // whole documents, several to a sample where they fit
  none,       // whole documents, one to a sample
  sequences,  // whole documents, one to a sample, each as long as it is: neither cut nor padded
};

inline constexpr base::EnumName<Packing> kPackingNames[] = {
    {Packing::stream, "stream"}, {Packing::separate, "separate"}, {Packing::documents, "documents"}, {Packing::none, "none"},
    {Packing::sequences, "sequences"}};

// Refuses an unknown word and suggests the nearest.
inline Packing parse_packing(const std::string& word) { return base::parse_enum(kPackingNames, "data.packing", word); }
inline std::vector<std::string> packing_names() { return base::enum_words(kPackingNames); }

// Whether attention and loss stay within documents. Batches then have the fields `documents` and `positions`.
inline bool separates_documents(Packing packing) { return packing != Packing::stream; }

}  // namespace cairn::data
