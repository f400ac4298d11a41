#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/clips/clip_dataset.h"
#include "data/clips/clip_frames.h"
#include "data/clips/resample.h"
#include "data/options.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

DataOptions options_of(const std::string& path = "") {
  DataOptions options;
  options.kind = "clips";
  options.path = path;
  options.clips = {.frames = 8, .size = 16, .classes = 4, .count = 20, .held_out = 10, .noise = 1};
  return options;
}

mesh::Batch shaped(const Dataset& clips, std::vector<int64_t> ids, const SampleShape& shape, int64_t step) {
  mesh::Batch batch;
  clips.fill_shaped(ids, shape, step, batch);
  return batch;
}

std::string npy(const std::string& shape, size_t values, const std::string& type = "|u1", const std::string& order = "False") {
  std::string header = "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  std::string bytes = std::string("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  std::string data(values, '\0');
  for (size_t i = 0; i < values; ++i) data[i] = static_cast<char>(i * 7 % 256);
  return bytes + header + data;
}

std::string lines(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += std::to_string(i % 4) + "\n";
  return text;
}

TEST(Clips, AreAFunctionOfTheirNumber) {
  const auto clips = open_clips(options_of(), {}).samples;
  mesh::Batch many, one;
  clips->fill(std::vector<int64_t>{3, 7, 21}, many);
  clips->fill(std::vector<int64_t>{7}, one);
  EXPECT_EQ(many.field("pixels").sizes(), (std::vector<int64_t>{3, 1, 8, 16, 16}));
  EXPECT_TRUE(at::equal(many.field("pixels")[1], one.field("pixels")[0]));
  EXPECT_TRUE(at::equal(many.field("labels"), at::tensor({3, 3, 1}, at::kLong)));
  EXPECT_EQ(clips->training(), (SampleRange{0, 20}));
  EXPECT_EQ(clips->held_out(), (SampleRange{20, 10}));
  EXPECT_EQ(clips->label_of(21), 1);
}

TEST(Clips, MoveInTheDirectionOfTheirClass) {
  DataOptions options = options_of();
  options.clips = {.frames = 16, .size = 32, .classes = 8, .count = 64, .held_out = 1, .noise = 0};
  const auto clips = make_generated_clips(options.clips);
  std::vector<uint8_t> scratch;
  const auto centre = [&](int64_t clip, int64_t frame) {  // where the blob is, on the circle of each coordinate
    const uint8_t* values = clips->frame(clip, frame, scratch);
    double x_sin = 0, x_cos = 0, y_sin = 0, y_cos = 0;
    for (int64_t i = 0; i < 32 * 32; ++i) {
      const double weight = std::abs(static_cast<double>(values[i]) - 128), turn = 2 * M_PI / 32;
      x_sin += weight * std::sin(turn * static_cast<double>(i % 32)), x_cos += weight * std::cos(turn * static_cast<double>(i % 32));
      y_sin += weight * std::sin(turn * static_cast<double>(i / 32)), y_cos += weight * std::cos(turn * static_cast<double>(i / 32));
    }
    return std::pair(std::atan2(x_sin, x_cos) * 16 / M_PI, std::atan2(y_sin, y_cos) * 16 / M_PI);
  };
  for (int64_t clip = 0; clip < 16; ++clip) {
    const auto [x0, y0] = centre(clip, 0);
    const auto [x1, y1] = centre(clip, 8);
    const double speed = clip % 8 < 4 ? 0.5 : 1.5, angle = M_PI / 2 * static_cast<double>(clip % 4);
    EXPECT_NEAR(std::remainder(x1 - x0, 32), 8 * speed * std::cos(angle), 0.6) << clip;
    EXPECT_NEAR(std::remainder(y1 - y0, 32), 8 * speed * std::sin(angle), 0.6) << clip;
  }
}

