#include "runtime/data/tokenizer/files/settings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/data/tokenizer/files/json_object.h"

namespace megascale::tokenizer {
namespace {

constexpr SettingsField kFields[] = {
    {"add_bos_token", FieldUse::kRead},
    {"add_eos_token", FieldUse::kRead},
    {"add_prefix_space", FieldUse::kRead},
    {"added_tokens_decoder", FieldUse::kRead},
    {"additional_special_tokens", FieldUse::kRead},
    {"bos_token", FieldUse::kRead},
    {"cls_token", FieldUse::kRead},
    {"eos_token", FieldUse::kRead},
    {"eot_token", FieldUse::kRead},
    {"extra_special_tokens", FieldUse::kRead},
    {"legacy", FieldUse::kRead},
    {"mask_token", FieldUse::kRead},
    {"middle_token", FieldUse::kRead},
    {"model_specific_special_tokens", FieldUse::kRead},
    {"pad_token", FieldUse::kRead},
    {"prefix_token", FieldUse::kRead},
    {"sep_token", FieldUse::kRead},
    {"suffix_token", FieldUse::kRead},
    {"tokenizer_class", FieldUse::kRead},
    {"unk_token", FieldUse::kRead},
    {"do_lower_case", FieldUse::kRefusedIfSet},
    {"fix_mistral_regex", FieldUse::kRefusedIfSet},
    {"from_slow", FieldUse::kRefusedIfSet},
    {"sp_model_kwargs", FieldUse::kRefusedIfSet},
    {"split_special_tokens", FieldUse::kRefusedIfSet},
    {"auto_map", FieldUse::kHarmless},
    {"backend", FieldUse::kHarmless},
    {"chat_template", FieldUse::kHarmless},
    {"clean_up_tokenization_spaces", FieldUse::kHarmless},
    {"device_map", FieldUse::kHarmless},
    {"errors", FieldUse::kHarmless},
    {"fill_token", FieldUse::kHarmless},
    {"is_local", FieldUse::kHarmless},
    {"local_files_only", FieldUse::kHarmless},
    {"max_length", FieldUse::kHarmless},
    {"merges_file", FieldUse::kHarmless},
    {"model_input_names", FieldUse::kHarmless},
    {"model_max_length", FieldUse::kHarmless},
    {"name_or_path", FieldUse::kHarmless},
    {"pad_to_multiple_of", FieldUse::kHarmless},
    {"pad_token_type_id", FieldUse::kHarmless},
    {"padding", FieldUse::kHarmless},
    {"padding_side", FieldUse::kHarmless},
    {"processor_class", FieldUse::kHarmless},
    {"response_schema", FieldUse::kHarmless},
    {"spaces_between_special_tokens", FieldUse::kHarmless},
    {"special_tokens_map_file", FieldUse::kHarmless},
    {"stride", FieldUse::kHarmless},
    {"suffix_first", FieldUse::kHarmless},
    {"tokenizer_file", FieldUse::kHarmless},
    {"tool_parser_type", FieldUse::kHarmless},
    {"transformers_version", FieldUse::kHarmless},
    {"trim_offsets", FieldUse::kHarmless},
    {"truncation", FieldUse::kHarmless},
    {"truncation_side", FieldUse::kHarmless},
    {"truncation_strategy", FieldUse::kHarmless},
    {"unk_token_id", FieldUse::kHarmless},
    {"use_default_system_prompt", FieldUse::kHarmless},
    {"use_fast", FieldUse::kHarmless},
    {"verbose", FieldUse::kHarmless},
    {"vocab_file", FieldUse::kHarmless},
};

// The fields that name one special token, in the order in which transformers adds them.
constexpr const char* kSpecialFields[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
// Further special tokens of a class, under names of their own.
constexpr const char* kCodeFields[] = {"prefix_token", "middle_token", "suffix_token", "eot_token"};
constexpr const char* kLists[] = {"additional_special_tokens", "extra_special_tokens"};

struct ClassName {
  absl::string_view name;
  TokenizerClass tokenizer_class;
};
constexpr ClassName kClasses[] = {{"PreTrainedTokenizer", TokenizerClass::kPlain},
                                  {"TokenizersBackend", TokenizerClass::kPlain},
                                  {"GPT2Tokenizer", TokenizerClass::kGpt2},
                                  {"GPTNeoXTokenizer", TokenizerClass::kGptNeoX},
                                  {"LlamaTokenizer", TokenizerClass::kLlama},
                                  {"CodeLlamaTokenizer", TokenizerClass::kCodeLlama},
                                  {"Qwen2Tokenizer", TokenizerClass::kQwen2}};
// The class of a model whose folder names none, by model_type.
constexpr ClassName kModels[] = {
    {"gpt2", TokenizerClass::kGpt2},   {"gpt_neox", TokenizerClass::kGptNeoX},
    {"llama", TokenizerClass::kLlama}, {"mistral", TokenizerClass::kLlama},
    {"qwen2", TokenizerClass::kQwen2}, {"qwen3", TokenizerClass::kQwen2},
};

absl::StatusOr<TokenizerClass> FindClass(absl::string_view name) {
  const absl::string_view slow = absl::StripSuffix(name, "Fast");
  for (const ClassName& known : kClasses) {
    if (known.name == slow) return known.tokenizer_class;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer_class: ", base::Printable(name, 60),
      " is not supported; expected LlamaTokenizer, CodeLlamaTokenizer, Qwen2Tokenizer, "
      "GPT2Tokenizer, GPTNeoXTokenizer, PreTrainedTokenizer or TokenizersBackend"));
}

// Returns what the class takes for a special token that the settings do not name; null: nothing.
const char* DefaultOf(TokenizerClass tokenizer_class, absl::string_view field) {
  const bool is_bos = field == "bos_token";
  const bool is_usual = is_bos || field == "eos_token" || field == "unk_token";
  switch (tokenizer_class) {
    case TokenizerClass::kPlain:
      return nullptr;
    case TokenizerClass::kGpt2:
    case TokenizerClass::kGptNeoX:
      return is_usual ? "<|endoftext|>" : nullptr;
    case TokenizerClass::kQwen2:
      return !is_bos && (is_usual || field == "pad_token") ? "<|endoftext|>" : nullptr;
    case TokenizerClass::kCodeLlama:
      if (field == "prefix_token") return "▁<PRE>";
      if (field == "middle_token") return "▁<MID>";
      if (field == "suffix_token") return "▁<SUF>";
      if (field == "eot_token") return "▁<EOT>";
      [[fallthrough]];
    case TokenizerClass::kLlama:
      if (field == "unk_token") return "<unk>";
      return is_bos ? "<s>" : field == "eos_token" ? "</s>" : nullptr;
  }
  return nullptr;
}

// Reads a token's text, or an object with its text and its flags.
absl::StatusOr<NamedToken> ReadToken(const Json& value, const std::string& path) {
  NamedToken named;
  if (value.is_string()) {
    named.token.content = value.get<std::string>();
    return named;
  }
  ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, path));
  named.has_flags = true;
  ASSIGN_OR_RETURN(named.token.content, object.Text("content"));
  ASSIGN_OR_RETURN(named.token.special, object.Bool("special", false));
  ASSIGN_OR_RETURN(named.token.single_word, object.Bool("single_word", false));
  ASSIGN_OR_RETURN(named.token.lstrip, object.Bool("lstrip", false));
  ASSIGN_OR_RETURN(named.token.rstrip, object.Bool("rstrip", false));
  if (object.Find("normalized") != nullptr) {
    ASSIGN_OR_RETURN(named.normalized, object.Bool("normalized", false));
  }
  return named;
}

