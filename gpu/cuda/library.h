// Opens a shared library of CUDA and finds its functions. If the library cannot be used, the error
// is one line that says which library, what was wanted, and what was found.
//
//   ASSIGN_OR_RETURN(Library library, Library::Open({.name = "NCCL", .files = {"libnccl.so.2"}}));
//   RETURN_IF_ERROR(library.Resolve(symbols));
//   RETURN_IF_ERROR(library.CheckVersion(version >= 22700, "2.19.3"));
//
// A library stays open until the process ends, because its threads and handlers would survive a
// dlclose.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::cuda {

// A function's name, and the member of the table that receives its address.
struct Symbol {
  const char* name;
  void** member;
};

// For a table that is defined by a list of functions; `function` is an element of the list.
#define MEGASCALE_TABLE_MEMBER(function) decltype(&::function) function = nullptr;
#define MEGASCALE_TABLE_SYMBOL(function) \
  ::megascale::cuda::Symbol{#function, reinterpret_cast<void**>(&table.function)},

struct LibraryOptions {
  std::string name;                // for people: "the CUDA runtime"
  std::string wanted;              // for people: "13.0 or newer (libcudart.so.13)"
  std::vector<std::string> files;  // tried in this order; without a slash: as the system searches
};

class Library {
 public:
  // Errors: FailedPrecondition - no file could be opened.
  static absl::StatusOr<Library> Open(const LibraryOptions& options);

  // Sets the members of `symbols`. Errors: FailedPrecondition - the library lacks a function.
  absl::Status Resolve(absl::Span<const Symbol> symbols) const;

  // Errors: FailedPrecondition with `found` in the message, unless `is_enough`.
  absl::Status CheckVersion(bool is_enough, absl::string_view found) const;

 private:
  Library(const LibraryOptions& options, std::string file, void* handle);

  std::string name_;
  std::string wanted_;
  std::string file_;
  void* handle_ = nullptr;
};

// Returns the names under which to look for a library of the toolkit: as the system searches, then
// where the toolkit is usually installed.
std::vector<std::string> ToolkitFiles(absl::string_view file);

}  // namespace megascale::cuda