TEST(Clips, AreCutBySeedStepAndSample) {
  const auto clips = open_clips(options_of(), {}).samples;
  const SampleShape shape{.frames = 2, .size = 8, .stride_max = 4, .norm_samples = 4};
  const mesh::Batch all = shaped(*clips, {3, 7, 11}, shape, 5), alone = shaped(*clips, {7}, shape, 5),
                    later = shaped(*clips, {7}, shape, 6);
  EXPECT_EQ(all.field("pixels").sizes(), (std::vector<int64_t>{3, 1, 2, 8, 8}));
  EXPECT_EQ(all.norm_samples, 4);
  EXPECT_TRUE(at::equal(all.field("pixels")[1], alone.field("pixels")[0]));
  EXPECT_FALSE(at::equal(later.field("pixels"), alone.field("pixels")));
  const auto other = open_clips(options_of(), {.seed = 2}).samples;
  EXPECT_FALSE(at::equal(shaped(*other, {7}, shape, 5).field("pixels"), alone.field("pixels")));
}

TEST(Clips, AtTheirOwnScaleShowTheWholeFrame) {
  // The short side is at least that of the full crop: a crop of half the size covers between 1/1.25 of half and all of the frame.
  const SampleShape full{.frames = 8, .size = 16, .stride_max = 1};
  const auto clips = open_clips(options_of(), {}).samples;
  mesh::Batch plain;
  clips->fill(std::vector<int64_t>{4}, plain);
  bool same = false;
  for (int64_t step = 0; step < 40 && !same; ++step)
    same = at::equal(shaped(*clips, {4}, full, step).field("pixels"), plain.field("pixels"));
  EXPECT_TRUE(same);
}

// Frames that all hold their own number, to see which ones are taken.
class NumberedFrames final : public ClipFrames {
 public:
  int64_t clips() const override { return 4; }
  int64_t frames() const override { return 16; }
  int64_t height() const override { return 12; }
  int64_t width() const override { return 20; }
  int64_t label(int64_t) const override { return 0; }
  uint64_t digest() const override { return 0; }
  const uint8_t* frame(int64_t, int64_t frame, std::vector<uint8_t>& scratch) const override {
    scratch.assign(12 * 20, 0);
    for (size_t i = 0; i < scratch.size(); ++i) scratch[i] = static_cast<uint8_t>(frame * 10 + (i % 20 < 10 ? 0 : 5));
    return scratch.data();
  }
};

TEST(Clips, DrawEveryStrideAndStayInside) {
  const auto clips =
      make_clip_dataset(std::make_unique<NumberedFrames>(), {.frames = 16, .size = 12}, {.training = {0, 3}, .held_out = {3, 1}});
  std::set<int64_t> strides, starts;
  for (int64_t step = 0; step < 200; ++step) {
    const at::Tensor pixels = shaped(*clips, {0}, {.frames = 4, .size = 6, .stride_max = 4}, step).field("pixels");
    std::vector<int64_t> frames;
    for (int64_t t = 0; t < 4; ++t) frames.push_back(std::lround(pixels[0][0][t].min().item<double>() * 63.75 + 127.5) / 10);
    for (int64_t t = 2; t < 4; ++t) EXPECT_EQ(frames[t] - frames[t - 1], frames[1] - frames[0]);
    strides.insert(frames[1] - frames[0]);
    starts.insert(frames[0]);
  }
  EXPECT_THAT(strides, testing::ElementsAre(1, 2, 3, 4));
  EXPECT_GT(starts.size(), 10u);
}

TEST(Clips, AreMirroredWhereAsked) {
  const auto counts = [](bool flips) {
    const auto clips = make_clip_dataset(std::make_unique<NumberedFrames>(), {.frames = 16, .size = 12},
                                         {.training = {0, 3}, .held_out = {3, 1}, .flips = flips});
    int64_t falling = 0;
    for (int64_t step = 0; step < 100; ++step) {
      const at::Tensor row = shaped(*clips, {0}, {.frames = 16, .size = 12}, step).field("pixels")[0][0][0][0];
      falling += row[0].item<double>() > row[11].item<double>();
    }
    return falling;
  };
  EXPECT_EQ(counts(false), 0);
  EXPECT_GT(counts(true), 10);
}

