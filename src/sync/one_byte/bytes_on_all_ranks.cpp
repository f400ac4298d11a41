#include "sync/one_byte/bytes_on_all_ranks.h"

#include "comm/group.h"

namespace cairn::sync {

void bytes_on_all_ranks(comm::Group& group, std::vector<std::byte>& bytes, std::string_view what) {
  if (group.size() == 1) return;
  auto size = static_cast<int64_t>(bytes.size());
  group.broadcast({&size, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, what}).wait_host();
  bytes.resize(static_cast<size_t>(size));
  if (size > 0) group.broadcast({bytes.data(), size, comm::Dtype::u8}, 0, {comm::Purpose::data, what}).wait_host();
}

}  // namespace cairn::sync
