// index.json           {"model", "text", "pooling", "dim", "rows_per_file"}
// rows-00000007.f16    header, 8 bytes each: magic, dim, number of its first document, rows planned, hash of their documents; rows, fp16;
//                      when complete the footer, 8 bytes each: magic, number of rows, hash of their documents, XXH3 of the rows
#include "data/selection/embedding_index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Half.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/mapped_file.h"
#include "base/files/write_calls.h"
#include "base/json.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr std::array<char, 8> kRowsMagic{'c', 'a', 'i', 'r', 'n', 'v', 'e', '1'}, kEndMagic{'r', 'o', 'w', 's', ' ', 'e', 'n', 'd'};
constexpr int64_t kIndexBytesMax = 1 << 20, kRowBytes = 2;
constexpr int kIndexDepth = 8;
constexpr int64_t kFilesWanted = 64, kRowsPerFileMin = 64, kRowsPerFileMax = 1 << 16;
constexpr float kLengthOff = 0.02f;  // of a row in fp16 to 1

struct RowsHeader {
  std::array<char, 8> magic;
  int64_t dim, first;
  int64_t planned;     // rows
  uint64_t documents;  // hash of the documents of these
};
struct RowsFooter {
  std::array<char, 8> magic;
  int64_t rows;
  uint64_t documents, sum;
};

struct RowFile {
  std::shared_ptr<const base::MappedFile> memory;
  const char* rows = nullptr;
  int64_t count = 0;
  bool complete = false;
  RowsHeader header = {};
  RowsFooter footer = {};
};

// What a file holds; nothing where it is missing or begins like none of ours.
RowFile look_into(const std::filesystem::path& path, int64_t dim, int64_t first) {
  RowFile found;
  if (!std::filesystem::exists(path)) return found;
  if (!std::filesystem::is_regular_file(path)) base::fail_input("{}: not a regular file. Remove it; it is made again.", path.string());
  if (std::filesystem::file_size(path) < sizeof(RowsHeader)) return found;
  found.memory = base::MappedFile::open(path.string(), Error::Kind::bad_input);
  const auto bytes = found.memory->bytes();
  RowsHeader& header = found.header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kRowsMagic || header.dim != dim || header.first != first) return {};
  found.rows = reinterpret_cast<const char*>(bytes.data()) + sizeof header;
  const auto left = static_cast<int64_t>(bytes.size() - sizeof header), row = dim * kRowBytes;
  found.count = left / row;
  if (left < static_cast<int64_t>(sizeof(RowsFooter))) return found;
  std::memcpy(&found.footer, bytes.data() + bytes.size() - sizeof(RowsFooter), sizeof(RowsFooter));
  const int64_t complete = left - static_cast<int64_t>(sizeof(RowsFooter));
  if (found.footer.magic != kEndMagic || complete % row != 0 || found.footer.rows != complete / row) return found;
  found.complete = true;
  found.count = found.footer.rows;
  return found;
}

uint64_t sum_of_rows(const RowFile& file, int64_t dim) {
  return base::checksum(std::string_view(file.rows, static_cast<size_t>(file.count * dim * kRowBytes)));
}

// Rows in fp16 as a tensor over memory that must outlive it.
at::Tensor rows_at(const char* bytes, int64_t count, int64_t dim) {
  return at::from_blob(const_cast<char*>(bytes), {count, dim}, at::TensorOptions().dtype(at::kHalf));
}

// How many rows of an incomplete file are vectors: a crash of the machine may leave others at its end.
int64_t good_rows(const RowFile& file, int64_t dim) {
  if (file.count == 0) return 0;
  const at::Tensor lengths = rows_at(file.rows, file.count, dim).to(at::kFloat).norm(2, 1);
  const auto* length = lengths.const_data_ptr<float>();
  int64_t good = 0;
  while (good < file.count && std::abs(length[good] - 1) < kLengthOff) ++good;
  return good;
}

