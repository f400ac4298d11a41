#include "comm/net/sent_bytes.h"

#ifdef __linux__
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#endif

namespace cairn::comm {

int64_t sent_bytes(int fd) {
#ifdef __linux__
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) return static_cast<int64_t>(info.tcpi_bytes_sent);
#else
  (void)fd;
#endif
  return 0;
}

}  // namespace cairn::comm
