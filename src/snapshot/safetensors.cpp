#include "snapshot/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/files.h"
#include "kernels/aten.h"

namespace cairn::snapshot {
namespace {

std::vector<TensorEntry> entries_of(const mesh::NamedTensors& tensors) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    CAIRN_CHECK(tensor.defined() && tensor.layout() == at::kStrided, "tensor {} has no bytes to save", name);
    entries.push_back({.name = name, .dtype = dtype_of(tensor.scalar_type()), .shape = tensor.sizes().vec()});
  }
  return entries;
}

// In the order of SafetensorsDtype.
constexpr std::array<c10::ScalarType, 10> kScalarTypes{at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                                                       at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

// The format is little-endian, and so is every machine that Cairn runs on.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

}  // namespace

SafetensorsDtype dtype_of(c10::ScalarType dtype) {
  const auto* found = std::find(kScalarTypes.begin(), kScalarTypes.end(), dtype);
  if (found == kScalarTypes.end())
    base::fail_input("dtype {} cannot be saved: safetensors files of Cairn hold {}", c10::toString(dtype), dtype_words());
  return static_cast<SafetensorsDtype>(found - kScalarTypes.begin());
}

c10::ScalarType scalar_type(SafetensorsDtype dtype) { return kScalarTypes[static_cast<size_t>(dtype)]; }

int64_t safetensors_bytes(const mesh::NamedTensors& tensors) {
  std::vector<TensorEntry> entries = entries_of(tensors);
  const std::string header = format_safetensors_header(entries, {{"format", "pt"}});
  return entries.empty() ? static_cast<int64_t>(header.size()) : entries.back().end;
}

FileRecord write_safetensors(const std::string& path, const mesh::NamedTensors& tensors, const base::Disk& disk) {
  std::vector<TensorEntry> entries = entries_of(tensors);
  const std::string header = format_safetensors_header(entries, {{"format", "pt"}});
  base::FileWriter file(path, entries.empty() ? static_cast<int64_t>(header.size()) : entries.back().end, disk);
  file.write(header);
  FileRecord written;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    const std::span bytes(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes());
    file.write(bytes);
    written.tensors[name] = base::checksum(bytes);
  }
  file.commit();
  written.bytes = file.bytes_written();
  written.checksum = file.checksum();
  return written;
}

Safetensors::Safetensors(std::shared_ptr<const base::MappedFile> file)
    : file_(std::move(file)), header_(std::make_shared<SafetensorsHeader>(parse_safetensors_header(file_->bytes(), file_->path()))) {
  auto places = std::make_shared<std::unordered_map<std::string_view, size_t>>();
  for (size_t i = 0; i < header_->entries.size(); ++i) places->emplace(header_->entries[i].name, i);
  places_ = std::move(places);
}

const TensorEntry* Safetensors::find(const std::string& name) const {
  const auto found = places_->find(name);
  return found == places_->end() ? nullptr : &header_->entries[found->second];
}

at::Tensor Safetensors::view(const TensorEntry& entry) const {
  const std::span<const std::byte> bytes =
      file_->bytes().subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
  if (entry.dtype == SafetensorsDtype::boolean && std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; })) {
    throw Error(Error::Kind::corrupt_file, fmt::format("{}: tensor \"{}\": a BOOL is neither 0 nor 1", path(), entry.name));
  }
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(entry.dtype));
  // Other writers do not align tensors; kernels need it.
  if (reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(bytes_of(entry.dtype)) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(copy.mutable_data_ptr()));
    return copy;
  }
  if (bytes.empty()) return at::empty(entry.shape, options);
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), entry.shape, [file = file_](void*) {}, options);
}

}  // namespace cairn::snapshot
