#include "snapshot/stream_adapter.h"

#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "model/decoder/stream_options.h"
#include "snapshot/weight_files.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFile = "parscale.safetensors";

}  // namespace

mesh::NamedTensors write_stream_adapter(const std::string& folder, const mesh::NamedTensors& parameters, const base::Disk& disk) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error))
    base::fail_input("{}: there is something already; choose another directory to write to", folder);
  mesh::NamedTensors written;
  for (const mesh::NamedTensor& one : parameters)
    if (model::is_stream_parameter(one.name)) written.push_back(one);
  base::make_folder(folder);
  write_safetensors((fs::path(folder) / kFile).string(), written, disk);
  return written;
}

void load_stream_adapter(const mesh::NamedTensors& into, const std::string& folder) {
  try {
    WeightFiles::open(folder, kFile, fmt::format("{}.index.json", kFile)).load_into(into);
  } catch (Error& error) {
    throw error.with(fmt::format("model.parscale.from = {}: prefixes and mixer belong to one model and one number of streams", folder));
  }
}

}  // namespace cairn::snapshot