// The special tokens by field; null where a field is null.
using Specials = std::map<std::string, Json>;

// Reads what tokenizer_config.json says, then the older files if it does not list the tokens.
class SettingsReader {
 public:
  SettingsReader(const SettingsFiles& files, TokenizerClass if_unknown) : files_(files) {
    settings_.tokenizer_class = if_unknown;
  }

  absl::StatusOr<Settings> Read() {
    Json config = Json::object();
    if (files_.tokenizer_config) {
      auto parsed = ParseFile(*files_.tokenizer_config, kConfigFile);
      if (!parsed.ok()) return parsed.status();
      config = *std::move(parsed);
    }
    const absl::Status status = ReadConfig(config);
    if (!status.ok()) return base::Annotate(status, kConfigFile);
    RETURN_IF_ERROR(FindModelsClass(config));
    if (settings_.has_decoder) {
      RETURN_IF_ERROR(base::Annotate(ReadDecoder(config), kConfigFile));
    } else {
      RETURN_IF_ERROR(ReadMap());
      RETURN_IF_ERROR(base::Annotate(ReadAdded(), kAddedFile));
    }
    RETURN_IF_ERROR(base::Annotate(FillSpecial(), kConfigFile));
    return std::move(settings_);
  }

 private:
  static absl::StatusOr<Json> ParseFile(const std::string& text, const char* name) {
    absl::StatusOr<Json> json = ParseJson(text);
    if (!json.ok()) return base::Annotate(json.status(), name);
    const auto object = JsonObject::Of(*json, "");
    if (!object.ok()) return base::Annotate(object.status(), name);
    return json;
  }

