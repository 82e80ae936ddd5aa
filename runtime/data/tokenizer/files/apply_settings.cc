#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/tokenizer/files/settings.h"

namespace megascale::tokenizer {
namespace {

std::string Shown(absl::string_view token) {
  return absl::StrCat("'", base::Printable(token, 60), "'");
}

bool HasSameFlags(const AddedToken& a, const AddedToken& b) {
  return a.special == b.special && a.single_word == b.single_word && a.lstrip == b.lstrip &&
         a.rstrip == b.rstrip && a.normalized == b.normalized;
}

void AppendIds(const std::vector<int32_t>& ids, std::string* text) {
  for (const int32_t id : ids) absl::StrAppend(text, id, " ");
  absl::StrAppend(text, "\n");
}

// Returns all that settings may change, for a digest.
std::string ChangeableText(const TokenizerParts& parts) {
  std::string text;
  for (const AddedToken& token : parts.added_tokens) {
    absl::StrAppend(&text, token.id, " ", token.content.size(), " ", token.content, token.special,
                    token.single_word, token.lstrip, token.rstrip, token.normalized, "\n");
  }
  AppendIds(parts.begin_ids, &text);
  AppendIds(parts.end_ids, &text);
  return absl::StrCat(text, parts.pre_tokenizer.add_prefix_space, "\n");
}

// Whether text gets a space before it, and whether each part between added tokens gets its own.
struct PrefixStyle {
  bool adds = false;
  bool legacy = true;
};

PrefixStyle StyleOf(const TokenizerParts& parts) {
  if (parts.pre_tokenizer.metaspace) {
    return {parts.pre_tokenizer.metaspace->prepend != MetaspaceStep::Prepend::kNever, false};
  }
  const auto& steps = parts.normalizer;
  return {std::any_of(steps.begin(), steps.end(),
                      [](const auto& s) { return s.kind == NormalizerStep::Kind::kPrepend; }),
          true};
}

class SettingsApplier {
 public:
  SettingsApplier(const Settings& settings, bool is_json, TokenizerParts* parts)
      : settings_(settings), is_json_(is_json), parts_(*parts) {
    for (size_t id = 0; id < parts_.tokens.size(); ++id) {
      id_of_.try_emplace(parts_.tokens[id], static_cast<int32_t>(id));
    }
    for (size_t i = 0; i < parts_.added_tokens.size(); ++i) {
      added_at_[parts_.added_tokens[i].content] = i;
      latest_[parts_.added_tokens[i].content] = parts_.added_tokens[i];
    }
  }

  absl::Status Apply() {
    const std::string before = is_json_ ? ChangeableText(parts_) : "";
    RETURN_IF_ERROR(CheckPrefixSpace());
    FindDefaults();
    FillKnown();
    RETURN_IF_ERROR(AddListed());
    RETURN_IF_ERROR(AddSpecial());
    RETURN_IF_ERROR(SetAround());
    const std::string after = ChangeableText(parts_);
    if (after != before) {
      const PrefixStyle style = StyleOf(parts_);
      parts_.sha256 = base::Sha256Hex(
          absl::StrCat("folder 1\n", parts_.sha256, "\n", style.adds, style.legacy, "\n", after));
    }
    for (const std::string& warning : settings_.warnings) parts_.warnings.push_back(warning);
    return absl::OkStatus();
  }

 private:
  absl::Status CheckPrefixSpace() {
    const auto wanted = settings_.add_prefix_space;
    const auto refuse = [](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: add_prefix_space: ", why));
    };
    if (!is_json_) return absl::OkStatus();  // it was read with the file
    if (IsLlama(settings_.tokenizer_class)) {
      if (!wanted) return absl::OkStatus();
      const PrefixStyle style = StyleOf(parts_);
      if (style.adds == *wanted && style.legacy == settings_.legacy &&
          !parts_.pre_tokenizer.byte_level) {
        return absl::OkStatus();
      }
      return refuse(
          "with it this class ignores tokenizer.json, which says otherwise; leave it out, or use "
          "tokenizer.model alone");
    }
    if (!parts_.pre_tokenizer.is_lone_byte_level || settings_.add_prefix_space_is_null) {
      return absl::OkStatus();  // tokenizer.json decides
    }
    const bool is_plain = settings_.tokenizer_class == TokenizerClass::kPlain;
    if (is_plain && wanted.value_or(false) != parts_.pre_tokenizer.add_prefix_space) {
      return refuse(absl::StrCat("is ", wanted ? (*wanted ? "true" : "false") : "absent",
                                 ", but tokenizer.json has the contrary; expected the same"));
    }
    parts_.pre_tokenizer.add_prefix_space = wanted.value_or(false);
    return absl::OkStatus();
  }