class IndexRows final : public RowSource {
 public:
  IndexRows(std::vector<RowFile> files, int64_t dim) : files_(std::move(files)), dim_(dim), firsts_{0} {
    for (const RowFile& file : files_) firsts_.push_back(firsts_.back() + file.count);
  }
  int64_t rows() const override { return firsts_.back(); }
  int64_t dim() const override { return dim_; }
  at::Tensor read(int64_t first, int64_t count) const override {
    const at::NoGradGuard no_grad;
    const at::Tensor found = at::empty({count, dim_});
    auto file = static_cast<size_t>(std::upper_bound(firsts_.begin(), firsts_.end(), first) - firsts_.begin()) - 1;
    for (int64_t done = 0; done < count; ++file) {
      const int64_t begin = first + done - firsts_[file], take = std::min(count - done, files_[file].count - begin);
      if (take <= 0) continue;
      found.narrow(0, done, take).copy_(rows_at(files_[file].rows + begin * dim_ * kRowBytes, take, dim_));
      done += take;
    }
    // In fp16 lengths are off by some 1e-4, which is more than what tells near-duplicates apart.
    auto* x = found.mutable_data_ptr<float>();
    for (int64_t row = 0; row < count; ++row, x += dim_) {
      const float length = std::sqrt(scalar_product(x, x, dim_));
      for (int64_t i = 0; length > 0 && i < dim_; ++i) x[i] /= length;
    }
    return found;
  }

 private:
  std::vector<RowFile> files_;
  int64_t dim_;
  std::vector<int64_t> firsts_;
};

void check_same(const std::string& option, const std::filesystem::path& folder, const char* what, const std::string& there,
                const std::string& wanted) {
  if (there == wanted) return;
  base::fail_input("{} = {}: its vectors were made with another {} ({}, not {}). Name another folder, or remove this one.", option,
                   folder.string(), what, there, wanted);
}

}  // namespace

EmbeddingIndex::EmbeddingIndex(std::filesystem::path folder, EmbeddingFacts facts, int64_t documents, DigestOf digest,
                               const std::string& option)
    : folder_(std::move(folder)), facts_(std::move(facts)), digest_(std::move(digest)) {
  const std::filesystem::path file = folder_ / "index.json";
  int64_t rows_per_file = std::clamp((documents + kFilesWanted - 1) / kFilesWanted, kRowsPerFileMin, kRowsPerFileMax);
  if (std::filesystem::exists(file)) {
    const base::GuardedJson parsed = base::parse_json_guarded(base::read_file(file, kIndexBytesMax), kIndexDepth);
    const base::Json& there = parsed.value;
    const auto text = [&](const char* name) {
      if (!parsed.trouble.empty() || !there.is_object() || !there.contains(name) || !there[name].is_string())
        base::fail_input("{} = {}: index.json is damaged. Remove the folder; it is made again.", option, folder_.string());
      return there[name].get<std::string>();
    };
    check_same(option, folder_, "model", text("model"), facts_.model);
    check_same(option, folder_, "text", text("text"), facts_.text);
    check_same(option, folder_, "pooling", text("pooling"), facts_.pooling);
    check_same(option, folder_, "dimension", text("dim"), std::to_string(facts_.dim));
    const std::string rows = text("rows_per_file");
    if (rows.empty() || rows.size() > 9 || rows.find_first_not_of("0123456789") != std::string::npos || std::stoll(rows) < 1)
      base::fail_input("{} = {}: index.json is damaged. Remove the folder; it is made again.", option, folder_.string());
    rows_per_file = std::stoll(rows);
  } else {
    if (std::error_code none; std::filesystem::exists(folder_, none) && !std::filesystem::is_directory(folder_, none))
      base::fail_input("{} = {}: is a file, and vectors are kept in a folder. Give another.", option, folder_.string());
    base::make_folder(folder_);
    base::write_atomically(file, base::pretty({{"model", facts_.model},
                                               {"text", facts_.text},
                                               {"pooling", facts_.pooling},
                                               {"dim", std::to_string(facts_.dim)},
                                               {"rows_per_file", std::to_string(rows_per_file)}}));
  }
  for (int64_t first = 0; first < documents; first += rows_per_file) shards_.push_back({first, std::min(rows_per_file, documents - first)});
}

