#include "base/version.h"

#include <cstring>

#include <elf.h>
#include <link.h>

namespace cairn::base {
namespace {

constexpr size_t padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

// The build id among the notes of a segment, in hex; empty where it is not there.
std::string id_in_notes(const char* notes, size_t bytes) {
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, content = name + padded(note.n_namesz);
    if (content + note.n_descsz > bytes) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string hex;
      for (size_t i = 0; i < note.n_descsz; ++i) {
        const auto byte = static_cast<unsigned char>(notes[content + i]);
        hex += "0123456789abcdef"[byte >> 4];
        hex += "0123456789abcdef"[byte & 15];
      }
      return hex;
    }
    at = content + padded(note.n_descsz);
  }
  return {};
}

// Called for each part of the process; the program itself is the first.
int look(dl_phdr_info* part, size_t, void* into) {
  for (size_t i = 0; i < part->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = part->dlpi_phdr[i];
    std::string& id = *static_cast<std::string*>(into);
    if (segment.p_type == PT_NOTE && id.empty())
      id = id_in_notes(reinterpret_cast<const char*>(part->dlpi_addr + segment.p_vaddr), segment.p_memsz);
  }
  return 1;
}

}  // namespace

std::string version() { return CAIRN_VERSION; }

std::string build_id() {
  std::string id;
  dl_iterate_phdr(look, &id);
  return id.empty() ? "unknown" : id;
}

}  // namespace cairn::base
