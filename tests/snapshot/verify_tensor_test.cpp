#include "snapshot/verify.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "snapshot/inspect.h"
#include "snapshot/pretrained.h"
#include "snapshot/scratch_folder.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const model::DecoderShape kTiny{.vocab = 11, .embed = 8, .layers = 1, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 6, .length = 16};

mesh::NamedTensors tiny_weights() {
  const auto decoder = model::make_decoder(kTiny);
  const at::Tensor flat = at::empty({decoder->elements()});
  model::initialize_parameters(*decoder, flat, base::Random(3));
  return decoder->layout().views(flat);
}

// A run with one snapshot of a small model.
class SavedRun : public ScratchFolder {
 public:
  SavedRun() {
    std::ofstream(*this / "recipe.toml") << "train.seed = 1\n";
    Contents contents{.step = 7, .version = "0.1.0"};
    contents.tensors["model"] = tiny_weights();
    contents.tensors["optimizer"] = {{"m", at::ones({4, 3})}, {"v", at::ones({5})}};
    contents.texts["config.json"] = model::format_config(kTiny);
    contents.texts["training/state.json"] = R"({"step": 7, "tokens": 70})";
    folder = save(path(), contents, {}, base::real_disk());
  }
  std::string folder;
};

// Changes the byte so far from the end of the file; the last one is 1.
void flip(const std::string& path, int64_t from_end) {
  const auto at = static_cast<std::streamoff>(fs::file_size(path)) - from_end;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

void write_directory(const std::string& folder, int64_t shard_bytes) {
  write_pretrained(folder, kTiny, tiny_weights(), {}, {.shard_bytes = shard_bytes}, base::real_disk());
}

TEST(Verify, FindsNothingWrongWithWhatWasJustWritten) {
  const SavedRun run;
  const VerifyReport snapshot = verify(run.folder);
  EXPECT_THAT(snapshot.defects, IsEmpty());
  EXPECT_TRUE(snapshot.checksums);
  EXPECT_EQ(snapshot.files, 4);
  EXPECT_EQ(snapshot.tensors, static_cast<int64_t>(tiny_weights().size()) + 2);
  write_directory(run / "one", 1 << 30);
  write_directory(run / "many", 600);
  int64_t last = 0;
  for (const char* name : {"one", "many"}) {
    const VerifyReport directory = verify(run / name, [&](int64_t done, int64_t of) { last = done * 100 / of; });
    EXPECT_THAT(directory.defects, IsEmpty());
    EXPECT_FALSE(directory.checksums);
    EXPECT_EQ(last, 100);
  }
}

TEST(Verify, NamesTheTensorThatAFlippedByteIsIn) {
  const SavedRun run;
  flip(run.folder + "/training/optimizer.safetensors", 3);
  EXPECT_THAT(verify(run.folder).defects,
              ElementsAre(Defect{"training/optimizer.safetensors", "v", "its bytes are not those that were written (checksum)"}));
  flip(run.folder + "/training/optimizer.safetensors", 3);
  flip(run.folder + "/training/optimizer.safetensors", 5 * 4 + 1);  // the last byte of m
  EXPECT_THAT(verify(run.folder).defects, ElementsAre(testing::Field(&Defect::tensor, "m")));
}

TEST(Verify, TellsADamagedHeaderOrTextFromADamagedTensor) {
  const SavedRun run;
  const std::string path = run.folder + "/training/optimizer.safetensors";
  flip(path, static_cast<int64_t>(fs::file_size(path)) - 9);  // the first letter after the brace
  ASSERT_EQ(verify(run.folder).defects.size(), 1u);
  EXPECT_EQ(verify(run.folder).defects[0].file, "training/optimizer.safetensors");
  EXPECT_EQ(verify(run.folder).defects[0].tensor, "");
  flip(path, static_cast<int64_t>(fs::file_size(path)) - 9);
  flip(run.folder + "/training/state.json", 1);
  const std::vector<Defect> defects = verify(run.folder).defects;
  ASSERT_EQ(defects.size(), 2u);  // the brace is gone as well
  EXPECT_EQ(defects[0], (Defect{"training/state.json", "", "its bytes are not those that were written (checksum)"}));
  EXPECT_THAT(defects[1].what, HasSubstr("not JSON"));
}

TEST(Verify, NamesWhatIsCutShortMissingOrWithoutManifest) {
  const SavedRun run;
  const std::string path = run.folder + "/training/optimizer.safetensors";
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  fs::resize_file(path, static_cast<uintmax_t>(bytes - 4));
  EXPECT_THAT(verify(run.folder).defects, ElementsAre(Defect{"training/optimizer.safetensors", "",
                                                             fmt::format("{} bytes long, the manifest says {}", bytes - 4, bytes)}));
  fs::remove(path);
  EXPECT_THAT(verify(run.folder).defects, ElementsAre(Defect{"training/optimizer.safetensors", "", "missing"}));
  fs::remove(run.folder + "/manifest.json");
  EXPECT_THAT(verify(run.folder).defects, ElementsAre(Defect{"manifest.json", "", "missing"}));
  std::ofstream(run.folder + "/manifest.json") << "{";
  const std::vector<Defect> defects = verify(run.folder).defects;
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].file, "manifest.json");
  EXPECT_THAT(defects[0].what, HasSubstr("not JSON"));
}