  absl::Status ReadConfig(const Json& config) {
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(config, ""));
    RETURN_IF_ERROR(CheckFields(config));
    if (object.Find("tokenizer_class") != nullptr) {
      ASSIGN_OR_RETURN(const std::string name, object.Text("tokenizer_class"));
      ASSIGN_OR_RETURN(settings_.tokenizer_class, FindClass(name));
      settings_.class_is_named = true;
    }
    settings_.has_decoder = object.Find("added_tokens_decoder") != nullptr;
    ASSIGN_OR_RETURN(settings_.legacy, object.Bool("legacy", true));
    settings_.add_prefix_space_is_null =
        config.contains("add_prefix_space") && object.Find("add_prefix_space") == nullptr;
    if (object.Find("add_prefix_space") != nullptr) {
      ASSIGN_OR_RETURN(settings_.add_prefix_space, object.Bool("add_prefix_space", false));
    }
    for (const char* field : kSpecialFields) Take(config, field);
    for (const char* field : kCodeFields) Take(config, field);
    for (const char* field : kLists) RETURN_IF_ERROR(AddList(object, field));
    RETURN_IF_ERROR(AddModelSpecific(object));
    ASSIGN_OR_RETURN(settings_.adds_end, object.Bool("add_eos_token", false));
    begin_is_set_ = config.contains("add_bos_token");
    ASSIGN_OR_RETURN(settings_.adds_begin, object.Bool("add_bos_token", false));
    return absl::OkStatus();
  }

  absl::Status CheckFields(const Json& config) {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : config.items()) {
      const auto fields = KnownSettingsFields();
      const auto* known = std::find_if(fields.begin(), fields.end(),
                                       [&name = name](const auto& f) { return f.name == name; });
      if (known == fields.end()) {
        unknown.push_back(absl::StrCat("'", base::Printable(name, 60), "'"));
        continue;
      }
      const bool is_set = !value.is_null() && value != false && value != Json::object();
      if (known->use != FieldUse::kRefusedIfSet || !is_set) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": is set, which would change tokens and is not supported"));
    }
    if (unknown.empty()) return absl::OkStatus();
    settings_.warnings.push_back(absl::StrCat(
        kConfigFile, unknown.size() == 1 ? ": the field " : ": the fields ",
        base::Shortlist(unknown), unknown.size() == 1 ? " is" : " are", " unknown and ignored"));
    return absl::OkStatus();
  }

  // The class of the model's configuration, if none is named.
  absl::Status FindModelsClass(const Json& config) {
    if (settings_.class_is_named || !files_.config) return FinishClass();
    auto parsed = ParseFile(*files_.config, kModelConfigFile);
    if (!parsed.ok()) return parsed.status();
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(*parsed, ""));
    if (object.Find("tokenizer_class") != nullptr) {
      const auto name = object.Text("tokenizer_class");
      if (!name.ok()) return base::Annotate(name.status(), kModelConfigFile);
      const auto found = FindClass(*name);
      if (!found.ok()) return base::Annotate(found.status(), kModelConfigFile);
      settings_.tokenizer_class = *found;
    } else if (object.Find("model_type") != nullptr) {
      const auto type = object.Text("model_type");
      if (!type.ok()) return base::Annotate(type.status(), kModelConfigFile);
      for (const ClassName& known : kModels) {
        if (known.name == *type) settings_.tokenizer_class = known.tokenizer_class;
      }
    }
    return FinishClass();
  }

  absl::Status FinishClass() {
    if (!begin_is_set_ && IsLlama(settings_.tokenizer_class)) settings_.adds_begin = true;
    return absl::OkStatus();
  }

  void Take(const Json& config, const char* field) {
    const auto found = config.find(field);
    if (found != config.end()) specials_[field] = *found;
  }

  absl::Status AddList(const JsonObject& object, const char* field) {
    const Json* value = object.Find(field);
    // An object names each token for a processor.
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_array() && !value->is_object()) {
      return WrongType(object.PathOf(field), value, "a list of tokens");
    }
    for (const Json& element : *value) {
      const std::string path = object.PathOf(field);
      ASSIGN_OR_RETURN(NamedToken named, ReadToken(element, path));
      further_.push_back(std::move(named));
    }
    return absl::OkStatus();
  }

  absl::Status AddModelSpecific(const JsonObject& object) {
    if (object.Find("model_specific_special_tokens") == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const JsonObject tokens, object.Object("model_specific_special_tokens"));
    for (const auto& [name, value] : object.Find("model_specific_special_tokens")->items()) {
      ASSIGN_OR_RETURN(NamedToken named, ReadToken(value, tokens.PathOf(name)));
      further_.push_back(std::move(named));
    }
    return absl::OkStatus();
  }

  absl::Status ReadDecoder(const Json& config) {
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(config, ""));
    ASSIGN_OR_RETURN(const JsonObject decoder, object.Object("added_tokens_decoder"));
    for (const auto& [key, value] : object.Find("added_tokens_decoder")->items()) {
      const std::string path = decoder.PathOf(key);
      const Json id = ParseId(key);
      ASSIGN_OR_RETURN(const int32_t number, IdOfJson(id, path));
      if (value.is_string()) return WrongType(path, &value, "an object");
      ASSIGN_OR_RETURN(NamedToken named, ReadToken(value, path));
      named.token.id = number;
      settings_.listed.push_back(std::move(named));
    }
    return SortListed();
  }

  // Returns the number that a key writes; null: it is none.
  static Json ParseId(const std::string& key) {
    const bool is_number =
        !key.empty() && key.size() <= 10 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    return is_number ? Json(std::stoull(key)) : Json();
  }

  absl::Status ReadMap() {
    if (!files_.special_tokens_map) return absl::OkStatus();
    auto parsed = ParseFile(*files_.special_tokens_map, kMapFile);
    if (!parsed.ok()) return parsed.status();
    for (auto& [field, value] : parsed->items()) {
      if (value.is_object()) value["special"] = true;
      if (field != "additional_special_tokens") {
        specials_[field] = value;
        of_map_.insert(field);
        continue;
      }
      if (!value.is_array()) continue;
      for (Json& element : value) {
        if (element.is_object()) element["special"] = true;
        auto named = ReadToken(element, field);
        if (!named.ok()) return base::Annotate(named.status(), kMapFile);
        further_.push_back(*std::move(named));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadAdded() {
    if (!files_.added_tokens) return absl::OkStatus();
    ASSIGN_OR_RETURN(const Json json, ParseJson(*files_.added_tokens));
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, ""));
    for (const auto& [content, value] : json.items()) {
      NamedToken named;
      named.has_flags = true;
      named.token.content = content;
      named.token.special = IsNamedSpecial(content);
      named.normalized = !named.token.special;
      ASSIGN_OR_RETURN(named.token.id, IdOfJson(value, object.PathOf(content)));
      settings_.listed.push_back(std::move(named));
    }
    return SortListed();
  }

  // As the reference finds it: a token that tokenizer_config.json writes as an object does not
  // count.
  bool IsNamedSpecial(absl::string_view content) const {
    for (const char* field : kSpecialFields) {
      const auto found = specials_.find(field);
      if (found == specials_.end()) continue;
      if (found->second.is_object() && !of_map_.contains(field)) continue;
      const auto named = ReadToken(found->second, field);
      if (named.ok() && named->token.content == content) return true;
    }
    return std::any_of(further_.begin(), further_.end(),
                       [&](const NamedToken& named) { return named.token.content == content; });
  }

  absl::Status SortListed() {
    auto& listed = settings_.listed;
    std::sort(listed.begin(), listed.end(), [](const NamedToken& a, const NamedToken& b) {
      return std::pair(a.token.id, a.token.content) < std::pair(b.token.id, b.token.content);
    });
    for (size_t i = 1; i < listed.size(); ++i) {
      if (listed[i].token.id != listed[i - 1].token.id) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("'", base::Printable(listed[i].token.content, 60), "' and '",
                       base::Printable(listed[i - 1].token.content, 60), "' have the same id ",
                       listed[i].token.id));
    }
    return absl::OkStatus();
  }

  absl::Status FillSpecial() {
    for (const char* field : kSpecialFields) RETURN_IF_ERROR(AddSpecial(field));
    const size_t num_single = settings_.special.size();
    for (NamedToken& named : further_) settings_.special.push_back(std::move(named));
    for (const char* field : kCodeFields) {
      if (settings_.tokenizer_class != TokenizerClass::kCodeLlama) break;
      RETURN_IF_ERROR(AddSpecial(field));
    }
    auto& special = settings_.special;
    for (size_t i = num_single; i < special.size(); ++i) special[i].is_of_list = true;
    // The first one of the tokens with the same text counts.
    std::set<std::string> seen;
    std::erase_if(
        special, [&](const NamedToken& named) { return !seen.insert(named.token.content).second; });
    return absl::OkStatus();
  }

  absl::Status AddSpecial(const char* field) {
    const auto found = specials_.find(field);
    const bool is_default = found == specials_.end();
    Json value;
    if (!is_default) {
      value = found->second;
    } else if (const char* text = DefaultOf(settings_.tokenizer_class, field)) {
      value = text;
    }
    if (value.is_null()) return absl::OkStatus();
    ASSIGN_OR_RETURN(NamedToken named, ReadToken(value, field));
    if (named.token.content.empty()) return absl::OkStatus();
    named.field = field;
    named.is_default = is_default;
    if (absl::string_view(field) == "bos_token") settings_.begin_token = named.token.content;
    if (absl::string_view(field) == "eos_token") settings_.end_token = named.token.content;
    // This class gives them flags of their own.
    if (settings_.tokenizer_class == TokenizerClass::kQwen2) named.has_flags = true;
    settings_.special.push_back(std::move(named));
    return absl::OkStatus();
  }

  const SettingsFiles& files_;
  Settings settings_;
  Specials specials_;
  std::set<std::string> of_map_;  // fields of special_tokens_map.json
  std::vector<NamedToken> further_;
  bool begin_is_set_ = false;
};

}  // namespace

absl::string_view NameOf(TokenizerClass tokenizer_class) {
  if (tokenizer_class == TokenizerClass::kPlain) return "PreTrainedTokenizerFast";
  for (const ClassName& known : kClasses) {
    if (known.tokenizer_class == tokenizer_class) return known.name;
  }
  return "";
}

bool IsLlama(TokenizerClass tokenizer_class) {
  return tokenizer_class == TokenizerClass::kLlama || tokenizer_class == TokenizerClass::kCodeLlama;
}

bool DecidesAround(TokenizerClass tokenizer_class) {
  return IsLlama(tokenizer_class) || tokenizer_class == TokenizerClass::kGptNeoX;
}

absl::Span<const SettingsField> KnownSettingsFields() { return kFields; }

absl::StatusOr<Settings> ReadSettings(const SettingsFiles& files, TokenizerClass if_unknown) {
  return SettingsReader(files, if_unknown).Read();
}

}  // namespace megascale::tokenizer
