#include "train/report/gather_texts.h"

#include "comm/group.h"

namespace cairn::train {

std::vector<std::string> gather_texts(comm::Group& group, const std::string& own, std::string_view what) {
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  int64_t size = static_cast<int64_t>(own.size());
  group.all_gather({sizes.data(), group.size(), comm::Dtype::i64}, {&size, 1, comm::Dtype::i64}, {comm::Purpose::control, what})
      .wait_host();
  int64_t total = 0;
  for (int64_t n : sizes) total += n;
  std::string all(static_cast<size_t>(total), '\0');
  std::string mine = own;
  group.all_gather({all.data(), total, comm::Dtype::u8}, {mine.data(), size, comm::Dtype::u8}, {comm::Purpose::control, what}, sizes)
      .wait_host();
  std::vector<std::string> texts;
  size_t at = 0;
  for (int64_t n : sizes) {
    texts.push_back(all.substr(at, static_cast<size_t>(n)));
    at += static_cast<size_t>(n);
  }
  return texts;
}

}  // namespace cairn::train
