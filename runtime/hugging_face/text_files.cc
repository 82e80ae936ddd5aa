#include "runtime/hugging_face/text_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/hugging_face/end_tokens.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kTokenizerBytesMax = 64 << 20;
constexpr char kEndTokens[] = "eos_token_id";
// Tokens that belong to the origin's tokenizer, beside the end tokens.
constexpr const char* kOtherTokens[] = {"bos_token_id", "pad_token_id"};

// Returns a folder's tokenizer file of the kinds that a checkpoint keeps; "" without one.
std::string TokenizerNameIn(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (Exists(folder, name)) return name;
  }
  return "";
}

bool HasFile(const std::string& folder, const std::string& name, const std::string& content) {
  if (folder.empty()) return false;
  const auto found = base::ReadFile(absl::StrCat(folder, "/", name), kTokenizerBytesMax);
  return found.ok() && *found == content;
}

// Returns the folder of what `data.tokenizer` names.
std::string FolderOf(const std::string& tokenizer) {
  std::error_code error;
  const std::filesystem::path path(tokenizer);
  if (tokenizer.empty() || std::filesystem::is_directory(path, error)) return tokenizer;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

absl::StatusOr<OrderedJson> ReadObject(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kConfigBytesMax));
  RETURN_IF_ERROR(base::Annotate(base::CheckJsonNesting(text), path));
  OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
}

// True for what a token field of a configuration may have: null, an id, or a list of ids.
bool AreTokens(const OrderedJson& value) {
  const auto is_id = [](const OrderedJson& one) { return one.is_number_unsigned(); };
  if (value.is_array()) return std::all_of(value.begin(), value.end(), is_id);
  return value.is_null() || is_id(value);
}

OrderedJson ToJson(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? OrderedJson(ids[0]) : OrderedJson(ids);
}

}  // namespace

absl::StatusOr<TextFiles> TextFiles::Find(TextFilesOptions options) {
  TextFiles files(std::move(options));
  RETURN_IF_ERROR(files.FindTokenizer());
  RETURN_IF_ERROR(files.FindEndTokens());
  return files;
}

absl::Status TextFiles::FindTokenizer() {
  if (!options_.is_of_job) {
    tokenizer_folder_ = options_.origin;
    keeps_origins_ = true;
    return absl::OkStatus();
  }
  const std::string name = TokenizerNameIn(options_.checkpoint);
  if (name.empty()) return absl::OkStatus();  // it was trained on bytes
  ASSIGN_OR_RETURN(
      const std::string content,
      base::ReadFile(absl::StrCat(options_.checkpoint, "/", name), kTokenizerBytesMax));
  if (HasFile(options_.origin, name, content)) {
    tokenizer_folder_ = options_.origin;
    keeps_origins_ = true;
    return absl::OkStatus();
  }
  const std::string named = FolderOf(options_.tokenizer);
  const bool has_config = HasFile(named, name, content) && Exists(named, kTokenizerConfigFile);
  tokenizer_folder_ = has_config ? named : options_.checkpoint;
  // A SentencePiece model is loaded by the class of its architecture.
  needs_config_ =
      !has_config && name == "tokenizer.json" && !Exists(options_.checkpoint, kTokenizerConfigFile);
  return absl::OkStatus();
}

absl::Status TextFiles::FindEndTokens() {
  if (keeps_origins_ && !options_.origin.empty()) {
    auto found = ReadEndTokens(options_.origin);
    // What is only copied need not be understood.
    if (!found.ok() && options_.is_of_job) return found.status();
    if (found.ok()) end_tokens_ = *std::move(found);
  }
  has_other_end_tokens_ = !keeps_origins_;
  if (!options_.end_token) return absl::OkStatus();
  const int32_t id = options_.end_token->id;
  if (std::find(end_tokens_.begin(), end_tokens_.end(), id) != end_tokens_.end()) {
    return absl::OkStatus();
  }
  end_tokens_.push_back(id);
  has_other_end_tokens_ = true;
  return absl::OkStatus();
}

std::string TextFiles::WithEndTokens(const std::string& config, bool is_new) const {
  if (!is_new && !has_other_end_tokens_) return config;
  OrderedJson json = OrderedJson::parse(config, nullptr, /*allow_exceptions=*/false);
  json[kEndTokens] = ToJson(end_tokens_);
  OrderedJson of_origin = OrderedJson::object();
  if (is_new && keeps_origins_ && !options_.origin.empty()) {
    auto found = ReadObject(absl::StrCat(options_.origin, "/", kConfigFile));
    if (found.ok()) of_origin = *std::move(found);
  }
  for (const char* field : kOtherTokens) {
    const auto found = of_origin.find(field);
    if (found != of_origin.end() && AreTokens(*found)) json[field] = *found;
    if (!keeps_origins_ && json.contains(field)) json[field] = nullptr;
  }
  return json.dump(2) + "\n";
}

std::string TextFiles::TokenizerConfig() const {
  OrderedJson json;
  // Without a class `transformers` takes that of the architecture, which may add tokens of its own.
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (options_.end_token && !options_.end_token->text.empty()) {
    json["eos_token"] = options_.end_token->text;
  }
  if (options_.positions > 0) json["model_max_length"] = options_.positions;
  json["clean_up_tokenization_spaces"] = false;
  return json.dump(2) + "\n";
}

absl::Status TextFiles::WriteGenerationConfig(const WriteFile& write) const {
  if (options_.origin.empty()) return absl::OkStatus();
  const std::string path = absl::StrCat(options_.origin, "/", kGenerationConfigFile);
  auto text = base::ReadFile(path, kConfigBytesMax);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  if (has_other_end_tokens_) {
    ASSIGN_OR_RETURN(OrderedJson json, ReadObject(path));
    json[kEndTokens] = ToJson(end_tokens_);
    for (const char* field : kOtherTokens) {
      if (!keeps_origins_) json.erase(field);
    }
    *text = json.dump(2) + "\n";
  }
  return write(kGenerationConfigFile, *text);
}

absl::Status TextFiles::Write(const WriteFile& write) const {
  if (!tokenizer_folder_.empty()) RETURN_IF_ERROR(CopyTokenizerFiles(tokenizer_folder_, write));
  if (needs_config_) RETURN_IF_ERROR(write(kTokenizerConfigFile, TokenizerConfig()));
  return WriteGenerationConfig(write);
}

}  // namespace megascale::hugging_face
