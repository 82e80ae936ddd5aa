#include "runtime/data/tokenizer/files/components.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kShownTypeBytesMax = 120;
constexpr size_t kSplitsMax = 8;
// A step looks for text and puts other text in its place. The search may cost the size of the whole
// text times that of what it looks for, and the result may be as much longer.
constexpr size_t kStepBytesMax = 1024;
constexpr double kGrowthMax = 64;  // of a text, by all steps together

absl::Status Unsupported(const JsonObject& component, absl::string_view type,
                         absl::string_view supported) {
  return absl::InvalidArgumentError(absl::StrCat(component.path(), ": ",
                                                 base::Printable(type, kShownTypeBytesMax),
                                                 " is not supported; expected ", supported));
}

// Calls `read` for a component, or for each one of its Sequence, whose elements are in `list`.
absl::Status ForEach(const JsonObject& component, const char* list,
                     absl::FunctionRef<absl::Status(const JsonObject&, absl::string_view)> read) {
  const absl::StatusOr<std::string> type = component.Type();
  if (!type.ok()) return type.status();
  if (*type != "Sequence") return read(component, *type);
  ASSIGN_OR_RETURN(const Json* elements, component.Array(list));
  size_t index = 0;
  for (const Json& element : *elements) {
    const std::string path = absl::StrCat(component.PathOf(list), "[", index++, "]");
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(element, path));
    RETURN_IF_ERROR(ForEach(object, list, read));
  }
  return absl::OkStatus();
}

absl::Status CheckStepBytes(size_t bytes, absl::string_view path) {
  if (bytes <= kStepBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": has ", bytes, " bytes; expected at most ", kStepBytesMax));
}

// Steps after one another multiply what each one does.
class Growth {
 public:
  void Replace(size_t pattern_bytes, size_t content_bytes) {
    const double ratio = static_cast<double>(content_bytes) / static_cast<double>(pattern_bytes);
    ratio_ *= std::max(ratio, 1.0);
  }
  void Prepend(size_t bytes) { prepended_bytes_ += bytes; }

  absl::Status Check(absl::string_view path) const {
    if (ratio_ > kGrowthMax) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": may make text ", ratio_,
                                                     " times as long; expected at most ",
                                                     kGrowthMax, " times"));
    }
    return CheckStepBytes(prepended_bytes_, absl::StrCat(path, ": all that is prepended"));
  }

 private:
  double ratio_ = 1;
  size_t prepended_bytes_ = 0;
};

// Reads {"String": …}; nullopt: it is a {"Regex": …}.
absl::StatusOr<std::optional<std::string>> ReadString(const JsonObject& component) {
  ASSIGN_OR_RETURN(const JsonObject pattern, component.Object("pattern"));
  if (pattern.Find("String") == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(std::string text, pattern.Text("String"));
  if (text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(pattern.path(), ".String: is empty, expected text to look for"));
  }
  RETURN_IF_ERROR(CheckStepBytes(text.size(), pattern.PathOf("String")));
  return text;
}

struct Replacement {
  std::string pattern;
  std::string content;
};

absl::StatusOr<Replacement> ReadReplace(const JsonObject& component) {
  ASSIGN_OR_RETURN(const auto pattern, ReadString(component));
  if (!pattern) return Unsupported(component, "Replace of a Regex", "Replace of a String");
  ASSIGN_OR_RETURN(std::string content, component.Text("content"));
  RETURN_IF_ERROR(CheckStepBytes(content.size(), component.PathOf("content")));
  return Replacement{*pattern, std::move(content)};
}

// Reads a member that is one character.
absl::StatusOr<std::string> ReadCharacter(const JsonObject& component, absl::string_view name) {
  ASSIGN_OR_RETURN(std::string text, component.Text(name));
  if (text.empty() || CharacterLength(text[0]) != text.size()) {
    return WrongType(component.PathOf(name), component.Find(name), "one character");
  }
  return text;
}

absl::Status AddNormalizer(const JsonObject& component, absl::string_view type,
                           std::vector<NormalizerStep>* steps) {
  if (type == "NFC") {
    steps->push_back({NormalizerStep::Kind::kNfc, "", ""});
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prepend, component.Text("prepend"));
    RETURN_IF_ERROR(CheckStepBytes(prepend.size(), component.PathOf("prepend")));
    steps->push_back({NormalizerStep::Kind::kPrepend, "", std::move(prepend)});
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(Replacement replace, ReadReplace(component));
    steps->push_back(
        {NormalizerStep::Kind::kReplace, std::move(replace.pattern), std::move(replace.content)});
  } else {
    return Unsupported(component, type, "NFC, Prepend, Replace or a Sequence of them");
  }
  return absl::OkStatus();
}

