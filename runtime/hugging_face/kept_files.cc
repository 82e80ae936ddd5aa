#include "runtime/hugging_face/kept_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::hugging_face {
namespace {

constexpr size_t kFileBytesMax = 64 << 20;

constexpr absl::string_view kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model",         kTokenizerConfigFile, "vocab.json",
    "merges.txt",     "special_tokens_map.json", "added_tokens.json",  "chat_template.jinja",
};

absl::Status CopyIfThere(const std::string& from, absl::string_view name, const WriteFile& write) {
  const auto text = base::ReadFile(absl::StrCat(from, "/", name), kFileBytesMax);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  return write(name, *text);
}

}  // namespace

bool Exists(const std::string& folder, absl::string_view name) {
  std::error_code error;
  // Also a broken link, so that who reads it says so.
  return std::filesystem::exists(
      std::filesystem::symlink_status(absl::StrCat(folder, "/", name), error));
}

std::string KeptFolderOf(const std::string& checkpoint) {
  return absl::StrCat(checkpoint, "/hugging_face");
}

absl::Status MakeEmptyFolder(const std::string& path) {
  RETURN_IF_ERROR(base::MakeDirectories(path));
  std::error_code error;
  const bool is_empty = std::filesystem::is_empty(path, error);
  if (error) return base::ErrnoStatus(error.value(), path);
  if (is_empty) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(path, ": is not empty: expected a new folder, or an empty one"));
}

absl::Status CopyTokenizerFiles(const std::string& from, const WriteFile& write) {
  for (const absl::string_view name : kTokenizerFiles) {
    RETURN_IF_ERROR(CopyIfThere(from, name, write));
  }
  return absl::OkStatus();
}

absl::Status CopyKeptFiles(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(base::MakeDirectories(to));
  const auto write = [&](absl::string_view name, absl::string_view text) {
    return base::WriteFileDurably(absl::StrCat(to, "/", name), text);
  };
  RETURN_IF_ERROR(CopyTokenizerFiles(from, write));
  return CopyIfThere(from, kGenerationConfigFile, write);
}

}  // namespace megascale::hugging_face