std::filesystem::path EmbeddingIndex::path_of(size_t shard) const { return folder_ / fmt::format("rows-{:08}.f16", shard); }

bool EmbeddingIndex::is_complete(size_t shard) const {
  const Shard& wanted = shards_[shard];
  const RowFile file = look_into(path_of(shard), facts_.dim, wanted.first);
  return file.complete && file.count == wanted.count && file.footer.documents == digest_(wanted.first, wanted.count);
}

struct EmbeddingIndex::Writer::Open {
  const base::Disk& disk = base::real_disk();
  int file = -1;
  base::Checksum sum;
  ~Open() {
    if (file >= 0) disk.close(file);
  }
};

// Keeps the rows that are there: of an interrupted run, or of the pool before it grew.
EmbeddingIndex::Writer::Writer(const EmbeddingIndex& index, size_t shard)
    : index_(&index), shard_(index.shards_[shard]), path_(index.path_of(shard)), open_(std::make_unique<Open>()) {
  const int64_t dim = index.facts_.dim;
  std::string kept;
  {
    const RowFile before = look_into(path_, dim, shard_.first);
    if (before.complete && before.count <= shard_.count) {
      if (before.footer.documents == index.digest_(shard_.first, before.count) && before.footer.sum == sum_of_rows(before, dim))
        done_ = before.count;
    } else if (before.memory && !before.complete && before.header.planned <= shard_.count &&
               before.header.documents == index.digest_(shard_.first, before.header.planned)) {
      done_ = std::min(good_rows(before, dim), shard_.count);
    }
    if (done_ > 0) kept.assign(before.rows, static_cast<size_t>(done_ * dim * kRowBytes));
  }
  const RowsHeader header{kRowsMagic, dim, shard_.first, shard_.count, index.digest_(shard_.first, shard_.count)};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += kept;
  base::write_atomically(path_, bytes);
  open_->sum.add(std::as_bytes(std::span(kept)));
  open_->file = open_->disk.append(path_);
  if (open_->file < 0) base::fail_disk("open", path_, errno, 0, open_->disk);
}

EmbeddingIndex::Writer::Writer(Writer&& other) noexcept = default;
EmbeddingIndex::Writer::~Writer() = default;

void EmbeddingIndex::Writer::append(const at::Tensor& rows) {
  const at::Tensor narrow = rows.to(at::kHalf).contiguous();
  CAIRN_CHECK(narrow.size(1) == index_->facts_.dim && done_ + narrow.size(0) <= shard_.count, "{} rows after {} of {}", narrow.size(0),
              done_, shard_.count);
  const auto bytes =
      std::as_bytes(std::span(static_cast<const char*>(narrow.const_data_ptr()), static_cast<size_t>(narrow.numel() * kRowBytes)));
  if (!base::write_all(open_->disk, open_->file, bytes).empty())
    base::fail_disk("write", path_, errno, static_cast<int64_t>(bytes.size()), open_->disk);
  open_->sum.add(bytes);
  done_ += narrow.size(0);
}

void EmbeddingIndex::Writer::finish() {
  CAIRN_CHECK(done_ == shard_.count, "{} rows of {}", done_, shard_.count);
  const RowsFooter footer{kEndMagic, done_, index_->digest_(shard_.first, shard_.count), open_->sum.value()};
  if (!base::write_all(open_->disk, open_->file, std::as_bytes(std::span(&footer, 1))).empty() || open_->disk.sync(open_->file) != 0)
    base::fail_disk("write", path_, errno, static_cast<int64_t>(sizeof footer), open_->disk);
}

std::unique_ptr<RowSource> EmbeddingIndex::open() const {
  std::vector<RowFile> files;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    RowFile file = look_into(path_of(shard), facts_.dim, shards_[shard].first);
    if (!file.complete || file.count != shards_[shard].count || file.footer.sum != sum_of_rows(file, facts_.dim))
      base::fail_input("{}: damaged or incomplete vectors. Remove this file; it is made again.", path_of(shard).string());
    files.push_back(std::move(file));
  }
  return std::make_unique<IndexRows>(std::move(files), facts_.dim);
}

}  // namespace cairn::data
