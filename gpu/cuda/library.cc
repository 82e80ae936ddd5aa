#include "gpu/cuda/library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::cuda {

absl::StatusOr<Library> Library::Open(const LibraryOptions& options) {
  std::string first_error;
  for (const std::string& file : options.files) {
    void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return Library(options, file, handle);
    if (first_error.empty()) first_error = ::dlerror();
  }
  return absl::FailedPreconditionError(absl::StrCat("device: cuda needs ", options.name, " ",
                                                    options.wanted, "; found none: ", first_error,
                                                    "; install it or set LD_LIBRARY_PATH"));
}

Library::Library(const LibraryOptions& options, std::string file, void* handle)
    : name_(options.name), wanted_(options.wanted), file_(std::move(file)), handle_(handle) {}

absl::Status Library::Resolve(absl::Span<const Symbol> symbols) const {
  for (const Symbol& symbol : symbols) {
    *symbol.member = ::dlsym(handle_, symbol.name);
    if (*symbol.member != nullptr) continue;
    return absl::FailedPreconditionError(absl::StrCat("device: cuda needs ", name_, " ", wanted_,
                                                      "; found ", file_, " without ", symbol.name,
                                                      "; install a newer one"));
  }
  return absl::OkStatus();
}

absl::Status Library::CheckVersion(bool is_enough, absl::string_view found) const {
  if (is_enough) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("device: cuda needs ", name_, " ", wanted_,
                                                    "; found ", found, " (", file_,
                                                    "); install a newer one"));
}

std::vector<std::string> ToolkitFiles(absl::string_view file) {
  return {std::string(file), absl::StrCat("/usr/local/cuda/lib64/", file)};
}

}  // namespace megascale::cuda
