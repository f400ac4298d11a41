#include "unlearn/artifact.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/mapped_file.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "snapshot/safetensors.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArtifactFile = "artifact.json";
constexpr const char* kAdapterFile = "adapter.safetensors";
constexpr const char* kArtifactFormat = "cairn unlearning artifact 1";
constexpr int64_t kArtifactBytesMax = 1 << 20;

bool take_number(std::string_view& text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

base::OrderedJson measured(double value) { return std::isfinite(value) ? base::OrderedJson(value) : base::OrderedJson(nullptr); }

// Fields of artifact.json. They decide what is served, so every one is checked.
class ArtifactReader {
 public:
  ArtifactReader(const base::Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) base::fail_corrupt(path_, "not a JSON object");
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) base::fail_corrupt(path_, fmt::format("\"{}\" is no text", key));
    return at(key).get<std::string>();
  }
  int64_t count(const char* key) const {
    if (!at(key).is_number_integer()) base::fail_corrupt(path_, fmt::format("\"{}\" is no whole number", key));
    return at(key).get<int64_t>();
  }
  double number(const char* key) const {
    if (at(key).is_null()) return kNotMeasured;
    if (!at(key).is_number()) base::fail_corrupt(path_, fmt::format("\"{}\" is no number", key));
    return at(key).get<double>();
  }
  uint64_t hash(const char* key) const {
    const std::string digits = text(key);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || end != digits.data() + digits.size()) base::fail_corrupt(path_, fmt::format("\"{}\" is no hash", key));
    return value;
  }
  bool truth(const char* key) const {
    if (!at(key).is_boolean()) base::fail_corrupt(path_, fmt::format("\"{}\" is neither true nor false", key));
    return at(key).get<bool>();
  }
  [[noreturn]] void fail(const std::string& reason) const { base::fail_corrupt(path_, reason); }

 private:
  const base::Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) base::fail_corrupt(path_, fmt::format("\"{}\" is missing", key));
    return *found;
  }

  const base::Json& json_;
  std::string path_;
};

std::string format_artifact(const Artifact& a) {
  return base::pretty(base::OrderedJson{{"format", kArtifactFormat},
                                        {"name", to_text(a.name)},
                                        {"parent", a.parent},
                                        {"parent_checksum", fmt::format("{:016x}", a.parent_checksum)},
                                        {"base_checksum", fmt::format("{:016x}", a.base_checksum)},
                                        {"checksum", fmt::format("{:016x}", a.checksum)},
                                        {"seed", a.seed},
                                        {"records", a.records},
                                        {"loss", measured(a.loss)},
                                        {"validation", measured(a.validation)},
                                        {"rank", a.shape.rank},
                                        {"alpha", a.shape.alpha},
                                        {"by_root", a.shape.by_root}}) +
         "\n";
}

}  // namespace

bool ArtifactName::depends_on(int64_t of_shard, int64_t slice) const {
  return shard == of_shard && std::ranges::find(slices, slice) != slices.end();
}

std::string to_text(const ArtifactName& name) {
  return fmt::format("s{}-{}{}", name.shard, to_text(name.slices), name.excluded > 0 ? fmt::format("-w{}", name.excluded) : "");
}

std::optional<ArtifactName> parse_artifact_name(std::string_view text) {
  const std::string_view whole = text;
  ArtifactName found;
  if (!take_word(text, "s") || !take_number(text, found.shard) || !take_word(text, "-")) return std::nullopt;
  do {
    int64_t slice = 0;
    if (!take_number(text, slice)) return std::nullopt;
    found.slices.push_back(slice);
  } while (take_word(text, "."));
  if (take_word(text, "-w") && !take_number(text, found.excluded)) return std::nullopt;
  const bool distinct = std::set<int64_t>(found.slices.begin(), found.slices.end()).size() == found.slices.size();
  if (!distinct || to_text(found) != whole) return std::nullopt;
  return found;
}

fs::path work_folder(const Store& store, const ArtifactName& name, int64_t token) {
  return store.work() / fmt::format("{}+{:x}", to_text(name), token);
}

int64_t new_token() { return static_cast<int64_t>(std::stoull(base::random_name(), nullptr, 16) >> 1); }

std::optional<ArtifactName> artifact_of_work(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return parse_artifact_name(std::string_view(name).substr(0, name.find('+')));
}

