// Bad inputs: PNG and JPEG files in folders of classes, NumPy's arrays, directories of vision transformers.
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using Spoil = std::function<void(const HostileFolder&)>;

std::string unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// 4 x 3 pixels.
std::string good_png() {
  return unhex(
      "89504e470d0a1a0a0000000d49484452000000040000000308020000003b963991000000284944415478da0dc74101003010c2b0ca4104224e0e122b"
      "6bcb2f80c1c321d4d4abebcfccbcb9f900feaf0f015660ee0e0000000049454e44ae426082");
}

// 8 x 6 pixels.
std::string good_jpeg() {
  return unhex(
      "ffd8ffe000104a46494600010100000100010000ffdb0043000201010101010201010102020202020403020202020504040304060506060605060606"
      "070908060709070606080b08090a0a0a0a0a06080b0c0b0a0c090a0a0affdb004301020202020202050303050a0706070a0a0a0a0a0a0a0a0a0a0a0a"
      "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0affc00011080006000803011100021101031101ffc400"
      "14000100000000000000000000000000000007ffc4001b10000007010000000000000000000000000002050607212291ffc400150101010000000000"
      "0000000000000000000509ffc4001b11000201050000000000000000000000000003050407212381ffda000c03010002110311003f00106ac56999b2"
      "701169261baf851daf9e7e4fffd9");
}

std::string npy_file(const std::string& type, const std::string& shape, const std::string& data) {
  const std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}

std::vector<std::string> on_pictures(const std::vector<std::string>& more) {
  std::vector<std::string> all{"train"};
  for (const char* set : {"data.kind=images", "data.path=d", "model.kind=cnn", "images.size=4", "train.global_batch=2", "train.steps=1",
                          "eval.fraction=0", "eval.every=0"})
    all.insert(all.end(), {"--set", set});
  for (const std::string& set : more) all.insert(all.end(), {"--set", set});
  all.insert(all.end(), {"--out", "x"});
  return all;
}

HostileCase folder_case(const std::string& name, const Spoil& spoil, std::vector<std::string> said,
                        const std::vector<std::string>& more = {}) {
  return {"pictures", name, on_pictures(more),
          [spoil](const HostileFolder& in) {
            for (const char* folder : {"d", "d/cat", "d/dog"}) in.folder(folder);
            in.file("d/cat/a.png", good_png());
            in.file("d/dog/a.jpg", good_jpeg());
            spoil(in);
          },
          std::move(said)};
}

HostileCase png(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.emplace_back("cat/a.png");
  return folder_case(
      name, [bytes](const HostileFolder& in) { in.file("d/cat/a.png", bytes); }, std::move(said));
}

HostileCase jpeg(const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
  said.emplace_back("dog/a.jpg");
  return folder_case(
      name, [bytes](const HostileFolder& in) { in.file("d/dog/a.jpg", bytes); }, std::move(said));
}

HostileCase array(const std::string& name, const Bytes& images, const Bytes& labels, std::vector<std::string> said) {
  return {"pictures", name, on_pictures({"images.channels=1", "images.size=2"}),
          [images, labels](const HostileFolder& in) {
            in.folder("d");
            in.file("d/images.npy", images);
            in.file("d/labels.npy", labels);
          },
          std::move(said)};
}

std::string changed(std::string bytes, size_t at, char to) {
  bytes[at] = to;
  return bytes;
}

}  // namespace

HostileCases hostile_pictures() {
  const std::string png_bytes = good_png(), jpeg_bytes = good_jpeg();
  const std::string images = npy_file("|u1", "(2, 2, 2)", std::string(8, 'a')),
                    labels = npy_file("|u1", "(2,)", std::string("\x00\x01", 2));
  const size_t frame = jpeg_bytes.find("\xff\xc0");
  return {
      png("png_empty", "", {"no PNG or JPEG"}),
      png("png_cut_off", png_bytes.substr(0, 60), {"damaged PNG"}),
      png("png_wrong_checksum", changed(png_bytes, 50, '\x7f'), {"damaged PNG"}),
      png("png_two_thousand_million_wide", changed(png_bytes, 16, '\x7f'), {"a.png"}),
      png("png_a_gif", "GIF89a", {"no PNG or JPEG"}),
      png("png_nothing_but_the_first_bytes", png_bytes.substr(0, 8), {"damaged PNG"}),
      jpeg("jpeg_cut_off", jpeg_bytes.substr(0, 250), {"damaged JPEG"}),
      jpeg("jpeg_without_tables", jpeg_bytes.substr(0, 20) + jpeg_bytes.substr(frame), {"damaged JPEG"}),
      jpeg("jpeg_65535_pixels_wide_and_high", changed(changed(jpeg_bytes, frame + 5, '\xff'), frame + 7, '\xff'), {"pixels, and at most"}),
      jpeg("jpeg_two_bytes", "\xff\xd8", {"no PNG or JPEG"}),
      jpeg("jpeg_text", "once upon a time", {"no PNG or JPEG"}),
      folder_case("picture_a_pipe", [](const HostileFolder& in) { in.remove("d/cat/a.png"), in.pipe("d/cat/a.png"); },
                  {"a.png", "not a regular file"}),
      folder_case("picture_of_a_gigabyte",
                  [](const HostileFolder& in) { in.remove("d/cat/a.png"), in.sparse("d/cat/a.png", "", int64_t{1} << 30); }, {"a.png"}),
      folder_case("class_without_pictures", [](const HostileFolder& in) { in.remove("d/cat/a.png"); }, {"d/cat", "no PNG or JPEG"}),
      folder_case("one_class", [](const HostileFolder& in) { in.remove("d/dog/a.jpg"), in.remove("d/dog"); }, {"1 folder of classes"}),
      folder_case("images_keys_of_five_channels", [](const HostileFolder&) {}, {"images.channels = 5"}, {"images.channels=5"}),
      array("array_no_numpy", "PK", labels, {"images.npy", "is not a NumPy file"}),
      array("array_header_of_four_gigabytes", std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), labels,
            {"images.npy", "ends within its header"}),
      array("array_shape_beyond_64_bits", npy_file("|u1", "(4294967296, 4294967296, 4)", "aaaa"), labels, {"images.npy", "too large"}),
      array("array_shape_negative", npy_file("|u1", "(-2, 2, 2)", std::string(8, 'a')), labels, {"images.npy", "shape"}),
      array("array_objects", npy_file("|O", "(2, 2, 2)", std::string(64, 'a')), labels, {"images.npy", "does not hold"}),
      array("array_shorter_than_its_shape", npy_file("|u1", "(2, 2, 2)", "a"), labels, {"images.npy", "holds 1 values"}),
      array("array_nine_dims", npy_file("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 8)", std::string(8, 'a')), labels, {"images.npy"}),
      array("labels_below_zero", images, npy_file("<i4", "(2,)", std::string("\x00\x00\x00\x00\xff\xff\xff\xff", 8)),
            {"labels.npy", "label 1 is -1"}),
      array("labels_one_too_many", images, npy_file("|u1", "(3,)", "aaa"), {"labels.npy", "3 labels for 2 images"}),
      array("labels_all_the_same", images, npy_file("|u1", "(2,)", std::string(2, '\0')), {"at least two classes"}),
  };
}

}  // namespace cairn::study
