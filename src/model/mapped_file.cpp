// mmap of a model file; see mapped_file.h.
#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace takt {

Result<MappedFile> MappedFile::open(const std::string& path) {
    auto failure = [&](const char* what) { return Error{path + ": " + what + ": " + std::strerror(errno)}; };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return failure("cannot be opened");
    struct stat info {};
    MappedFile file;
    if (::fstat(fd, &info) != 0) {
        const Error error = failure("cannot be read");
        ::close(fd);
        return error;
    }
    if (!S_ISREG(info.st_mode)) {
        ::close(fd);
        return Error{path + ": not a regular file"};
    }
    file.bytes_ = static_cast<size_t>(info.st_size);
    if (file.bytes_ > 0) {
        void* data = ::mmap(nullptr, file.bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            const Error error = failure("cannot be mapped");
            ::close(fd);
            file.bytes_ = 0;
            return error;
        }
        file.data_ = data;
    }
    ::close(fd);
    return file;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace takt
