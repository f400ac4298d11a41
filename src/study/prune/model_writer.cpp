#include "study/prune/model_writer.h"

#include <span>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/families/config.h"
#include "snapshot/masks.h"

namespace cairn::study {

namespace fs = std::filesystem;

namespace {

// Assigns the entries' offsets.
std::string tensor_header(std::vector<snapshot::TensorEntry>& entries) {
  return snapshot::format_safetensors_header(entries, {{"format", "pt"}});
}

int64_t length_of(std::vector<snapshot::TensorEntry> entries) {
  const auto header = static_cast<int64_t>(tensor_header(entries).size());
  return entries.empty() ? header : entries.back().end;
}

std::string dtype_of_config(const std::vector<snapshot::TensorEntry>& tensors) {
  for (const snapshot::TensorEntry& one : tensors)
    if (one.dtype == snapshot::SafetensorsDtype::bf16)
      return "bfloat16";
    else if (one.dtype == snapshot::SafetensorsDtype::f16)
      return "float16";
  return "float32";
}

}  // namespace

TensorFileWriter::TensorFileWriter(const fs::path& path, std::vector<snapshot::TensorEntry> entries)
    : entries_(std::move(entries)), file_(path, length_of(entries_)) {
  file_.write(tensor_header(entries_));
}

void TensorFileWriter::write(const std::string& name, const at::Tensor& tensor) {
  CAIRN_CHECK(next_ < entries_.size() && entries_[next_].name == name && entries_[next_].shape == tensor.sizes(),
              "{} is written in the place of {}", name, next_ < entries_.size() ? entries_[next_].name : "nothing");
  const at::Tensor host = tensor.detach().to(at::kCPU, snapshot::scalar_type(entries_[next_++].dtype)).contiguous();
  file_.write(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
}

void TensorFileWriter::commit() {
  CAIRN_CHECK(next_ == entries_.size(), "{} of {} tensors are written", next_, entries_.size());
  file_.commit();
}

PrunedModelWriter::PrunedModelWriter(fs::path folder, const model::DecoderShape& shape, std::vector<snapshot::TensorEntry> tensors,
                                     std::vector<snapshot::TensorEntry> masks, std::map<std::string, std::string> texts)
    : folder_(std::move(folder)) {
  if (base::path_exists(folder_)) base::fail_input("{}: there is something already. Give another --out.", folder_.string());
  aside_ = folder_.parent_path() / fmt::format(".writing-{}-{}", folder_.filename().string(), ::getpid());
  base::make_folder(aside_);
  texts["config.json"] = model::format_config(shape, dtype_of_config(tensors));
  for (const auto& [name, text] : texts) base::write_atomically(aside_ / name, text);
  tensors_.emplace(aside_ / "model.safetensors", std::move(tensors));
  masks_.emplace(aside_ / snapshot::kMasksFile, std::move(masks));
}

PrunedModelWriter::~PrunedModelWriter() {
  std::error_code ignored;
  if (!aside_.empty()) fs::remove_all(aside_, ignored);
}

void PrunedModelWriter::commit() {
  tensors_->commit();
  masks_->commit();
  fs::rename(aside_, folder_);
  aside_.clear();
}

}  // namespace cairn::study
