#include "checkpoint/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace deepinfer {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Status check_kind(const std::string& path, const struct stat& info) {
  if (S_ISDIR(info.st_mode)) return invalid_input("{} is a folder, expected a file", path);
  if (!S_ISREG(info.st_mode)) return invalid_input("{} is not a regular file; copy its content into one", path);
  if (info.st_size == 0) return invalid_input("{} is empty; download it again", path);
  return {};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe by mistake must not wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT) return not_found("{} does not exist; check the path or download the file", path);
    return io_error("cannot open {}: {}; check its permissions", path, std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return io_error("cannot stat {}: {}", path, std::strerror(errno));
  DI_RETURN_IF_ERROR(check_kind(path, info));
  const auto size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED)
    return io_error("cannot map {} ({} bytes): {}; raise the limit of address space (ulimit -v)", path, size,
                    std::strerror(errno));
  MappedFile mapped({static_cast<const std::byte*>(address), size});
  if (mapped.text().starts_with("version https://git-lfs"))
    return invalid_input("{} is a Git LFS pointer, not the file itself; fetch the content with `git lfs pull`", path);
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

void advise(std::span<const std::byte> range, AccessAdvice advice) {
  if (range.empty()) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(range.data()) & ~(page - 1);
  const auto end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  const int flag = advice == AccessAdvice::kRandom     ? MADV_RANDOM
                   : advice == AccessAdvice::kWillNeed ? MADV_WILLNEED
                                                       : MADV_DONTNEED;
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, flag);
}

}  // namespace deepinfer
