// What the files beside a tokenizer's file decide: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and the model's config.json where no tokenizer class is named. The tokens are
// those of AutoTokenizer of `transformers` 4 with its fast classes; where its versions contradict
// each other without a rule, the folder is refused. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

inline constexpr char kConfigFile[] = "tokenizer_config.json";
inline constexpr char kMapFile[] = "special_tokens_map.json";
inline constexpr char kAddedFile[] = "added_tokens.json";
inline constexpr char kModelConfigFile[] = "config.json";

// The content of each file; nullopt: there is no such file.
struct SettingsFiles {
  std::optional<std::string> tokenizer_config;
  std::optional<std::string> special_tokens_map;
  std::optional<std::string> added_tokens;
  std::optional<std::string> config;
};

// The classes of `transformers` that the supported families name, each with its fast variant.
enum class TokenizerClass { kPlain, kGpt2, kGptNeoX, kLlama, kCodeLlama, kQwen2 };

// Returns "LlamaTokenizer" and so on.
absl::string_view NameOf(TokenizerClass tokenizer_class);

// A token as the settings name it.
struct NamedToken {
  AddedToken token;                // its id is -1 if the settings give none
  std::optional<bool> normalized;  // nullopt: unless it is special
  bool has_flags = false;          // false: only its content is known
  std::string field = {};          // of tokenizer_config.json, if it names one token
  bool is_default = false;         // of the class; the settings do not name it
  bool is_of_list = false;         // of a list of further special tokens
};

struct Settings {
  TokenizerClass tokenizer_class = TokenizerClass::kPlain;
  bool class_is_named = false;      // by tokenizer_config.json
  bool has_decoder = false;         // added_tokens_decoder lists all added tokens
  std::vector<NamedToken> listed;   // with ids, in their order
  std::vector<NamedToken> special;  // in the order in which they are added
  std::optional<std::string> begin_token;
  std::optional<std::string> end_token;
  bool adds_begin = false;
  bool adds_end = false;
  bool legacy = true;                    // of Llama's classes
  std::optional<bool> add_prefix_space;  // nullopt: absent or null
  bool add_prefix_space_is_null = false;
  std::vector<std::string> warnings;
};

// `if_unknown`: the class if neither file names one, and the model is not of a known type. Errors:
// InvalidArgument, beginning with the file - not JSON, a field of a wrong type, a class or a value
// that is not supported.
absl::StatusOr<Settings> ReadSettings(const SettingsFiles& files, TokenizerClass if_unknown);

// Returns how the settings want a SentencePiece model to be read. Errors: InvalidArgument - another
// class than Llama's.
absl::StatusOr<LlamaOptions> LlamaOptionsOf(const Settings& settings);

// Changes the parts of a tokenizer.json, or of older files that were read as `settings` say
// (`is_json` is false): a SentencePiece model by LlamaOptionsOf, or ParseVocabularyFiles. The
// digest changes if the tokens do. Errors: InvalidArgument - the settings contradict the
// tokenizer's file.
absl::Status ApplySettings(const Settings& settings, bool is_json, TokenizerParts* parts);

// True for classes that decide which tokens are put around a text, whatever the tokenizer's file
// says.
bool DecidesAround(TokenizerClass tokenizer_class);
bool IsLlama(TokenizerClass tokenizer_class);

// What the program does with a field of tokenizer_config.json.
enum class FieldUse {
  kRead,
  kHarmless,      // does not change the tokens of a text
  kRefusedIfSet,  // a value other than null, false and an empty object would change them
};
struct SettingsField {
  absl::string_view name;
  FieldUse use;
};
// Returns the fields that are known. Any other one is ignored with a warning.
absl::Span<const SettingsField> KnownSettingsFields();

}  // namespace megascale::tokenizer
