#include "train/state/folder_view.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <stdlib.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/nowhere_disk.h"
#include "base/files/positioned_file.h"
#include "base/json.h"
#include "comm/group.h"
#include "kernels/aten.h"
#include "snapshot/folder.h"
#include "snapshot/rank_part.h"
#include "train/build.h"
#include "train/state/part_save.h"

namespace cairn::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSeen = ".seen";  // in the staging folder: what it holds is also sent, so that no other folder is taken for it
constexpr comm::Label kFolder{comm::Purpose::control, "folder of a snapshot"};
constexpr comm::Label kPart{comm::Purpose::state, "part of a snapshot, for a rank that does not see its folder"};
constexpr comm::Label kSmallFiles{comm::Purpose::state, "a snapshot's small files, for ranks that do not see it"};
constexpr int64_t kChunkBytes = 8 << 20;

void broadcast_text(comm::Group& group, std::string& text, const comm::Label& label) {
  auto length = static_cast<int64_t>(text.size());
  group.broadcast({&length, 1, comm::Dtype::i64}, 0, label).wait_host();
  text.resize(static_cast<size_t>(length));
  for (int64_t at = 0; at < length; at += kChunkBytes)
    group.broadcast({text.data() + at, std::min(kChunkBytes, length - at), comm::Dtype::u8}, 0, label).wait_host();
}

std::vector<bool> gather_flags(comm::Group& group, bool mine) {
  uint8_t flag = mine ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(group.size()));
  group.all_gather({all.data(), group.size(), comm::Dtype::u8}, {&flag, 1, comm::Dtype::u8}, kFolder).wait_host();
  return {all.begin(), all.end()};
}

// A folder that goes away again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "cairn-light-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error(Error::Kind::disk, fmt::format("{}: cannot be made", name));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// How much of a file they get: its header where its tensors have cells, else all of it.
int64_t small_bytes(const snapshot::FileRecord& file) { return file.cells.empty() ? file.bytes : file.cells.front().end(); }

}  // namespace

std::vector<bool> who_sees(comm::Group& group, const fs::path& run_dir, std::string& folder) {
  std::string word, name;
  if (group.rank() == 0 && !folder.empty()) {
    name = fs::path(folder).lexically_relative(run_dir).string();
    word = fmt::format("{} {:016x}", name, base::checksum(folder + std::to_string(reinterpret_cast<uintptr_t>(&word))));
    std::ofstream(fs::path(folder) / kSeen, std::ios::binary) << word;
  }
  broadcast_text(group, word, kFolder);
  if (word.empty()) return std::vector<bool>(static_cast<size_t>(group.size()), true);
  name = word.substr(0, word.find(' '));
  if (group.rank() != 0) folder = (run_dir / name).string();
  bool sees = group.rank() == 0;
  if (const fs::path probe = fs::path(folder) / kSeen; !sees && base::path_exists(probe)) sees = base::read_file(probe, 1 << 16) == word;
  std::vector<bool> all = gather_flags(group, sees);
  std::error_code ignored;  // a reader of the snapshot does not mind it
  if (group.rank() == 0) fs::remove(fs::path(folder) / kSeen, ignored);
  return all;
}

int writer_for(const std::vector<bool>& sees, int rank) {
  std::vector<int> writers;
  for (size_t i = 0; i < sees.size(); ++i)
    if (sees[i]) writers.push_back(static_cast<int>(i));
  const auto before = std::count(sees.begin(), sees.begin() + rank, false);           // ranks that others write for
  return writers[writers.size() - 1 - static_cast<size_t>(before) % writers.size()];  // the first rank has most to do
}

namespace {

void send_part(comm::Group& group, int to, const RankSnapshot& saved, mesh::TensorSwapper* swapper) {
  const snapshot::PartWriter plan("", saved.part, base::nowhere_disk());
  for (const snapshot::WriteBlock& block : plan.blocks()) {
    const auto there = mesh::hold(swapper, block.data, mesh::TensorSwapper::Access::read);
    at::Tensor host = block.data.cpu().contiguous();
    group.send({host.data_ptr(), static_cast<int64_t>(host.nbytes()), comm::Dtype::u8}, to, kPart).wait_host();
  }
}

// Receives all blocks, also those after a failure: the other rank sends them.
void receive_part(comm::Group& group, int from, const RankSnapshot& planned, const PartSave& save) {
  const snapshot::PartWriter plan("", planned.part, base::nowhere_disk());
  std::string trouble;
  const auto attempt = [&](auto&& act) {
    if (!trouble.empty()) return;
    try {
      act();
    } catch (const Error& error) {
      trouble = error.what();
    }
  };
  std::unique_ptr<snapshot::PartWriter> writer;
  attempt([&] { writer = save.writer_of(planned); });
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < plan.blocks().size(); ++i) {
    bytes.resize(static_cast<size_t>(plan.blocks()[i].data.numel()) * plan.blocks()[i].data.element_size());
    group.recv({bytes.data(), static_cast<int64_t>(bytes.size()), comm::Dtype::u8}, from, kPart).wait_host();
    attempt([&] { writer->write(writer->blocks()[i], bytes); });
  }
  attempt([&] { save.vote(writer->finish()); });
  if (!trouble.empty()) save.vote_failed(from, trouble);
}

}  // namespace

void write_for_others(Job& job, const PartSave& save, const std::vector<bool>& sees) {
  comm::Group& group = *job.engine.step_group;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (sees[static_cast<size_t>(rank)]) continue;
    const int writer = writer_for(sees, rank);
    if (group.rank() == rank) send_part(group, writer, save.saved(), job.engine.store->swapper());
    if (group.rank() == writer) receive_part(group, rank, collect_of(job, rank), save);
  }
}

void lend_snapshot(comm::Group& group, std::optional<snapshot::OpenSnapshot>& mine) {
  std::string files, bytes;
  if (group.rank() == 0) {
    const fs::path folder = mine->path();
    base::OrderedJson list = base::OrderedJson::array();
    const auto add = [&](const std::string& name, int64_t length, int64_t part) {
      list.push_back({name, length, part});
      const size_t at = bytes.size();
      bytes.resize(at + static_cast<size_t>(part));
      base::PositionedFile(folder / name).read(0, std::as_writable_bytes(std::span(bytes).subspan(at)));
    };
    for (const auto& [name, file] : mine->manifest().files) add(name, file.bytes, small_bytes(file));
    const auto manifest = static_cast<int64_t>(fs::file_size(folder / snapshot::kManifestFile));
    add(snapshot::kManifestFile, manifest, manifest);
    files = base::compact(base::OrderedJson{{"step", mine->step()}, {"files", list}});
  }
  broadcast_text(group, files, kSmallFiles);
  broadcast_text(group, bytes, kSmallFiles);
  if (mine) return;
  const TemporaryFolder temporary;  // what is small is read at once, and the rest is not here
  const base::Json json = base::parse_json(files);
  const fs::path folder = snapshot::step_folder(temporary.path().string(), json["step"].get<int64_t>());
  fs::create_directories(folder / "training");
  size_t at = 0;
  for (const base::Json& file : json["files"]) {
    const fs::path path = folder / file[0].get<std::string>();
    const auto part = file[2].get<size_t>();
    std::ofstream(path, std::ios::binary).write(bytes.data() + at, static_cast<std::streamsize>(part));
    fs::resize_file(path, file[1].get<uintmax_t>());  // a hole takes no room
    at += part;
  }
  mine = snapshot::open(folder.string(), snapshot::Check::all_but_tensors);
}

}  // namespace cairn::train