absl::StatusOr<MetaspaceStep> ReadMetaspace(const JsonObject& component) {
  MetaspaceStep step;
  ASSIGN_OR_RETURN(step.replacement, ReadCharacter(component, "replacement"));
  ASSIGN_OR_RETURN(step.split, component.Bool("split", true));
  std::string scheme = "always";
  if (component.Find("prepend_scheme") != nullptr) {
    ASSIGN_OR_RETURN(scheme, component.Text("prepend_scheme"));
  }
  ASSIGN_OR_RETURN(const bool adds_prefix, component.Bool("add_prefix_space", true));
  if (!adds_prefix && scheme != "never") {
    return absl::InvalidArgumentError(
        absl::StrCat(component.path(), ": add_prefix_space is false, but prepend_scheme is ",
                     base::Printable(scheme, kShownTypeBytesMax), "; expected never"));
  }
  if (scheme == "first") {
    step.prepend = MetaspaceStep::Prepend::kFirst;
  } else if (scheme == "never") {
    step.prepend = MetaspaceStep::Prepend::kNever;
  } else if (scheme != "always") {
    return WrongType(component.PathOf("prepend_scheme"), component.Find("prepend_scheme"),
                     "always, first or never");
  }
  return step;
}

// Returns the way to cut text by a regular expression; nullopt: it is not supported.
std::optional<Split> FindSplit(const std::string& expression) {
  if (const auto pattern = FindSplitPattern(expression)) return *pattern;
  if (auto run = RunSplitter::Parse(expression)) return *std::move(run);
  return std::nullopt;
}

// The pattern cuts text into matches without gaps, so keeping matches (Removed, inverted) is the
// same as keeping matches and gaps (Isolated).
absl::StatusOr<Split> ReadSplit(const JsonObject& component) {
  ASSIGN_OR_RETURN(const JsonObject pattern, component.Object("pattern"));
  if (pattern.Find("Regex") == nullptr) {
    return Unsupported(component, "Split at a String", "Split by a Regex");
  }
  ASSIGN_OR_RETURN(const std::string expression, pattern.Text("Regex"));
  std::optional<Split> found = FindSplit(expression);
  if (!found) {
    return Unsupported(component, absl::StrCat("Split by the Regex ", expression),
                       "the one of GPT-2, Llama 3, Qwen2, Mistral-Nemo (Tekken), o200k or cl100k, "
                       "or one of one class of characters like \\s?\\p{L}+");
  }
  ASSIGN_OR_RETURN(const std::string behavior, component.Text("behavior"));
  ASSIGN_OR_RETURN(const bool invert, component.Bool("invert", false));
  const bool supported = invert ? behavior == "Removed" : behavior == "Isolated";
  if (supported) return *found;
  return Unsupported(component, absl::StrCat("Split with behavior ", behavior),
                     "Isolated, or Removed with invert");
}

absl::Status AddPreTokenizer(const JsonObject& component, absl::string_view type,
                             PreTokenizer* result) {
  constexpr char kSupported[] =
      "Metaspace, ByteLevel, or Digits and Splits and then ByteLevel without add_prefix_space";
  if (result->metaspace || result->byte_level) {
    return Unsupported(component, absl::StrCat(type, " after another pre-tokenizer"), kSupported);
  }
  if (type == "Metaspace" && result->splits.empty()) {
    ASSIGN_OR_RETURN(result->metaspace, ReadMetaspace(component));
  } else if (result->splits.size() >= kSplitsMax) {
    return Unsupported(component, absl::StrCat(type, " after ", kSplitsMax, " others"), kSupported);
  } else if (type == "Split") {
    ASSIGN_OR_RETURN(Split split, ReadSplit(component));
    result->splits.push_back(std::move(split));
  } else if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, component.Bool("individual_digits", false));
    result->splits.emplace_back(individual ? SplitPattern::kDigits : SplitPattern::kNumbers);
  } else if (type == "ByteLevel") {
    ASSIGN_OR_RETURN(const bool splits, component.Bool("use_regex", true));
    ASSIGN_OR_RETURN(result->add_prefix_space, component.Bool("add_prefix_space", true));
    if (!result->splits.empty() && result->add_prefix_space) {
      return Unsupported(component, "ByteLevel with add_prefix_space after others", kSupported);
    }
    if (splits) result->splits.emplace_back(SplitPattern::kGpt2);
    result->byte_level = true;
  } else {
    return Unsupported(component, type, kSupported);
  }
  return absl::OkStatus();
}

