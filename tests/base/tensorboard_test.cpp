#include "base/tensorboard.h"

#include <cmath>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "error_of.h"
#include "harness/scratch_folder.h"

namespace cairn::base {
namespace {

TEST(TensorBoard, ReadsBackWhatItWrote) {
  const harness::ScratchFolder folder;
  TensorBoard board(folder / "events");
  board.scalar("loss", 1, 0.5);
  board.scalar("loss", 300, 1.0 / 3);
  board.text("sample", 2, "Once upon a time");
  board.scalar("h\xc3\xa9", 0, std::nan(""));
  const auto events = read_tensorboard(board.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].tag, "loss");
  EXPECT_EQ(events[0].step, 1);
  EXPECT_EQ(events[0].scalar, 0.5F);
  EXPECT_NEAR(events[0].wall_time, wall_time(), 60);
  EXPECT_EQ(events[1].step, 300);
  EXPECT_EQ(events[1].scalar, 1.0F / 3);
  EXPECT_EQ(events[2].text, "Once upon a time");
  EXPECT_FALSE(events[2].scalar.has_value());
  EXPECT_TRUE(std::isnan(*events[3].scalar));
}

TEST(TensorBoard, NamesItsFileAsTensorBoardLooksForIt) {
  const harness::ScratchFolder folder;
  const TensorBoard one(folder.path()), two(folder.path());  // in one second: two files
  EXPECT_TRUE(one.path().filename().string().starts_with("events.out.tfevents.1")) << one.path();
  EXPECT_NE(one.path(), two.path());
}

TEST(TensorBoard, FramesTheFirstRecordAsPublished) {
  const harness::ScratchFolder folder;
  const TensorBoard board(folder.path());
  const std::string bytes = folder.text_of(board.path().filename().string());
  ASSERT_EQ(bytes.size(), 12u + 24 + 4);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));  // 24 bytes follow
  EXPECT_EQ(bytes.substr(8, 4), std::string("\xa3\x7f\x4b\x22", 4));    // the masked CRC of that length, as in files of TensorFlow
  EXPECT_EQ(bytes.substr(12, 1), "\x09");                               // field 1, a double
  EXPECT_EQ(bytes.substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2");  // field 3, 13 bytes
}

TEST(TensorBoard, RefusesDamageWithItsPlace) {
  const harness::ScratchFolder folder;
  std::string good;
  {
    TensorBoard board(folder.path());
    board.scalar("loss", 1, 0.5);
    good = folder.text_of(board.path().filename().string());
  }
  const auto said = [&](std::string bytes) {
    const auto path = folder.file("bad", bytes);
    const Error error = error_of([&] { read_tensorboard(path); });
    EXPECT_EQ(error.kind(), Error::Kind::corrupt_file);
    return std::string(error.what()).substr(path.string().size());
  };
  EXPECT_EQ(said(good.substr(0, good.size() - 1)), ": a record is cut off at byte 40");
  EXPECT_EQ(said(good.substr(0, 45)), ": a record is cut off at byte 40");
  std::string flipped = good;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  EXPECT_EQ(said(flipped), ": the checksum of a record is wrong at byte 0");
  flipped = good;
  flipped[7] = '\x7f';  // a length beyond any file
  EXPECT_EQ(said(flipped), ": the checksum of a record's length is wrong at byte 0");
  for (size_t i = 0; i < good.size(); ++i) {  // no single flipped byte passes
    flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x40);
    EXPECT_THROW(read_tensorboard(folder.file("bad", flipped)), Error) << i;
  }
}

}  // namespace
}  // namespace cairn::base
