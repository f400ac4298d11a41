// Reads a file from front to back in pieces of bounded size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace cairn::data {

// Size, identity and times of a file. Equal stamps mean that nobody has written to it in between.
struct FileStamp {
  int64_t bytes = 0;
  int64_t inode = 0;
  int64_t device = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// Missing, unreadable, a folder, or not a regular file: bad_input with the path and the reason. The file is not mapped, so one that
// somebody truncates meanwhile simply ends there.
class FileReader {
 public:
  explicit FileReader(std::string path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  size_t read(char* into, size_t bytes);  // returns fewer bytes only at the end
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
