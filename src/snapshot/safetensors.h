// The safetensors file format: tensors by name in one file that cannot run code, written as a stream and read through a memory map.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files/mapped_file.h"
#include "mesh/named_tensor.h"
#include "snapshot/cells.h"
#include "snapshot/safetensors_header.h"

namespace cairn::base {
class Disk;
}

namespace cairn::snapshot {

// The format's name for a dtype of libtorch, and back. Throws bad_input for one that it cannot hold.
SafetensorsDtype dtype_of(c10::ScalarType dtype);
c10::ScalarType scalar_type(SafetensorsDtype dtype);

// A written file, as the manifest records it.
struct FileRecord {
  int64_t bytes = 0;
  uint64_t checksum = 0;                         // xxh3-64 of the whole file
  std::map<std::string, uint64_t> tensors = {};  // xxh3-64 of each tensor's bytes, so that damage can be located
  std::vector<Cell> cells = {};                  // where several ranks have written the file: their checksums, in place of the other two
  bool operator==(const FileRecord&) const = default;
};

// How many bytes write_safetensors will write for these tensors, to check for space first.
int64_t safetensors_bytes(const mesh::NamedTensors& tensors);

// Writes the tensors in the given order to `path`, which appears only when it is complete and on disk. Tensors may be strided and on any
// device: one at a time is copied to the host. Throws bad_input for two tensors of one name and for dtypes that the format lacks.
FileRecord write_safetensors(const std::string& path, const mesh::NamedTensors& tensors, const base::Disk& disk);

// A safetensors file opened for reading. The file is not trusted: the constructor checks everything the header says against the
// file's size and throws corrupt_file naming file, tensor and reason. A value: copies share the map.
class Safetensors {
 public:
  explicit Safetensors(const std::string& path) : Safetensors(base::MappedFile::open(path)) {}
  explicit Safetensors(std::shared_ptr<const base::MappedFile> file);

  const std::string& path() const { return file_->path(); }
  std::span<const std::byte> bytes() const { return file_->bytes(); }
  const std::vector<TensorEntry>& entries() const { return header_->entries; }
  const TensorEntry* find(const std::string& name) const;  // null where there is none

  // A tensor on the mapped bytes (no copy; the map lives as long as the tensor). For reading only: writing into it is a fault.
  // Throws corrupt_file for a truth value that is neither 0 nor 1.
  at::Tensor view(const TensorEntry& entry) const;

 private:
  std::shared_ptr<const base::MappedFile> file_;
  std::shared_ptr<const SafetensorsHeader> header_;
  std::shared_ptr<const std::unordered_map<std::string_view, size_t>> places_;  // of the entries, by name
};

}  // namespace cairn::snapshot
