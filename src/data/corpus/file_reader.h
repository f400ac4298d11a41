// Reads a file from front to back in pieces, without ever holding all of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cairn::data {

// What the system says about a file; equal stamps mean that nobody has written to it since.
struct FileStamp {
  int64_t bytes = 0;
  int64_t inode = 0;
  int64_t device = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// Missing, unreadable, a folder, or not a regular file: bad_input with the path and the reason. A file that is cut short by somebody
// else while it is read simply ends there: nothing is mapped into memory.
class FileReader {
 public:
  explicit FileReader(std::string path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  size_t read(char* into, size_t bytes);  // fewer only at the end
  const FileStamp& stamp() const { return stamp_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
  FileStamp stamp_;
};

// XXH3 of the content.
uint64_t hash_content(FileReader& file);

}  // namespace cairn::data
