#include "snapshot/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/families/config.h"
#include "snapshot/folder.h"
#include "snapshot/manifest.h"
#include "snapshot/pretrained.h"

namespace cairn::snapshot {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kVerifiedTextBytesMax = 200'000'000;
constexpr int kVerifiedDepthMax = 128;

std::span<const std::byte> span_of(const base::MappedFile& file, const TensorEntry& entry) {
  return file.bytes().subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
}

// The examination of one folder.
class Examination {
 public:
  Examination(fs::path folder, const std::function<void(int64_t, int64_t)>& progress) : folder_(std::move(folder)), progress_(progress) {}

  VerifyReport run() {
    read_manifest();
    for (const std::string& name : names()) {
      ++found_.files;
      examine(name);
      if (progress_) progress_(found_.bytes, total_);
    }
    if (found_.defects.empty()) examine_model();
    return std::move(found_);
  }

 private:
  void blame(const std::string& file, const std::string& tensor, const std::string& what) {
    found_.defects.push_back({file, tensor, what});
  }

  // What `act` throws becomes a defect: of the file that the message begins with, else of `file`.
  template <typename Act>
  bool holds(const std::string& file, Act&& act) {
    try {
      act();
      return true;
    } catch (const Error& error) {
      const std::string what = error.what(), inside = (folder_ / "").string();
      const size_t colon = what.starts_with(inside) ? what.find(": ", inside.size()) : std::string::npos;
      if (colon == std::string::npos)
        blame(file, "", what);
      else
        blame(what.substr(inside.size(), colon - inside.size()), "", what.substr(colon + 2));
      return false;
    }
  }

  void read_manifest() {
    std::error_code error;
    const std::string path = folder_ / kManifestFile;
    if (!fs::exists(path, error)) {
      if (fs::exists(folder_ / "training", error)) blame(kManifestFile, "", "missing");
      return;
    }
    found_.checksums = holds(kManifestFile, [&] { manifest_ = parse_manifest(base::read_file(path, kManifestBytesMax), path); });
  }

  // The files of the manifest; without one, the files of the folder.
  std::vector<std::string> names() {
    std::vector<std::string> all;
    std::map<std::string, int64_t> there;
    for (const SavedFile& file : saved_files(folder_)) there[file.name] = file.bytes;
    if (manifest_) {
      for (const auto& [name, facts] : manifest_->files) all.push_back(name);
    } else {
      for (const auto& [name, bytes] : there)
        if (name != kManifestFile && (name.ends_with(".safetensors") || name.ends_with(".json"))) all.push_back(name);
    }
    for (const std::string& name : all) total_ += there.contains(name) ? there[name] : 0;
    return all;
  }

  void examine(const std::string& name) {
    std::shared_ptr<const base::MappedFile> file;
    if (!holds(name, [&] { file = base::MappedFile::open(folder_ / name); })) return;
    const auto bytes = static_cast<int64_t>(file->bytes().size());
    found_.bytes += bytes;
    const FileRecord* written = manifest_ ? &manifest_->files.at(name) : nullptr;
    const bool cut = written && bytes != written->bytes;
    if (cut) blame(name, "", fmt::format("{} bytes long, the manifest says {}", bytes, written->bytes));
    if (written && !cut && !written->cells.empty()) return examine_cells(name, file, *written);
    const bool changed = written && !cut && base::checksum(file->bytes()) != written->checksum;
    if (name.ends_with(".safetensors")) {
      examine_tensors(name, file, changed ? written : nullptr, cut);
    } else {
      if (changed) blame(name, "", "its bytes are not those that were written (checksum)");
      if (name.ends_with(".json") && !cut) examine_text(name, *file);
    }
  }

  // A file that several ranks have written.
  void examine_cells(const std::string& name, const std::shared_ptr<const base::MappedFile>& file, const FileRecord& written) {
    std::vector<Cell> damaged;
    if (!holds(name, [&] { damaged = damaged_cells(written.cells, file->bytes(), folder_ / name); })) return;
    std::optional<Safetensors> opened;
    const bool readable = holds(name, [&] { opened.emplace(file); });
    for (const Cell& cell : damaged) {
      std::string tensor;
      for (const TensorEntry& entry : readable ? opened->entries() : std::vector<TensorEntry>{})
        if (cell.offset >= entry.begin && cell.offset < entry.end) tensor = entry.name;
      blame(name, tensor, fmt::format("bytes {} to {} are not those that were written (checksum)", cell.offset, cell.end()));
    }
    if (readable) examine_tensors(name, file, nullptr, false);
  }