  // Without a named class, defaults that the tokenizer does not have do not count.
  void FindDefaults() {
    tokenizer_class_ = settings_.tokenizer_class;
    for (const NamedToken& named : settings_.special) {
      const bool counts = settings_.class_is_named || !is_json_ || !named.is_default ||
                          id_of_.contains(named.token.content);
      if (counts) special_.push_back(&named);
      const bool is_begin = settings_.begin_token == named.token.content;
      if (!counts && is_begin && settings_.adds_begin) tokenizer_class_ = TokenizerClass::kPlain;
    }
  }

  // The tokens whose flags are known apart from the special ones.
  void FillKnown() {
    if (settings_.has_decoder) {
      for (const NamedToken& named : settings_.listed) known_[named.token.content] = named;
      return;
    }
    if (!is_json_) return;
    for (const AddedToken& token : parts_.added_tokens) {
      known_[token.content] = {.token = token, .normalized = token.normalized, .has_flags = true};
      known_[token.content].token.id = -1;
    }
  }

  absl::Status AddListed() {
    absl::flat_hash_set<absl::string_view> special;
    for (const NamedToken* named : special_) special.insert(named->token.content);
    for (const NamedToken& named : settings_.listed) {
      AddedToken token = named.token;
      token.normalized = named.normalized.value_or(!token.special);
      const auto latest = latest_.find(token.content);
      if (latest == latest_.end() || !HasSameFlags(latest->second, token)) {
        token.special = token.special || special.contains(token.content);
        token.normalized = named.normalized.value_or(!token.special);
      }
      RETURN_IF_ERROR(Add(std::move(token)));
    }
    return absl::OkStatus();
  }

  // Where the class of GPT-2 makes a tokenizer of vocab.json, it gives these tokens flags of its
  // own.
  bool HasFlagsOfGpt2(const NamedToken& named) const {
    return !is_json_ && tokenizer_class_ == TokenizerClass::kGpt2 &&
           (named.field == "bos_token" || named.field == "eos_token" ||
            named.field == "unk_token" || named.field == "pad_token");
  }

  // A token of which only the content is known changes nothing if it is there.
  absl::Status AddSpecial() {
    for (const NamedToken* named : special_) {
      const NamedToken* chosen = named;
      const auto known = known_.find(named->token.content);
      if (!named->is_of_list && known != known_.end()) chosen = &known->second;
      NamedToken of_class;
      if (!chosen->has_flags && HasFlagsOfGpt2(*named)) {
        of_class = *chosen;
        of_class.has_flags = true;
        of_class.normalized = true;
        chosen = &of_class;
      }
      if (!chosen->has_flags && latest_.contains(named->token.content)) continue;
      AddedToken token = chosen->token;
      token.special = true;
      token.normalized = chosen->normalized.value_or(false);
      RETURN_IF_ERROR(Add(std::move(token)));
    }
    return absl::OkStatus();
  }

  // Adds a token, or gives it other flags.
  absl::Status Add(AddedToken token) {
    if (token.content.empty()) return absl::OkStatus();
    const auto found = id_of_.find(token.content);
    const bool is_new = found == id_of_.end();
    const auto id = is_new ? static_cast<int32_t>(parts_.tokens.size()) : found->second;
    if (token.id >= 0 && token.id != id) {
      return Refuse(token, absl::StrCat("has id ", token.id, ", expected ", id,
                                        is_new ? ", the next one after the tokens before it"
                                               : ", as in the tokenizer's file"));
    }
    token.id = id;
    if (is_new) {
      parts_.tokens.push_back(token.content);
      id_of_[token.content] = id;
    }
    const auto [at, is_added] = added_at_.try_emplace(token.content, parts_.added_tokens.size());
    latest_[token.content] = token;
    if (is_added) {
      parts_.added_tokens.push_back(std::move(token));
      return absl::OkStatus();
    }
    return ChangeFlags(token, &parts_.added_tokens[at->second]);
  }

