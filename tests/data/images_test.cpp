#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "data/images/image_dataset.h"
#include "data/images/picture.h"
#include "data/images/scale.h"
#include "data/open.h"
#include "data/options.h"
#include "kernels/aten.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::HasSubstr;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

// 4 x 3 pixels: red is 40 times the column, green 60 times the row, blue 200.
std::string small_png() {
  return from_hex(
      "89504e470d0a1a0a0000000d49484452000000040000000308020000003b963991000000284944415478da0dc74101003010c2b0ca4104224e0e122b"
      "6bcb2f80c1c321d4d4abebcfccbcb9f900feaf0f015660ee0e0000000049454e44ae426082");
}

// 8 x 6 pixels: red is 200, green 20 + 10 times the row, blue 20 + 20 times the column.
std::string small_jpeg() {
  return from_hex(
      "ffd8ffe000104a46494600010100000100010000ffdb0043000201010101010201010102020202020403020202020504040304060506060605060606"
      "070908060709070606080b08090a0a0a0a0a06080b0c0b0a0c090a0a0affdb004301020202020202050303050a0706070a0a0a0a0a0a0a0a0a0a0a0a"
      "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0affc00011080006000803011100021101031101ffc400"
      "14000100000000000000000000000000000007ffc4001b10000007010000000000000000000000000002050607212291ffc400150101010000000000"
      "0000000000000000000509ffc4001b11000201050000000000000000000000000003050407212381ffda000c03010002110311003f00106ac56999b2"
      "701169261baf851daf9e7e4fffd9");
}

DataOptions images_in(const std::string& path) {
  DataOptions options;
  options.kind = "images";
  options.path = path;
  options.images = {.size = 3, .channels = 3};
  return options;
}