Artifact read_artifact(const Store& store, const std::string& name) {
  const fs::path path = store.artifact(name) / kArtifactFile;
  const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(path, kArtifactBytesMax), 4);
  if (!parsed.trouble.empty()) base::fail_corrupt(path.string(), parsed.trouble);
  const ArtifactReader reader(parsed.value, path.string());
  if (reader.text("format") != kArtifactFormat)
    base::fail_input("{}: \"format\" is \"{}\", and this Cairn reads \"{}\"", path.string(), reader.text("format"), kArtifactFormat);
  const std::optional<ArtifactName> own = parse_artifact_name(name);
  if (!own || reader.text("name") != name) reader.fail(fmt::format("\"name\" is \"{}\", and the folder is {}", reader.text("name"), name));
  const StoreSpec& spec = store.spec();
  if (own->shard >= spec.shards || std::ranges::any_of(own->slices, [&](int64_t slice) { return slice >= spec.slices; }))
    reader.fail("it is of a shard or slice that the store does not have");
  Artifact found{.name = *own,
                 .parent = reader.text("parent"),
                 .parent_checksum = reader.hash("parent_checksum"),
                 .base_checksum = reader.hash("base_checksum"),
                 .checksum = reader.hash("checksum"),
                 .seed = reader.count("seed"),
                 .records = reader.count("records"),
                 .loss = reader.number("loss"),
                 .validation = reader.number("validation"),
                 .shape = {.rank = reader.count("rank"), .alpha = reader.number("alpha"), .by_root = reader.truth("by_root")}};
  if (found.base_checksum != spec.base_checksum) reader.fail("it was trained on another base model than the store's");
  if (found.shape.rank < 1 || !(found.shape.alpha > 0)) reader.fail("its rank or alpha cannot be");
  if (found.parent.empty() != (own->slices.size() == 1)) reader.fail("\"parent\" does not fit its slices");
  return found;
}

std::map<std::string, Artifact> read_artifacts(const Store& store) {
  std::map<std::string, Artifact> found;
  for (const std::string& name : store.artifact_names()) {
    const auto is_there = [&] { return base::path_exists(store.artifact(name) / kArtifactFile); };
    if (!is_there()) continue;
    try {
      found.emplace(name, read_artifact(store, name));
    } catch (const Error&) {
      if (is_there()) throw;  // otherwise a deletion has just removed it
    }
  }
  return found;
}

mesh::NamedTensors read_adapter_tensors(const Store& store, const Artifact& artifact) {
  const fs::path path = store.artifact(to_text(artifact.name)) / kAdapterFile;
  const snapshot::Safetensors file(path.string());
  if (base::checksum(file.bytes()) != artifact.checksum)
    base::fail_corrupt(path.string(), "the checksum differs from that in artifact.json");
  mesh::NamedTensors tensors;
  for (const snapshot::TensorEntry& entry : file.entries()) {
    const at::Tensor view = file.view(entry);
    const auto end = entry.name.ends_with(".lora_A.weight") ? 0 : entry.name.ends_with(".lora_B.weight") ? 1 : -1;
    if (end < 0 || view.dim() != 2 || view.size(end) != artifact.shape.rank || !c10::isFloatingType(view.scalar_type()))
      base::fail_corrupt(path.string(), fmt::format("tensor {} is none of an adapter of rank {}", entry.name, artifact.shape.rank));
    tensors.push_back({entry.name, view.to(at::kFloat).clone()});
  }
  return tensors;
}

bool write_artifact(const Store& store, Artifact artifact, const mesh::NamedTensors& tensors, const base::Disk& disk) {
  const std::string name = to_text(artifact.name);
  if (base::path_exists(store.artifact(name))) return false;
  const fs::path folder = work_folder(store, artifact.name, new_token());
  base::make_folder(folder);
  artifact.checksum = snapshot::write_safetensors((folder / kAdapterFile).string(), tensors, disk).checksum;
  base::write_atomically(folder / kArtifactFile, format_artifact(artifact), disk);
  const bool moved = disk.rename(folder, store.artifact(name)) == 0;
  const int error = errno;
  std::error_code none;
  if (!moved) fs::remove_all(folder, none);
  if (!moved && error != ENOTEMPTY && error != EEXIST)
    throw Error(Error::Kind::disk, fmt::format("{}: cannot be made: {}", store.artifact(name).string(), std::strerror(error)));
  if (disk.sync_folder(store.artifact(name).parent_path()) != 0)
    throw Error(Error::Kind::disk,
                fmt::format("{}: cannot be synced: {}", store.artifact(name).parent_path().string(), std::strerror(errno)));
  return moved;
}

}  // namespace cairn::unlearn
