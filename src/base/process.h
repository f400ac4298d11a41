// What the system says of processes and of this host.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::base {

// The name of this host; "localhost" where it has none.
std::string host_name();

// The fields of /proc/PID/stat after the program's name: [0] is field 3 of proc(5), the state. Empty where there is no such process.
std::vector<std::string> process_stat(int64_t process);
inline constexpr size_t kFirstStatField = 3;  // field n is process_stat(...)[n - kFirstStatField]

}  // namespace cairn::base
