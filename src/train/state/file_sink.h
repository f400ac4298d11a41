#pragma once
#include <memory>
#include <string>

#include "snapshot/sink.h"
#include "train/state/part_save.h"

namespace cairn::train {

// The files of a lazy snapshot: this rank's part, its vote and, on the first rank, the commit once all ranks have voted.
class FileSink final : public snapshot::SnapshotSink {
 public:
  // `cancelled` is borrowed.
  FileSink(PartSave::Parts parts, const SaveCancel& cancelled);

  const std::vector<snapshot::WriteBlock>& blocks() const { return writer_->blocks(); }

  void begin(int64_t step, std::span<const snapshot::WriteBlock> blocks) override;
  void write(size_t block, std::span<const std::byte> bytes) override;
  void end() override;
  void abort(const std::string& why) noexcept override;
  int64_t page_remainder(const snapshot::WriteBlock& block) const override;

 private:
  const bool direct_;
  PartSave save_;
  const SaveCancel& cancelled_;
  std::unique_ptr<snapshot::PartWriter> writer_;
  bool voted_ = false;
};

}  // namespace cairn::train
