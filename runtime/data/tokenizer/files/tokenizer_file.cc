#include "runtime/data/tokenizer/files/tokenizer_file.h"

#include <sys/stat.h>

#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/tokenizer/files/json_object.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/files/settings.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/data/tokenizer/files/vocabulary_files.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kFileBytesMax = size_t{64} << 20;

bool IsFolder(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// Also for a broken link, so that who reads it says so.
bool Exists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

constexpr char kJsonFile[] = "tokenizer.json";
constexpr char kModelFile[] = "tokenizer.model";

absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& folder,
                                                       const char* name) {
  const std::string path = absl::StrCat(folder, "/", name);
  if (!Exists(path)) return std::nullopt;
  ASSIGN_OR_RETURN(std::string content, base::ReadFile(path, kFileBytesMax));
  return content;
}

absl::StatusOr<SettingsFiles> ReadSettingsFiles(const std::string& folder) {
  SettingsFiles files;
  ASSIGN_OR_RETURN(files.tokenizer_config, ReadIfThere(folder, kConfigFile));
  ASSIGN_OR_RETURN(files.special_tokens_map, ReadIfThere(folder, kMapFile));
  ASSIGN_OR_RETURN(files.added_tokens, ReadIfThere(folder, kAddedFile));
  ASSIGN_OR_RETURN(files.config, ReadIfThere(folder, kModelConfigFile));
  return files;
}

// Names the class that the model's configuration names, for a folder without that. Its defaults do
// not count where the tokenizer's file lacks them.
std::string WithClass(const std::optional<std::string>& config, const Settings& settings,
                      const std::vector<std::string>& tokens) {
  auto json = ParseJson(config.value_or("{}"));
  if (!json.ok() || settings.class_is_named) return config.value_or("{}");
  TokenizerClass tokenizer_class = settings.tokenizer_class;
  for (const NamedToken& named : settings.special) {
    const std::string& content = named.token.content;
    if (!named.is_default || tokens.empty() || absl::c_linear_search(tokens, content)) continue;
    (*json)[named.field] = nullptr;
    if (settings.adds_begin && settings.begin_token == content) {
      tokenizer_class = TokenizerClass::kPlain;
    }
  }
  (*json)["tokenizer_class"] = std::string(NameOf(tokenizer_class));
  return json->dump(2) + "\n";
}

// The files that describe a tokenizer, and what they are.
struct TokenizerFiles {
  enum class Kind { kJson, kModel, kVocabulary };
  Kind kind = Kind::kJson;
  std::string folder;  // whose settings count; empty: none
  std::vector<LoadedTokenizer::File> files;

  bool is_json() const { return kind == Kind::kJson; }
};

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& path,
                                                  const std::string& folder) {
  TokenizerFiles read;
  read.folder = folder;
  if (absl::EndsWith(path, ".model")) read.kind = TokenizerFiles::Kind::kModel;
  if (absl::EndsWith(path, absl::StrCat("/", kVocabularyFile)) || path == kVocabularyFile) {
    read.kind = TokenizerFiles::Kind::kVocabulary;
    if (folder.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is the vocabulary alone; name its folder, with ", kMergesFile));
    }
  }
  ASSIGN_OR_RETURN(std::string content, base::ReadFile(path, kFileBytesMax));
  const char* const names[] = {kJsonFile, kModelFile, kVocabularyFile};
  read.files.push_back({names[static_cast<int>(read.kind)], std::move(content)});
  if (read.kind != TokenizerFiles::Kind::kVocabulary) return read;
  ASSIGN_OR_RETURN(auto merges, ReadIfThere(folder, kMergesFile));
  if (!merges) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": has ", kVocabularyFile, ", but no ",
                                                   kMergesFile, "; expected both, or a ",
                                                   kJsonFile));
  }
  read.files.push_back({kMergesFile, *std::move(merges)});
  return read;
}