  // `changed`: set if the file's checksum is wrong; then the tensors are checked one by one. A truncated file has its defect already.
  void examine_tensors(const std::string& name, const std::shared_ptr<const base::MappedFile>& file, const FileRecord* changed, bool cut) {
    std::optional<Safetensors> opened;
    if (cut) return;
    if (!holds(name, [&] { opened.emplace(file); })) return;
    bool named = false;
    for (const TensorEntry& entry : opened->entries()) {
      ++found_.tensors;
      const auto sum = changed ? changed->tensors.find(entry.name) : std::map<std::string, uint64_t>::const_iterator{};
      if (changed && sum != changed->tensors.end() && base::checksum(span_of(*file, entry)) != sum->second) {
        blame(name, entry.name, "its bytes are not those that were written (checksum)");
        named = true;
      }
      examine_values(name, *opened, entry);
    }
    if (changed && !named)
      blame(name, "",
            changed->tensors.empty() ? "its bytes are not those that were written (checksum)"
                                     : "its header is not the one that was written (checksum)");
  }

  void examine_values(const std::string& name, const Safetensors& file, const TensorEntry& entry) {
    try {
      const at::Tensor values = file.view(entry);
      if (!values.is_floating_point() || values.numel() == 0) return;
      const int64_t odd = values.numel() - at::isfinite(values).sum().item<int64_t>();
      if (odd == 0) return;
      const int64_t nans = at::isnan(values).sum().item<int64_t>();
      blame(name, entry.name, fmt::format("{} of {} values are not finite ({} NaN, {} infinite)", odd, values.numel(), nans, odd - nans));
    } catch (const Error& error) {
      blame(name, entry.name, error.what());
    }
  }

  void examine_text(const std::string& name, const base::MappedFile& file) {
    if (static_cast<int64_t>(file.bytes().size()) > kVerifiedTextBytesMax)
      return blame(name, "", fmt::format("{} bytes, at most {} are read", file.bytes().size(), kVerifiedTextBytesMax));
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    const base::GuardedJson json = base::parse_json_guarded(text, kVerifiedDepthMax);
    if (json.too_deep) return blame(name, "", fmt::format("nested deeper than {}", kVerifiedDepthMax));
    if (json.value.is_discarded())
      blame(name, "", json.invalid_at ? fmt::format("not JSON: wrong at byte {}", *json.invalid_at) : std::string("not JSON"));
  }

  // The files as one model: shards as their index says, tensors as config.json says.
  void examine_model() {
    std::error_code error;
    const std::string config = folder_ / "config.json";
    if (!fs::exists(config, error)) {
      if (!manifest_) blame("config.json", "", "missing");
      return;  // a snapshot of a model that is not a language model
    }
    model::DecoderShape shape;
    if (!holds("config.json", [&] { shape = model::parse_config(base::read_file(config, kVerifiedTextBytesMax), config); })) return;
    std::optional<WeightFiles> weights;
    const std::string index = "model.safetensors.index.json";
    const std::string of = fs::exists(folder_ / "model.safetensors", error) ? "model.safetensors" : index;
    if (!holds(of, [&] { weights = WeightFiles::open(folder_); })) return;
    std::optional<SpectralState> spectral;
    if (!holds(kSpectralFile, [&] { spectral = read_spectral(folder_); })) return;
    holds(of, [&] { check_tensors(shape, *weights, spectral ? spectral->names() : std::vector<std::string>{}); });
  }

  const fs::path folder_;
  const std::function<void(int64_t, int64_t)>& progress_;
  std::optional<Manifest> manifest_;
  int64_t total_ = 0;
  VerifyReport found_;
};

}  // namespace

VerifyReport verify(const std::string& folder, const std::function<void(int64_t done, int64_t of)>& progress) {
  return Examination(folder, progress).run();
}

}  // namespace cairn::snapshot