absl::Status AppendTokens(const JsonObject& special_tokens, const std::string& name,
                          std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const JsonObject token, special_tokens.Object(name));
  ASSIGN_OR_RETURN(const Json* values, token.Array("ids"));
  for (const Json& value : *values) {
    ASSIGN_OR_RETURN(const int32_t id, IdOfJson(value, token.PathOf("ids")));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const JsonObject& component, TokensAround* around) {
  ASSIGN_OR_RETURN(const Json* single, component.Array("single"));
  bool sequence_seen = false;
  for (const Json& element : *single) {
    ASSIGN_OR_RETURN(const JsonObject item, JsonObject::Of(element, component.PathOf("single")));
    if (item.Find("Sequence") != nullptr) {
      if (std::exchange(sequence_seen, true)) {
        return Unsupported(component, "TemplateProcessing with two sequences", "one sequence");
      }
      continue;
    }
    ASSIGN_OR_RETURN(const JsonObject token, item.Object("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string name, token.Text("id"));
    ASSIGN_OR_RETURN(const JsonObject special_tokens, component.Object("special_tokens"));
    RETURN_IF_ERROR(
        AppendTokens(special_tokens, name, sequence_seen ? &around->end : &around->begin));
  }
  if (sequence_seen) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(component.PathOf("single"), ": has no Sequence, expected one for the text"));
}

// Reads a token and its id: ["</s>", 2].
absl::Status AppendPair(const JsonObject& component, const char* name, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const Json* pair, component.Array(name));
  if (pair->size() != 2) return WrongType(component.PathOf(name), pair, "a token and its id");
  ASSIGN_OR_RETURN(const int32_t id, IdOfJson((*pair)[1], component.PathOf(name)));
  ids->push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<DecoderStep> ReadDecoderStep(const JsonObject& component, absl::string_view type) {
  using Kind = DecoderStep::Kind;
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    ASSIGN_OR_RETURN(Replacement replace, ReadReplace(component));
    step.pattern = std::move(replace.pattern);
    step.content = std::move(replace.content);
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    ASSIGN_OR_RETURN(step.content, ReadCharacter(component, "content"));
    ASSIGN_OR_RETURN(step.start, component.Integer("start"));
    ASSIGN_OR_RETURN(step.stop, component.Integer("stop"));
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    ASSIGN_OR_RETURN(const MetaspaceStep metaspace, ReadMetaspace(component));
    step.pattern = metaspace.replacement;
    step.strips_first = metaspace.prepend != MetaspaceStep::Prepend::kNever;
  } else {
    return Unsupported(component, type,
                       "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip or a Sequence");
  }
  return step;
}

}  // namespace

absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonObject& file) {
  std::vector<NormalizerStep> steps;
  if (file.Find("normalizer") == nullptr) return steps;
  ASSIGN_OR_RETURN(const JsonObject component, file.Object("normalizer"));
  RETURN_IF_ERROR(
      ForEach(component, "normalizers", [&](const JsonObject& step, absl::string_view type) {
        return AddNormalizer(step, type, &steps);
      }));
  Growth growth;
  for (const NormalizerStep& step : steps) {
    if (step.kind == NormalizerStep::Kind::kPrepend) growth.Prepend(step.content.size());
    if (step.kind != NormalizerStep::Kind::kReplace) continue;
    growth.Replace(step.pattern.size(), step.content.size());
  }
  RETURN_IF_ERROR(growth.Check("normalizer"));
  return steps;
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonObject& file) {
  PreTokenizer result;
  if (file.Find("pre_tokenizer") == nullptr) return result;
  ASSIGN_OR_RETURN(const JsonObject component, file.Object("pre_tokenizer"));
  const auto type = component.Type();
  result.is_lone_byte_level = type.ok() && *type == "ByteLevel";
  RETURN_IF_ERROR(
      ForEach(component, "pretokenizers", [&](const JsonObject& step, absl::string_view type) {
        return AddPreTokenizer(step, type, &result);
      }));
  return result;
}

absl::StatusOr<TokensAround> ReadPostProcessor(const JsonObject& file) {
  TokensAround around;
  if (file.Find("post_processor") == nullptr) return around;
  ASSIGN_OR_RETURN(const JsonObject component, file.Object("post_processor"));
  bool template_seen = false;
  RETURN_IF_ERROR(ForEach(
      component, "processors", [&](const JsonObject& step, absl::string_view type) -> absl::Status {
        if (type == "ByteLevel") return absl::OkStatus();  // concerns offsets alone
        const bool is_template = type == "TemplateProcessing";
        if ((!is_template && type != "RobertaProcessing") || std::exchange(template_seen, true)) {
          return Unsupported(step, type,
                             "ByteLevel, and one of TemplateProcessing and RobertaProcessing");
        }
        if (is_template) return ReadTemplate(step, &around);
        RETURN_IF_ERROR(AppendPair(step, "cls", &around.begin));
        return AppendPair(step, "sep", &around.end);
      }));
  return around;
}

absl::StatusOr<Decoder> ReadDecoder(const JsonObject& file) {
  Decoder decoder;
  decoder.joins_with_space = file.Find("decoder") == nullptr;
  if (decoder.joins_with_space) return decoder;
  ASSIGN_OR_RETURN(const JsonObject component, file.Object("decoder"));
  RETURN_IF_ERROR(ForEach(component, "decoders",
                          [&](const JsonObject& object, absl::string_view type) -> absl::Status {
                            ASSIGN_OR_RETURN(DecoderStep step, ReadDecoderStep(object, type));
                            decoder.steps.push_back(std::move(step));
                            return absl::OkStatus();
                          }));
  Growth growth;
  for (const DecoderStep& step : decoder.steps) {
    if (step.kind != DecoderStep::Kind::kReplace) continue;
    growth.Replace(step.pattern.size(), step.content.size());
  }
  RETURN_IF_ERROR(growth.Check("decoder"));
  return decoder;
}

}  // namespace megascale::tokenizer