absl::StatusOr<TokenizerParts> ReadParts(const TokenizerFiles& read, const Settings& settings) {
  const std::string& content = read.files[0].content;
  switch (read.kind) {
    case TokenizerFiles::Kind::kJson:
      return ParseTokenizerJson(content);
    case TokenizerFiles::Kind::kVocabulary:
      return ParseVocabularyFiles(content, read.files[1].content, settings);
    case TokenizerFiles::Kind::kModel:
      break;
  }
  if (read.folder.empty()) return ParseSentencePiece(content);
  ASSIGN_OR_RETURN(const LlamaOptions options, LlamaOptionsOf(settings));
  return ParseSentencePieceAsLlama(content, options);
}

absl::StatusOr<LoadedTokenizer> Load(const std::string& path, const std::string& folder) {
  ASSIGN_OR_RETURN(TokenizerFiles read, ReadTokenizerFiles(path, folder));
  const bool is_vocabulary = read.kind == TokenizerFiles::Kind::kVocabulary;
  SettingsFiles files;
  Settings settings;
  if (!folder.empty()) {
    ASSIGN_OR_RETURN(files, ReadSettingsFiles(folder));
    auto found =
        ReadSettings(files, read.kind == TokenizerFiles::Kind::kModel ? TokenizerClass::kLlama
                                                                      : TokenizerClass::kPlain);
    if (!found.ok()) return base::Annotate(found.status(), folder);
    settings = *std::move(found);
  }
  auto parts = ReadParts(read, settings);
  if (!parts.ok()) return base::Annotate(parts.status(), is_vocabulary ? folder : path);
  const std::string sha256 = parts->sha256;
  const std::vector<std::string> tokens =
      read.is_json() && !settings.class_is_named ? parts->tokens : std::vector<std::string>();
  // A tokenizer.json without any other file is as if it were named itself.
  const bool is_alone = read.is_json() && !files.tokenizer_config && !files.special_tokens_map &&
                        !files.added_tokens && !files.config;
  if (!folder.empty() && !is_alone) {
    RETURN_IF_ERROR(base::Annotate(ApplySettings(settings, read.is_json(), &*parts), folder));
  }
  LoadedTokenizer loaded;
  loaded.files = std::move(read.files);
  if (parts->sha256 != sha256) {
    loaded.files.push_back({kConfigFile, WithClass(files.tokenizer_config, settings, tokens)});
    if (files.special_tokens_map) loaded.files.push_back({kMapFile, *files.special_tokens_map});
    if (files.added_tokens) loaded.files.push_back({kAddedFile, *files.added_tokens});
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(parts));
  if (!tokenizer.ok()) return base::Annotate(tokenizer.status(), path);
  loaded.tokenizer = *std::move(tokenizer);
  return loaded;
}

}  // namespace

absl::StatusOr<std::string> FindTokenizerFile(const std::string& path) {
  if (!IsFolder(path)) {
    if (Exists(path)) return path;
    return absl::NotFoundError(absl::StrCat("tokenizer ", path, ": does not exist"));
  }
  for (const char* name : {kJsonFile, kModelFile, kVocabularyFile}) {
    const std::string file = absl::StrCat(path, "/", name);
    if (Exists(file)) return file;
  }
  return absl::NotFoundError(
      absl::StrCat("tokenizer folder ", path,
                   ": has no tokenizer.json, tokenizer.model or vocab.json; expected "
                   "one"));
}

absl::StatusOr<std::string> TokenizerOfCheckpoint(const std::string& checkpoint) {
  ASSIGN_OR_RETURN(std::string file, FindTokenizerFile(checkpoint));
  return Exists(absl::StrCat(checkpoint, "/", kConfigFile)) ? checkpoint : file;
}

absl::StatusOr<LoadedTokenizer> LoadTokenizerWithFiles(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, FindTokenizerFile(path));
  return Load(file, IsFolder(path) ? path : "");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(LoadedTokenizer loaded, LoadTokenizerWithFiles(path));
  return std::move(loaded.tokenizer);
}

}  // namespace megascale::tokenizer
