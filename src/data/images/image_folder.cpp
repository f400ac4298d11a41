// Pictures in files, a folder for each class:
//
//   PATH/CLASS/*.png|jpg|jpeg                                  the last eval.fraction is held out
//   PATH/train/CLASS/...  PATH/test/CLASS/... (or PATH/val)    the second is held out
//
// Classes are numbered in the order of their names. Training pictures are numbered in an order drawn once, so that any range of them is a
// fair sample. A file is decoded when a batch needs it, every time: nothing is kept.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/random/permutation.h"
#include "data/images/image_source.h"
#include "data/images/options.h"
#include "data/images/picture.h"

namespace cairn::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPictureFilesMax = size_t{1} << 28;

struct PictureFile {
  std::string path;
  int64_t label = 0;
};

// The entries of a folder by name, without hidden ones.
std::vector<fs::directory_entry> entries_by_name(const std::string& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!it->path().filename().string().starts_with(".")) entries.push_back(*it);
  if (error) base::fail_input("{}: cannot be listed: {}. Give a folder with a folder for each class.", folder, error.message());
  std::ranges::sort(entries, {}, [](const fs::directory_entry& one) { return one.path().filename().string(); });
  return entries;
}

std::vector<std::string> class_folders(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& one : entries_by_name(folder))
    if (one.is_directory()) names.push_back(one.path().filename().string());
  return names;
}

std::vector<PictureFile> picture_files(const std::string& folder, const std::vector<std::string>& classes) {
  std::vector<PictureFile> files;
  for (const std::string& name : class_folders(folder)) {
    const auto found = std::ranges::find(classes, name);
    const std::string of_class = (fs::path(folder) / name).string();
    if (found == classes.end())
      base::fail_input("{}: a class without training pictures. Take the folder out, or give it some to train on.", of_class);
    const size_t before = files.size();
    for (const fs::directory_entry& one : entries_by_name(of_class))
      if (is_picture_name(one.path().filename().string()) && !one.is_directory())
        files.push_back({one.path().string(), found - classes.begin()});
    if (files.size() == before) base::fail_input("{}: no PNG or JPEG file there. Take the folder out, or put pictures into it.", of_class);
    if (files.size() > kPictureFilesMax) base::fail_input("{}: more than {} pictures. Use fewer.", folder, kPictureFilesMax);
  }
  return files;
}

class ImageFolder final : public ImageSource {
 public:
  ImageFolder(const std::string& path, const ImageOptions& options, double held_out_fraction) : channels_(options.channels) {
    if (channels_ != 1 && channels_ != 3)
      base::fail_input("images.channels = {}: pictures in files have 1 (grey values) or 3 (red, green and blue). Use one of them.",
                       channels_);
    std::error_code error;
    if (!fs::is_directory(path, error))
      base::fail_input("data.path = {}: no such folder. Give one that holds a folder with pictures for each class.", path);
    const auto inner = [&](const char* name) { return (fs::path(path) / name).string(); };
    const bool split = fs::is_directory(inner("train"), error);
    const std::string training = split ? inner("train") : path;
    outline_ = {.channels = channels_, .classes = 0, .class_names = class_folders(training)};
    outline_.classes = static_cast<int64_t>(outline_.class_names.size());
    if (outline_.classes < 2)
      base::fail_input("{}: {} of classes there, and at least two are needed. Put the pictures of each class into a folder of its own.",
                       training, outline_.classes == 1 ? "1 folder" : "no folder");
    if (options.classes > 0 && options.classes != outline_.classes)
      base::fail_input("images.classes = {}: {} has {} folders of classes. Leave the key out.", options.classes, training,
                       outline_.classes);
    const std::vector<PictureFile> files = picture_files(training, outline_.class_names);
    const base::Permutation order(files.size(), base::Random(1).for_purpose("images.order"));
    for (size_t i = 0; i < files.size(); ++i) files_.push_back(files[order.at(i)]);
    held_out_ = static_cast<int64_t>(static_cast<double>(files_.size()) * held_out_fraction);
    for (const char* name : {"test", "val"}) {
      if (!split || !fs::is_directory(inner(name), error)) continue;
      const std::vector<PictureFile> tests = picture_files(inner(name), outline_.class_names);
      held_out_ = static_cast<int64_t>(tests.size());
      // Those too in an order of their own: an evaluation may read the first of them only.
      const base::Permutation of_tests(std::max<size_t>(tests.size(), 1), base::Random(1).for_purpose("images.test_order"));
      for (size_t i = 0; i < tests.size(); ++i) files_.push_back(tests[of_tests.at(i)]);
      break;
    }
    if (held_out_ >= static_cast<int64_t>(files_.size()))
      base::fail_input("{}: {} pictures, all held out. Lower eval.fraction.", path, files_.size());
  }

  const ImageOutline& outline() const override { return outline_; }
  int64_t images() const override { return static_cast<int64_t>(files_.size()); }
  int64_t held_out() const override { return held_out_; }
  int64_t label(int64_t image) const override { return files_[static_cast<size_t>(image)].label; }

  // Of all names and sizes, and of what some files hold: to read all of them may take minutes.
  uint64_t digest() const override {
    constexpr size_t kFilesRead = 64;
    base::Checksum sum;
    const size_t stride = std::max<size_t>(1, files_.size() / kFilesRead);
    for (size_t i = 0; i < files_.size(); ++i) {
      const fs::path path = files_[i].path;
      std::error_code error;
      const std::string entry =
          fmt::format("{}/{} {};", path.parent_path().filename().string(), path.filename().string(), fs::file_size(path, error));
      sum.add(base::as_bytes(entry));
      if (i % stride != 0) continue;
      const std::string bytes = base::read_file(path, int64_t{1} << 28);
      sum.add(base::as_bytes(bytes));
    }
    return sum.value();
  }

  void read(int64_t image, ImageValues& into) const override {
    const Picture picture = read_picture(files_[static_cast<size_t>(image)].path, channels_);
    into.channels = picture.channels, into.height = picture.height, into.width = picture.width;
    const auto pixels = static_cast<size_t>(picture.height * picture.width), channels = static_cast<size_t>(picture.channels);
    into.values.resize(pixels * channels);
    for (size_t channel = 0; channel < channels; ++channel)
      for (size_t i = 0; i < pixels; ++i)
        into.values[channel * pixels + i] = (static_cast<float>(picture.values[i * channels + channel]) - 127.5f) / 127.5f;
  }

 private:
  int64_t channels_;
  ImageOutline outline_;
  std::vector<PictureFile> files_;
  int64_t held_out_ = 0;
};

}  // namespace

std::unique_ptr<ImageSource> open_image_folder(const std::string& path, const ImageOptions& options, double held_out_fraction) {
  return std::make_unique<ImageFolder>(path, options, held_out_fraction);
}

}  // namespace cairn::data
