#include "train/state/file_sink.h"

#include <filesystem>

#include "base/check.h"
#include "base/files/disk.h"

namespace cairn::train {
namespace {

// Failures of the disk in the one type that means them.
template <typename Act>
void on_disk(const Act& act) {
  try {
    act();
  } catch (const std::filesystem::filesystem_error& error) {
    throw Error(Error::Kind::disk, error.what());
  }
}

}  // namespace

FileSink::FileSink(PartSave::Parts parts, const SaveCancel& cancelled)
    : direct_(parts.direct), save_(std::move(parts)), cancelled_(cancelled), writer_(save_.make_writer()) {}

void FileSink::begin(int64_t /*step*/, std::span<const snapshot::WriteBlock> blocks) {
  CAIRN_CHECK(blocks.size() == writer_->blocks().size(), "{} blocks of {}", blocks.size(), writer_->blocks().size());
  on_disk([&] {
    save_.begin_votes();
    writer_->open();
  });
}

void FileSink::write(size_t block, std::span<const std::byte> bytes) { writer_->write(writer_->blocks()[block], bytes); }

void FileSink::end() {
  on_disk([&] {
    save_.vote(writer_->finish());
    voted_ = true;
    writer_.reset();
    if (save_.first() && save_.wait_for_votes(cancelled_)) save_.commit();
  });
}

void FileSink::abort(const std::string& why) noexcept {
  writer_.reset();
  if (!voted_) save_.vote_failed(save_.rank(), why);
}

int64_t FileSink::page_remainder(const snapshot::WriteBlock& block) const {
  return direct_ && !block.cells.empty() ? block.cells.front().cell.offset % base::kDirectBytes : -1;
}

}  // namespace cairn::train
