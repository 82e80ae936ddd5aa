#include "runtime/data/tokenizer/files/tokenizer_file.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kFileBytesMax = size_t{64} << 20;

bool IsFolder(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool Exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, base::ReadFile(path, kFileBytesMax));
  absl::StatusOr<TokenizerParts> parts =
      absl::EndsWith(path, ".model") ? ParseSentencePiece(content) : ParseTokenizerJson(content);
  if (!parts.ok()) return base::Annotate(parts.status(), path);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(parts));
  if (!tokenizer.ok()) return base::Annotate(tokenizer.status(), path);
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::string> FindTokenizerFile(const std::string& path) {
  if (!IsFolder(path)) {
    if (Exists(path)) return path;
    return absl::NotFoundError(absl::StrCat("tokenizer ", path, ": does not exist"));
  }
  for (const char* name : {"/tokenizer.json", "/tokenizer.model"}) {
    const std::string file = absl::StrCat(path, name);
    if (Exists(file)) return file;
  }
  return absl::NotFoundError(absl::StrCat(
      "tokenizer folder ", path, ": has neither tokenizer.json nor tokenizer.model; expected one"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  if (!IsFolder(path)) return LoadFile(path);
  ASSIGN_OR_RETURN(const std::string file, FindTokenizerFile(path));
  return LoadFile(file);
}

}  // namespace megascale::tokenizer