TEST(Resample, InterpolatesBetweenPixelCentres) {
  const uint8_t frame[] = {0, 100, 200, 50};
  float out[4] = {};
  resample(frame, 2, resampled_axis(2, 1, 0, 2), resampled_axis(2, 1, 0, 2), out);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(out[i] * 63.75 + 127.5, frame[i], 1e-4);
  float wide[4] = {};
  resample(frame, 2, resampled_axis(2, 1, 0, 1), resampled_axis(2, 2, 0, 4), wide);  // centres at -0.25, 0.25, 0.75, 1.25
  const double expected[] = {0, 25, 75, 100};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(wide[i] * 63.75 + 127.5, expected[i], 1e-4);
}

TEST(ClipFiles, AreReadInAnOrderOfTheirOwn) {
  const Scratch scratch;
  scratch.write("clips.npy", npy("(40, 8, 16, 17)", 40 * 8 * 16 * 17));
  scratch.write("labels.csv", lines(40));
  const OpenedClips opened = open_clips(options_of(scratch.path()), {.held_out_fraction = 0.25});
  EXPECT_EQ(opened.samples->held_out(), (SampleRange{30, 10}));
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 40; ++i) labels.push_back(opened.samples->label_of(i));
  EXPECT_NE(labels[1] - labels[0] == 1 && labels[2] - labels[1] == 1 && labels[3] - labels[2] == 1, true);  // not that of the file
  std::sort(labels.begin(), labels.end());
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(labels[static_cast<size_t>(i)], i / 10);
  mesh::Batch batch;
  opened.samples->fill(std::vector<int64_t>{5}, batch);
  EXPECT_EQ(batch.field("pixels").sizes(), (std::vector<int64_t>{1, 1, 8, 16, 16}));
  EXPECT_NE(opened.digest, 0u);
}

TEST(ClipFiles, RefuseWhatIsNoClip) {
  const size_t right = 4 * 8 * 16 * 16;
  const auto refused = [&](const std::string& clips, const std::string& labels) {
    const Scratch scratch;
    scratch.write("clips.npy", clips);
    scratch.write("labels.csv", labels);
    return refusal([&] { check_clips(options_of(scratch.path())); });
  };
  EXPECT_THAT(refused("", lines(4)), HasSubstr("is not a NumPy file"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right, "<f4"), lines(4)), HasSubstr("does not hold uint8"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right, "|u1", "True"), lines(4)), HasSubstr("Fortran"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right - 1), lines(4)), HasSubstr("its shape 8192"));
  EXPECT_THAT(refused(npy("(4, 8, 256)", right), lines(4)), HasSubstr("3 dims"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16, 1)", right), lines(4)), HasSubstr("5 dims"));
  EXPECT_THAT(refused(npy("(4, -8, 16, 16)", right), lines(4)), HasSubstr("its shape cannot be read"));
  EXPECT_THAT(refused(npy("(4294967296, 4294967296, 16, 16)", right), lines(4)), HasSubstr("too large"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right).substr(0, 40), lines(4)), HasSubstr("ends within its header"));
  EXPECT_THAT(refused(npy("(8, 4, 16, 16)", right), lines(8)), HasSubstr("clips.frames = 8"));
  EXPECT_THAT(refused(npy("(4, 8, 32, 8)", right), lines(4)), HasSubstr("clips.size = 16"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right), lines(3)), HasSubstr("3 classes for 4 clips"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right), "0\n1\n4\n0\n"), HasSubstr("labels.csv:3"));
  EXPECT_THAT(refused(npy("(4, 8, 16, 16)", right), "0\n1\nx\n0\n"), HasSubstr("labels.csv:3"));
}

}  // namespace
}  // namespace cairn::data
