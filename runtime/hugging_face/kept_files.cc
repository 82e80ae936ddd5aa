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

absl::Status CopyIfThere(const std::string& from, const std::string& to, absl::string_view name) {
  const auto text = base::ReadFile(absl::StrCat(from, "/", name), kFileBytesMax);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  return base::WriteFileDurably(absl::StrCat(to, "/", name), *text);
}

}  // namespace

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

absl::Status CopyTokenizerFiles(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(base::MakeDirectories(to));
  for (const absl::string_view name : kTokenizerFiles) {
    RETURN_IF_ERROR(CopyIfThere(from, to, name));
  }
  return absl::OkStatus();
}

absl::Status CopyKeptFiles(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(CopyTokenizerFiles(from, to));
  return CopyIfThere(from, to, kGenerationConfigFile);
}

}  // namespace megascale::hugging_face
