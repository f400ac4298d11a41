// The prefixes and the mixer of parallel streams (ParScale) as files of their own: small, and for one base model. Another set for another
// number of streams may be loaded into the same base.
#pragma once
#include <string>

#include "mesh/named_tensor.h"

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

// Writes those of `parameters` that belong to the streams. The folder must not exist yet, unless empty. Returns what was written.
mesh::NamedTensors write_stream_adapter(const std::string& folder, const mesh::NamedTensors& parameters, const base::Disk& disk);

// Copies a folder that was written so into the stream parameters of a model. Throws bad_input, naming the tensors, where it is of another
// number of streams or of another model.
void load_stream_adapter(const mesh::NamedTensors& into, const std::string& folder);

}  // namespace cairn::snapshot