  // The reference looks for a token where its first special form says, with the flags of its last.
  absl::Status ChangeFlags(const AddedToken& token, AddedToken* there) {
    if (!there->special && there->normalized != token.normalized) {
      return Refuse(token, "is there already with another value of 'normalized'");
    }
    there->special = there->special || token.special;
    there->single_word = token.single_word;
    there->lstrip = token.lstrip;
    there->rstrip = token.rstrip;
    return absl::OkStatus();
  }

  absl::Status Refuse(const AddedToken& token, absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(
        settings_.has_decoder ? "tokenizer_config.json: added_tokens_decoder" : "added_tokens.json",
        ": ", Shown(token.content), " ", why));
  }

  absl::Status SetAround() {
    // The class of GPT-2 reads add_bos_token only where it makes a tokenizer of vocab.json.
    const bool is_gpt2 = !is_json_ && tokenizer_class_ == TokenizerClass::kGpt2;
    if (!DecidesAround(tokenizer_class_) && !is_gpt2) return absl::OkStatus();
    parts_.begin_ids.clear();
    parts_.end_ids.clear();
    if (settings_.adds_begin) {
      RETURN_IF_ERROR(Append(settings_.begin_token, "bos", &parts_.begin_ids));
    }
    if (settings_.adds_end && !is_gpt2) {
      RETURN_IF_ERROR(Append(settings_.end_token, "eos", &parts_.end_ids));
    }
    return absl::OkStatus();
  }

  absl::Status Append(const std::optional<std::string>& token, absl::string_view name,
                      std::vector<int32_t>* ids) const {
    const auto refuse = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: add_", name,
                                                     "_token is true, but ", name, "_token ", why));
    };
    if (!token) return refuse("is null; expected a token");
    for (const NamedToken* named : special_) {
      if (named->token.content != *token || !named->is_default) continue;
      const auto found = id_of_.find(*token);
      if (found->second < static_cast<int32_t>(num_tokens_of_file_)) break;
      return refuse(absl::StrCat("is not named, and the tokenizer has no ", Shown(*token),
                                 ", the default of ", NameOf(tokenizer_class_),
                                 "; name one of its tokens"));
    }
    ids->push_back(id_of_.at(*token));
    return absl::OkStatus();
  }

  const Settings& settings_;
  const bool is_json_;
  TokenizerParts& parts_;
  const size_t num_tokens_of_file_ = parts_.tokens.size();
  TokenizerClass tokenizer_class_ = TokenizerClass::kPlain;
  absl::flat_hash_map<std::string, int32_t> id_of_;
  absl::flat_hash_map<std::string, size_t> added_at_;  // index in parts_.added_tokens
  absl::flat_hash_map<std::string, NamedToken> known_;
  absl::flat_hash_map<std::string, AddedToken> latest_;  // added tokens, as they were given last
  std::vector<const NamedToken*> special_;
};

}  // namespace

absl::StatusOr<LlamaOptions> LlamaOptionsOf(const Settings& settings) {
  if (!IsLlama(settings.tokenizer_class)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer_class: ", NameOf(settings.tokenizer_class),
                     " is not supported for a tokenizer.model; expected LlamaTokenizer, or a "
                     "tokenizer.json beside it"));
  }
  // This class has no settings of its own for spaces.
  if (settings.tokenizer_class == TokenizerClass::kCodeLlama) return LlamaOptions();
  if (settings.add_prefix_space_is_null) {
    return absl::InvalidArgumentError(
        "tokenizer_config.json: add_prefix_space: is null, which versions of transformers read "
        "differently; expected true or false");
  }
  return LlamaOptions{.legacy = settings.legacy,
                      .add_prefix_space = settings.add_prefix_space.value_or(true)};
}

absl::Status ApplySettings(const Settings& settings, bool is_json, TokenizerParts* parts) {
  return SettingsApplier(settings, is_json, parts).Apply();
}

}  // namespace megascale::tokenizer
