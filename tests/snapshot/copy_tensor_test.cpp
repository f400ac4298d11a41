#include "snapshot/copy.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/faulty_disk.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "snapshot/crashing_disk.h"
#include "snapshot/folder.h"
#include "snapshot/scratch_folder.h"
#include "snapshot/snapshot.h"

namespace cairn::snapshot {
namespace {

namespace copied = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string saved_to_copy(const ScratchFolder& run, int64_t step, double value = 1) {
  std::ofstream(run / "recipe.toml") << "seed = 1\n";
  Contents contents{.step = step, .version = "0.1.0"};
  contents.tensors["model"] = {{"w", at::full({7, 3}, value, at::kFloat)}};
  contents.tensors["sync"] = {{"momentum", at::full({11}, value, at::kDouble)}};
  contents.texts["config.json"] = "";  // an empty file
  contents.texts["training/state.json"] = fmt::format(R"({{"step": {}}})", step);
  return save(run.path(), contents, {}, base::real_disk());
}

// Copies a snapshot in pieces of so many bytes.
std::string copy_in_pieces(const std::string& from, const std::string& into, size_t piece, const base::Disk& disk = base::real_disk()) {
  CopyReader reader(from);
  CopyWriter writer(into, reader.manifest(), disk);
  std::vector<std::byte> bytes(piece);
  for (auto left = static_cast<size_t>(reader.bytes()); left > 0; left -= bytes.size()) {
    bytes.resize(std::min(piece, left));
    reader.read(bytes);
    writer.write(bytes);
  }
  return writer.commit();
}

std::string bytes_in(const std::string& path) { return base::read_file(path, 1 << 20); }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : copied::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

double first_value(const std::string& path) {
  const OpenSnapshot opened = open(path);
  const Safetensors& model = opened.section("model");
  return model.view(*model.find("w")).flatten()[0].item<double>();
}

TEST(CopiedSnapshot, HasTheSameBytesHoweverTheyArrive) {
  const ScratchFolder from;
  const std::string source = saved_to_copy(from, 4);
  for (const size_t piece : {1, 7, 64, 1 << 20}) {
    const ScratchFolder into;
    const std::string copy = copy_in_pieces(source, into / "run", piece);
    EXPECT_EQ(copy, step_folder(into / "run", 4).string());
    EXPECT_EQ(open(copy).step(), 4);
    ASSERT_EQ(saved_files(copy).size(), 5u);
    for (const SavedFile& file : saved_files(source)) EXPECT_EQ(bytes_in(copy + "/" + file.name), bytes_in(source + "/" + file.name));
    EXPECT_THAT(names_in(into / "run/snapshots"), ElementsAre("step-00000004"));
  }
}

TEST(CopiedSnapshot, RefusesNamesThatLeadOutOfIt) {
  const ScratchFolder into;
  for (const char* name : {"../x", "/tmp/x", "a/b", "training/../../x", "training/training/x", ".hidden", "..", "", "manifest.json"}) {
    const std::string manifest = fmt::format(
        R"({{"format":"cairn-snapshot","format_version":1,"cairn_version":"1","step":5,"files":{{"{}":{{"bytes":1,"xxh3":"0000000000000001"}}}}}})",
        name);
    try {
      CopyWriter(into / "run", manifest, base::real_disk()).write(base::as_bytes("x"));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::corrupt_file) << name;
      EXPECT_THAT(error.what(), HasSubstr("a file name that no snapshot has")) << name;
    }
  }
  EXPECT_TRUE(names_in(into.path()).empty());
}

TEST(CopiedSnapshot, FollowsNoLinkThatWaitsUnderItsTemporaryName) {
  const ScratchFolder from, into, elsewhere;
  const std::string source = saved_to_copy(from, 4);
  copied::create_directories(into / "run/snapshots");
  copied::create_directory_symlink(elsewhere.path(), into / fmt::format("run/snapshots/.writing-step-00000004-{}", ::getpid()));
  EXPECT_EQ(first_value(copy_in_pieces(source, into / "run", 64)), 1);
  EXPECT_TRUE(names_in(elsewhere.path()).empty());
}

TEST(CopiedSnapshot, AppearsOnlyIfEveryByteIsAsTheManifestSays) {
  const ScratchFolder from, into;
  saved_to_copy(from, 4);
  for (const bool damaged : {true, false}) {  // else: it ends early
    CopyReader reader(step_folder(from.path(), 4));
    std::vector<std::byte> bytes(static_cast<size_t>(reader.bytes()));
    reader.read(bytes);
    if (damaged) bytes[bytes.size() / 2] ^= std::byte{1};
    if (!damaged) bytes.pop_back();
    try {
      CopyWriter writer(into / "run", reader.manifest(), base::real_disk());
      writer.write(bytes);
      writer.commit();
      ADD_FAILURE() << damaged;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
      EXPECT_THAT(error.what(), HasSubstr("the copy differs from what the manifest says"));
    }
    EXPECT_TRUE(names_in(into / "run/snapshots").empty());
  }
}

TEST(CopiedSnapshot, IsThereWholeOrNotAtAllWhereverTheProcessDies) {
  const ScratchFolder from;
  const std::string source = saved_to_copy(from, 4, 2);
  int64_t crashes = 0, own_found = 0;
  for (bool died = true; died; ++crashes) {
    const ScratchFolder into;
    saved_to_copy(into, 4, 1);  // an own one of the same step
    const pid_t child = ::fork();
    if (child == 0) {
      copy_in_pieces(source, into.path(), 1000, CrashingDisk(crashes));
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    died = WEXITSTATUS(status) == 9;
    base::Log log = base::Log::quiet();
    const double value = first_value(open_latest(into.path(), log)->path());
    EXPECT_TRUE(value == 2 || (died && value == 1)) << "died at call " << crashes;
    own_found += value == 1;
    EXPECT_EQ(first_value(copy_in_pieces(source, into.path(), 1000, CrashingDisk(1'000'000))), 2);  // the next one clears up
    for (const std::string& name : names_in(into / "snapshots")) EXPECT_FALSE(name.starts_with(".writing")) << name;
  }
  EXPECT_GT(own_found, 20);
  EXPECT_LT(own_found, crashes - 1);
}

TEST(CopiedSnapshot, SaysThatTheDiskIsFullBeforeItWrites) {
  const ScratchFolder from, into;
  const std::string source = saved_to_copy(from, 4);
  try {
    copy_in_pieces(source, into / "run", 100, base::FaultyDisk({.free_bytes = 50}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::disk);
    EXPECT_THAT(error.what(), HasSubstr("no room for the snapshot of step 4"));
  }
}

}  // namespace
}  // namespace cairn::snapshot