std::string image_npy(const std::string& type, const std::string& shape, const std::string& data) {
  const std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string bytes = std::string("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void write_in(const Scratch& scratch, const std::string& folder, const std::string& name, const std::string& bytes) {
  base::make_folder(std::filesystem::path(scratch.path()) / folder);
  scratch.write(folder + "/" + name, bytes);
}

// Two classes with so many pictures each.
void write_folder(const Scratch& scratch, const std::string& under, int count) {
  for (int i = 0; i < count; ++i) {
    write_in(scratch, under + "cat", "p" + std::to_string(i) + ".png", small_png());
    write_in(scratch, under + "dog", "p" + std::to_string(i) + ".JPG", small_jpeg());
  }
}

TEST(Pictures, AreDecodedFromPng) {
  if (!has_png()) GTEST_SKIP() << "built without libpng";
  const Picture picture = decode_picture(base::as_bytes(small_png()), 3, "p.png");
  EXPECT_EQ(picture.height, 3);
  EXPECT_EQ(picture.width, 4);
  for (size_t y = 0; y < 3; ++y)
    for (size_t x = 0; x < 4; ++x) {
      const uint8_t* pixel = &picture.values[3 * (4 * y + x)];
      EXPECT_EQ(pixel[0], 40 * x);
      EXPECT_EQ(pixel[1], 60 * y);
      EXPECT_EQ(pixel[2], 200);
    }
  const Picture grey = decode_picture(base::as_bytes(small_png()), 1, "p.png");
  EXPECT_EQ(grey.values.size(), 12u);
  EXPECT_GT(grey.values.back(), grey.values.front());
}

TEST(Pictures, AreDecodedFromJpeg) {
  if (!has_jpeg()) GTEST_SKIP() << "built without libjpeg";
  const Picture picture = decode_picture(base::as_bytes(small_jpeg()), 3, "p.jpg");
  EXPECT_EQ(picture.height, 6);
  EXPECT_EQ(picture.width, 8);
  for (size_t y = 0; y < 6; ++y)
    for (size_t x = 0; x < 8; ++x) {  // quality 95: colours are within a few of 256 levels
      const uint8_t* pixel = &picture.values[3 * (8 * y + x)];
      EXPECT_NEAR(pixel[0], 200, 8);
      EXPECT_NEAR(pixel[1], 20 + 10 * static_cast<double>(y), 8);
      EXPECT_NEAR(pixel[2], 20 + 20 * static_cast<double>(x), 12);
    }
}

TEST(Pictures, ThatAreDamagedAreRefusedByName) {
  const auto refused = [](const std::string& bytes) { return refusal([&] { decode_picture(base::as_bytes(bytes), 3, "d/p.x"); }); };
  EXPECT_THAT(refused("GIF89a and more"), HasSubstr("d/p.x: is no PNG or JPEG file"));
  EXPECT_THAT(refused(""), HasSubstr("is no PNG or JPEG file"));
  if (has_png()) {
    const std::string png = small_png();
    for (size_t cut = 8; cut + 12 < png.size(); cut += 5)  // without its end it is complete
      EXPECT_THAT(refused(png.substr(0, cut)), HasSubstr("d/p.x: a damaged PNG file")) << cut;
    std::string changed = png;
    changed[50] = static_cast<char>(changed[50] ^ 0x10);  // within the pixels: the checksum tells
    EXPECT_THAT(refused(changed), HasSubstr("damaged PNG file"));
    std::string huge = png;
    huge[16] = huge[20] = 0x7f;  // width and height
    EXPECT_THAT(refused(huge), HasSubstr("d/p.x"));
  }
  if (has_jpeg()) {
    const std::string jpeg = small_jpeg();
    for (size_t cut = 4; cut + 4 < jpeg.size(); cut += 9)
      EXPECT_THAT(refused(jpeg.substr(0, cut)), HasSubstr("d/p.x: a damaged JPEG file")) << cut;
    std::string huge = jpeg;
    const size_t frame = huge.find("\xff\xc0");
    huge[frame + 5] = huge[frame + 7] = '\xff';
    EXPECT_THAT(refused(huge), HasSubstr("pixels, and at most"));
  }
}

TEST(Images, AreAFunctionOfTheirNumber) {
  DataOptions options = images_in("");
  options.images = {.size = 8, .channels = 2, .count = 20, .held_out = 10};
  const OpenedImages opened = open_images(options, {});
  mesh::Batch many, one;
  opened.samples->fill(std::vector<int64_t>{3, 7, 21}, many);
  opened.samples->fill(std::vector<int64_t>{7}, one);
  EXPECT_EQ(many.field("pixels").sizes(), (std::vector<int64_t>{3, 2, 8, 8}));
  EXPECT_TRUE(at::equal(many.field("pixels")[1], one.field("pixels")[0]));
  EXPECT_TRUE(at::equal(many.field("labels"), at::tensor({3, 7, 5}, at::kLong)));
  EXPECT_EQ(opened.samples->held_out(), (SampleRange{20, 10}));
  EXPECT_EQ(opened.outline.classes, 8);
  EXPECT_LE(many.field("pixels").abs().max().item<double>(), 1);
}

TEST(Images, GeneratedStripesRunInTheDirectionOfTheirClass) {
  DataOptions options = images_in("");
  options.images = {.size = 32, .channels = 1, .classes = 4, .count = 64, .held_out = 1, .noise = 0};
  const auto samples = open_images(options, {}).samples;
  for (int64_t id = 0; id < 32; ++id) {
    mesh::Batch batch;
    samples->fill(std::vector<int64_t>{id}, batch);
    const at::Tensor picture = batch.field("pixels")[0][0];
    const double down = (picture.narrow(0, 1, 31) - picture.narrow(0, 0, 31)).square().mean().item<double>();
    const double across = (picture.narrow(1, 1, 31) - picture.narrow(1, 0, 31)).square().mean().item<double>();
    EXPECT_GT(id % 2 == 0 ? across : down, 4 * (id % 2 == 0 ? down : across)) << id;
  }
}

TEST(Images, AreMovedAndMirroredForTraining) {
  DataOptions options = images_in("");
  options.images = {.size = 8, .channels = 1, .count = 20, .held_out = 4, .crop = 2};
  const auto samples = open_images(options, {}).samples;
  mesh::Batch plain, moved, again, later;
  const std::vector<int64_t> ids{3};
  samples->fill(ids, plain);
  samples->fill_training(ids, 5, moved);
  samples->fill_training(ids, 5, again);
  EXPECT_TRUE(at::equal(moved.field("pixels"), again.field("pixels")));
  const auto other = open_images(options, {.seed = 2}).samples;
  bool as_other = true;  // one batch may be moved alike
  for (int64_t index = 0; index < 5; ++index) {
    samples->fill_training(ids, index, moved);
    other->fill_training(ids, index, again);
    as_other = as_other && at::equal(moved.field("pixels"), again.field("pixels"));
  }
  EXPECT_FALSE(as_other);
  std::set<std::pair<int64_t, int64_t>> shifts;
  for (int64_t index = 0; index < 200; ++index) {
    samples->fill_training(ids, index, later);
    for (int64_t down = -2; down <= 2; ++down)
      for (int64_t right = -2; right <= 2; ++right) {
        const auto cut = [](const at::Tensor& x, int64_t y0, int64_t x0, int64_t h, int64_t w) {
          return x[0][0].narrow(0, y0, h).narrow(1, x0, w);
        };
        const int64_t h = 8 - std::abs(down), w = 8 - std::abs(right);
        if (at::equal(cut(later.field("pixels"), std::max<int64_t>(0, down), std::max<int64_t>(0, right), h, w),
                      cut(plain.field("pixels"), std::max<int64_t>(0, -down), std::max<int64_t>(0, -right), h, w)))
          shifts.insert({down, right});
      }
  }
  EXPECT_EQ(shifts.size(), 25u);
  const auto mirrored = make_image_dataset(make_generated_textures(options.images), {.size = 8, .flip = true});
  int64_t flipped = 0;
  for (int64_t index = 0; index < 100; ++index) {
    mirrored->fill_training(ids, index, later);
    if (at::equal(later.field("pixels"), plain.field("pixels").flip({3}))) ++flipped;
  }
  EXPECT_GT(flipped, 30);
  EXPECT_LT(flipped, 70);
}

TEST(Images, AreReadFromFoldersOfClasses) {
  if (!has_png() || !has_jpeg()) GTEST_SKIP() << "built without libpng or libjpeg";
  const Scratch scratch;
  write_folder(scratch, "", 10);
  write_in(scratch, "cat", "notes.txt", "no picture");
  const OpenedImages opened = open_images(images_in(scratch.path()), {.held_out_fraction = 0.25});
  EXPECT_THAT(opened.outline.class_names, testing::ElementsAre("cat", "dog"));
  EXPECT_EQ(opened.samples->held_out(), (SampleRange{15, 5}));
  EXPECT_NE(opened.digest, 0u);
  int64_t dogs = 0;
  for (int64_t i = 0; i < 20; ++i) {
    mesh::Batch batch;
    opened.samples->fill(std::vector<int64_t>{i}, batch);
    const double red = batch.field("pixels")[0][0][0][0].item<double>();  // cats begin with little red
    dogs += opened.samples->label_of(i);
    EXPECT_NEAR(red * 127.5 + 127.5, opened.samples->label_of(i) == 1 ? 200 : 20, 22);
  }
  EXPECT_EQ(dogs, 10);
}

TEST(Images, HoldOutTheTestFolder) {
  if (!has_png() || !has_jpeg()) GTEST_SKIP() << "built without libpng or libjpeg";
  const Scratch scratch;
  write_folder(scratch, "train/", 3);
  write_folder(scratch, "test/", 2);
  const OpenedImages opened = open_images(images_in(scratch.path()), {.held_out_fraction = 0.25});
  EXPECT_EQ(opened.samples->training(), (SampleRange{0, 6}));
  EXPECT_EQ(opened.samples->held_out(), (SampleRange{6, 4}));
  write_in(scratch, "test/bird", "p.png", small_png());
  EXPECT_THAT(refusal([&] { open_images(images_in(scratch.path()), {.held_out_fraction = 0.25}); }),
              HasSubstr("test/bird: a class without training pictures"));
}

TEST(Images, FoldersThatCannotBeUsedAreRefused) {
  const Scratch scratch;
  const auto refused = [&](const DataOptions& options) { return refusal([&] { image_outline(options); }); };
  EXPECT_THAT(refused(images_in(scratch.path() + "/none")), HasSubstr("no such folder"));
  EXPECT_THAT(refused(images_in(scratch.path())), HasSubstr("no folder of classes there"));
  write_in(scratch, "cat", "p.png", small_png());
  EXPECT_THAT(refused(images_in(scratch.path())), HasSubstr("1 folder of classes there"));
  write_in(scratch, "dog", "p.txt", "none");
  EXPECT_THAT(refused(images_in(scratch.path())), HasSubstr("dog: no PNG or JPEG file there"));
  write_in(scratch, "dog", "p.jpg", small_jpeg());
  DataOptions options = images_in(scratch.path());
  options.images.channels = 2;
  EXPECT_THAT(refused(options), HasSubstr("images.channels = 2"));
  options = images_in(scratch.path());
  options.images.classes = 3;
  EXPECT_THAT(refused(options), HasSubstr("images.classes = 3"));
  options.images.classes = 0, options.images.crop = 3;
  EXPECT_THAT(refused(options), HasSubstr("images.crop = 3"));
  options = images_in("");
  options.images.flip = true;
  EXPECT_THAT(refused(options), HasSubstr("direction of generated stripes"));
  write_in(scratch, "dog", "q.jpg", small_jpeg().substr(0, 200));
  if (!has_jpeg() || !has_png()) return;
  const OpenedImages opened = open_images(images_in(scratch.path()), {});
  const std::string trouble = refusal([&] {
    mesh::Batch batch;
    opened.samples->fill(std::vector<int64_t>{0, 1, 2}, batch);
  });
  EXPECT_THAT(trouble, HasSubstr("dog/q.jpg: a damaged JPEG file"));
}

TEST(Images, AreReadFromArrays) {
  const Scratch scratch;
  std::vector<float> values(5 * 1 * 1 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5f;
  scratch.write("images.npy", image_npy("<f4", "(5, 1, 1, 4)", raw(values)));
  scratch.write("labels.npy", image_npy("<i8", "(5,)", raw(std::vector<int64_t>{0, 1, 2, 1, 0})));
  DataOptions options = images_in(scratch.path());
  options.images = {.size = 1, .channels = 4};
  const OpenedImages opened = open_images(options, {.held_out_fraction = 0.2});
  EXPECT_EQ(opened.outline.classes, 3);
  EXPECT_EQ(opened.samples->held_out().count, 1);
  mesh::Batch batch;
  opened.samples->fill(std::vector<int64_t>{0, 1, 2, 3, 4}, batch);
  const std::vector<int64_t> expected{0, 1, 2, 1, 0};
  for (int64_t i = 0; i < 5; ++i) {
    const auto row = std::lround(batch.field("pixels")[i][0][0][0].item<double>() / 2);
    EXPECT_EQ(opened.samples->label_of(i), expected[static_cast<size_t>(row)]);
    EXPECT_EQ(batch.field("pixels")[i][3][0][0].item<float>(), values[static_cast<size_t>(4 * row + 3)]);
  }
}

TEST(Images, ArraysOfBytesAreScaledAndHaveATestSet) {
  const Scratch scratch;
  scratch.write("images.npy", image_npy("|u1", "(2, 2, 2)", std::string("\x00\xff\x00\xff\xff\xff\xff\xff", 8)));
  scratch.write("labels.csv", "0\n1\n");
  scratch.write("test_images.npy", image_npy("|u1", "(1, 2, 2)", std::string("\x80\x80\x80\x80", 4)));
  scratch.write("test_labels.npy", image_npy("|u1", "(1,)", std::string("\x01", 1)));
  DataOptions options = images_in(scratch.path());
  options.images = {.size = 2, .channels = 1, .classes = 2};
  const OpenedImages opened = open_images(options, {.held_out_fraction = 0.2});
  EXPECT_EQ(opened.samples->held_out(), (SampleRange{2, 1}));
  EXPECT_EQ(opened.samples->label_of(2), 1);
  mesh::Batch batch;
  opened.samples->fill(std::vector<int64_t>{0, 1, 2}, batch);
  EXPECT_EQ(batch.field("pixels").min().item<float>(), -1);
  EXPECT_EQ(batch.field("pixels").max().item<float>(), 1);
  EXPECT_NEAR(batch.field("pixels")[2].mean().item<double>(), 0.5 / 127.5, 1e-6);
}

TEST(Images, ArraysThatCannotBeUsedAreRefused) {
  const auto refused = [](const std::string& images, const std::string& labels, int64_t classes = 0) {
    const Scratch scratch;
    scratch.write("images.npy", images);
    scratch.write("labels.npy", labels);
    DataOptions options = images_in(scratch.path());
    options.images = {.size = 2, .channels = 1, .classes = classes};
    return refusal([&] {
      mesh::Batch batch;
      open_images(options, {}).samples->fill(std::vector<int64_t>{0, 1}, batch);
    });
  };
  const std::string images = image_npy("|u1", "(2, 2, 2)", std::string(8, 'a'));
  const std::string labels = image_npy("<i4", "(2,)", raw(std::vector<int32_t>{0, 1}));
  EXPECT_THAT(refused("", labels), HasSubstr("images.npy: is not a NumPy file"));
  EXPECT_THAT(refused(images.substr(0, images.size() - 1), labels), HasSubstr("holds 7 values, and its shape 8"));
  EXPECT_THAT(refused(image_npy("<f8", "(2, 2, 2)", std::string(64, 'a')), labels), HasSubstr("does not hold uint8 or float32"));
  EXPECT_THAT(refused(image_npy("|u1", "(4, 2)", std::string(8, 'a')), labels), HasSubstr("it has 2 dims"));
  EXPECT_THAT(refused(image_npy("|u1", "(2, 2, 2, 3)", std::string(24, 'a')), labels), HasSubstr("Set images.channels = 3"));
  EXPECT_THAT(refused(images, image_npy("<i4", "(3,)", raw(std::vector<int32_t>{0, 1, 1}))), HasSubstr("3 labels for 2 images"));
  EXPECT_THAT(refused(images, image_npy("<i4", "(2,)", raw(std::vector<int32_t>{0, -1}))), HasSubstr("label 1 is -1"));
  EXPECT_THAT(refused(images, labels, 1), HasSubstr("label 1 is 1"));
  EXPECT_THAT(refused(images, image_npy("<i4", "(2,)", raw(std::vector<int32_t>{0, 0}))), HasSubstr("at least two classes"));
  const std::string no_number = image_npy("<f4", "(2, 2, 2)", raw(std::vector<float>{0, 0, 0, 0, 0, 0, NAN, 0}));
  EXPECT_THAT(refused(no_number, labels), HasSubstr("picture 1 has the value nan at row 1, column 0"));
}

TEST(Scale, KeepsAPictureOfItsSizeAndAveragesALargerOne) {
  ImageValues picture{.channels = 1, .height = 4, .width = 6, .values = {}};
  for (int i = 0; i < 24; ++i) picture.values.push_back(static_cast<float>(i % 6));
  std::vector<float> out(4);
  scale_and_crop(picture, 2, out.data());  // the middle 4 columns, halved: means around 2 and 3, by a triangle over four columns
  EXPECT_NEAR(out[0] + out[1], 5, 1e-5);
  EXPECT_GT(out[1], out[0] + 1);
  EXPECT_NEAR(out[0], out[2], 1e-5);
  ImageValues flat{.channels = 2, .height = 3, .width = 5, .values = std::vector<float>(30, 0.25f)};
  std::vector<float> larger(2 * 7 * 7);
  scale_and_crop(flat, 7, larger.data());
  for (const float value : larger) EXPECT_NEAR(value, 0.25, 1e-6);
  ImageValues same{.channels = 1, .height = 2, .width = 2, .values = {1, 2, 3, 4}};
  scale_and_crop(same, 2, out.data());
  EXPECT_EQ(out, same.values);
}

}  // namespace
}  // namespace cairn::data