TEST(Verify, FindsAMissingOrTruncatedShardOfADirectory) {
  const ScratchFolder scratch;
  write_directory(scratch / "d", 600);
  std::vector<std::string> shards;
  for (const SavedFile& file : saved_files(scratch / "d"))
    if (file.name.ends_with(".safetensors")) shards.push_back(file.name);
  ASSERT_GT(shards.size(), 2u);
  const std::string second = scratch / ("d/" + shards[1]);
  fs::copy_file(second, scratch / "kept");
  fs::remove(second);
  const std::vector<Defect> without = verify(scratch / "d").defects;
  ASSERT_EQ(without.size(), 1u);
  EXPECT_EQ(without[0].file, shards[1]);
  EXPECT_THAT(without[0].what, HasSubstr("missing (named in "));
  fs::copy_file(scratch / "kept", second);
  fs::resize_file(second, fs::file_size(second) - 1);
  const std::vector<Defect> defects = verify(scratch / "d").defects;
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].file, shards[1]);
}

TEST(Verify, CountsValuesThatAreNotFinite) {
  const ScratchFolder scratch;
  mesh::NamedTensors tensors = tiny_weights();
  tensors[1].tensor.view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
  tensors[1].tensor.view({-1})[2] = std::numeric_limits<float>::infinity();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::string folder = scratch / c10::toString(dtype);
    write_pretrained(folder, kTiny, tensors, {}, {.dtype = dtype}, base::real_disk());
    EXPECT_THAT(verify(folder).defects,
                ElementsAre(Defect{"model.safetensors", tensors[1].name,
                                   fmt::format("2 of {} values are not finite (1 NaN, 1 infinite)", tensors[1].tensor.numel())}));
  }
}

TEST(Verify, HoldsTheTensorsAgainstTheConfig) {
  const ScratchFolder scratch;
  write_directory(scratch / "d", 1 << 30);
  model::DecoderShape other = kTiny;
  other.mlp = 7;
  std::ofstream(scratch / "d/config.json") << model::format_config(other);
  std::vector<Defect> defects = verify(scratch / "d").defects;
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].file, "model.safetensors");
  EXPECT_THAT(defects[0].what, HasSubstr("is [6, 8] there, [7, 8] here"));
  std::ofstream(scratch / "d/config.json") << "{}";
  defects = verify(scratch / "d").defects;
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_EQ(defects[0].file, "config.json");
  fs::remove(scratch / "d/config.json");
  EXPECT_THAT(verify(scratch / "d").defects, ElementsAre(Defect{"config.json", "", "missing"}));
}

TEST(Inspect, ListsFilesTensorsAndTrainingState) {
  const SavedRun run;
  const InspectReport found = inspect(run.folder);
  EXPECT_EQ(found.step, 7);
  EXPECT_EQ(found.version, "0.1.0");
  EXPECT_EQ(found.shape, model::parse_config(model::format_config(kTiny), "config"));
  EXPECT_EQ(found.files.size(), 5u);
  EXPECT_EQ(found.tensors.size(), tiny_weights().size() + 2);
  EXPECT_EQ(found.texts.at("training/state.json"), R"({"step": 7, "tokens": 70})");
  EXPECT_EQ(found.parameters, (std::map<std::string, int64_t>{{"F32", model::make_decoder(kTiny)->elements()}}));
  int64_t bytes = 0;
  for (const SavedFile& file : found.files) bytes += file.bytes;
  EXPECT_EQ(found.bytes(), bytes);
}

TEST(Inspect, FindsTheFoldersThatADirectoryMeans) {
  const SavedRun run;
  EXPECT_THAT(saved_folders(run.path()), ElementsAre(run.folder));
  EXPECT_THAT(saved_folders(run.folder), ElementsAre(run.folder));
  fs::remove(run.folder + "/manifest.json");
  EXPECT_THAT(saved_folders(run.folder), ElementsAre(run.folder));
  const auto refusal = [](const std::string& folder) -> std::string {
    try {
      saved_folders(folder);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal(run / "none"), HasSubstr("no such directory"));
  fs::create_directory(run / "empty");
  EXPECT_THAT(refusal(run / "empty"), HasSubstr("no manifest.json, config.json or recipe.toml there"));
  std::ofstream(run / "empty/recipe.toml") << "";
  EXPECT_THAT(refusal(run / "empty"), HasSubstr("this run has no snapshot yet"));
}

}  // namespace
}  // namespace cairn::snapshot
