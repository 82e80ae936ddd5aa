// tokenizer train | encode | decode | inspect.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/view/terminal.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/file_list.h"
#include "runtime/data/source/plain_text.h"
#include "runtime/data/token_file/token_file.h"
#include "runtime/data/tokenizer/bpe/bpe_trainer.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/data/tokenizer/text/splitter.h"

namespace megascale::cli {
namespace {

using tokenizer::Tokenizer;

constexpr int64_t kNumBytes = 256;
constexpr int64_t kVocabularyMax = 1'000'000;
constexpr size_t kIdsBytesMax = size_t{1} << 30;
constexpr char kEndOfDocument[] = "<|endoftext|>";

absl::Duration Now() { return base::RealClock().Monotonic(); }

struct TrainFlags {
  std::vector<std::string> files;
  std::string out;
  int64_t vocabulary_size = 0;
  int64_t min_frequency = 2;
  std::string split = "llama3";
  std::vector<std::string> special_tokens;
  std::string json_field;
  bool skip_bad = false;
  bool force = false;
};

absl::StatusOr<tokenizer::SplitPattern> ParseSplit(const std::string& name) {
  using tokenizer::SplitPattern;
  for (const auto pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    if (tokenizer::NameOf(pattern) == name) return pattern;
  }
  return absl::InvalidArgumentError(absl::StrCat("--split: expected gpt2, llama3 or qwen2, found '",
                                                 base::Printable(name, 60), "'"));
}

absl::Status CheckFiles(const std::vector<std::string>& files) {
  if (!files.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("FILE: is missing; expected at least one file with text");
}

absl::Status CheckTrainFlags(const TrainFlags& flags) {
  RETURN_IF_ERROR(CheckFiles(flags.files));
  if (flags.out.empty()) {
    return absl::InvalidArgumentError("--out: is missing; expected a file to write");
  }
  RETURN_IF_ERROR(
      base::Annotate(tokenizer::CheckSpecialTokens(flags.special_tokens), "--special-token"));
  const int64_t least = kNumBytes + static_cast<int64_t>(flags.special_tokens.size());
  if (flags.vocabulary_size < least || flags.vocabulary_size > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocab-size: is ", flags.vocabulary_size, ", expected ", least,
                     " (256 bytes and the special tokens) to ", kVocabularyMax));
  }
  if (flags.min_frequency < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min-frequency: is ", flags.min_frequency, ", expected 1 or more"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ExpandFolders(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const data::FileList found, data::ListFiles(path));
    if (found.is_folder) std::fprintf(stderr, "%s\n", found.Line(path).c_str());
    files.insert(files.end(), found.files.begin(), found.files.end());
  }
  return files;
}

// Counts the words of a plain file in blocks, so that a file may be larger than the memory.
absl::Status CountPlain(const std::string& path, bool skip_bad, tokenizer::WordCounter* counter,
                        const std::function<void(const data::ByteStream&)>& on_progress) {
  ASSIGN_OR_RETURN(const auto text, data::PlainText::Open(path, {.skip_bad = skip_bad}));
  std::string piece;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, text->Next(&piece));
    if (!more) break;
    counter->Feed(piece);
    on_progress(text->stream());
  }
  counter->Finish();
  if (text->num_skipped() > 0) {
    std::fprintf(stderr, "%s: skipped %lld bytes that are not UTF-8\n", path.c_str(),
                 static_cast<long long>(text->num_skipped()));
  }
  return absl::OkStatus();
}

absl::Status CountLines(const std::string& path, const data::DocumentOptions& options,
                        tokenizer::WordCounter* counter,
                        const std::function<void(const data::ByteStream&)>& on_progress) {
  ASSIGN_OR_RETURN(const auto documents, data::Documents::Open(path, options));
  std::string document;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, documents->Next(&document));
    if (!more) break;
    counter->Feed(document);
    counter->Finish();
    on_progress(documents->stream());
  }
  if (documents->num_skipped() > 0) {
    std::fprintf(stderr, "%s: skipped %s\n", path.c_str(),
                 base::Counted(documents->num_skipped(), "bad line").c_str());
  }
  return absl::OkStatus();
}

absl::Status CountWords(const TrainFlags& flags, tokenizer::WordCounter* counter) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandFolders(flags.files));
  RETURN_IF_ERROR(CheckKeepsInputs("--out", flags.out, files));
  RETURN_IF_ERROR(CheckIsNew("--out", flags.out, flags.force));
  const data::DocumentOptions options = {.json_field = flags.json_field,
                                         .skip_bad = flags.skip_bad};
  for (const std::string& path : files) {
    WorkProgress progress({path, "bytes"}, DetectTerminal(STDERR_FILENO), stderr, Now());
    const auto show = [&](const data::ByteStream& stream) {
      if (stream.file_bytes() > 0) progress.Show(stream.read_bytes(), stream.file_bytes(), Now());
    };
    RETURN_IF_ERROR(flags.json_field.empty() ? CountPlain(path, flags.skip_bad, counter, show)
                                             : CountLines(path, options, counter, show));
  }
  if (!counter->words().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flags.files[0], ": has no text; expected text from which a tokenizer can be learnt"));
}

absl::Status Train(TrainFlags flags) {
  if (flags.special_tokens.empty()) flags.special_tokens = {kEndOfDocument};
  RETURN_IF_ERROR(CheckTrainFlags(flags));
  tokenizer::ByteLevelBpe bpe;
  ASSIGN_OR_RETURN(bpe.split, ParseSplit(flags.split));
  bpe.special_tokens = flags.special_tokens;
  tokenizer::WordCounter counter(bpe.split);
  RETURN_IF_ERROR(CountWords(flags, &counter));
  const int64_t fixed = kNumBytes + static_cast<int64_t>(bpe.special_tokens.size());
  const int64_t wanted = flags.vocabulary_size - fixed;
  {
    WorkProgress progress({"merges", "tokens"}, DetectTerminal(STDERR_FILENO), stderr, Now());
    bpe.merges = tokenizer::TrainBpe(
        counter.words(),
        {.num_tokens_max = wanted,
         .min_frequency = flags.min_frequency,
         .on_progress = [&](int64_t done, int64_t all) { progress.Show(done, all, Now()); }});
  }
  const std::string file = tokenizer::WriteTokenizerJson(bpe);
  ASSIGN_OR_RETURN(tokenizer::TokenizerParts parts, tokenizer::ParseTokenizerJson(file));
  const auto made = static_cast<int64_t>(parts.tokens.size());
  RETURN_IF_ERROR(WriteOutputFile(flags.out, file));
  if (IsStandardOutput(flags.out)) return absl::OkStatus();
  std::printf("%s: %s tokens from %s distinct words\n", flags.out.c_str(), WithCommas(made).c_str(),
              WithCommas(static_cast<int64_t>(counter.words().size())).c_str());
  if (made < flags.vocabulary_size) {
    std::fprintf(stderr,
                 "the text has no more pairs that occur %lld times: %s tokens instead of %s\n",
                 static_cast<long long>(flags.min_frequency), WithCommas(made).c_str(),
                 WithCommas(flags.vocabulary_size).c_str());
  }
  return absl::OkStatus();
}

struct UseFlags {
  std::string tokenizer;
  std::vector<std::string> files;
  std::vector<std::string> text;
  std::string ids;
  std::string json_field;
  bool skip_bad = false;
  bool plain = false;  // without the tokens around a text
  std::string out;
  bool force = false;
  std::string end_token;
  bool skip_special = false;
  std::string format = "text";
};

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const UseFlags& flags) {
  if (!flags.tokenizer.empty()) {
    ASSIGN_OR_RETURN(auto loaded, tokenizer::LoadTokenizer(flags.tokenizer));
    for (const std::string& warning : loaded->warnings()) {
      std::fprintf(stderr, "warning: %s: %s\n", flags.tokenizer.c_str(), warning.c_str());
    }
    return loaded;
  }
  return absl::InvalidArgumentError(
      "--tokenizer: is missing; expected a tokenizer.json, or a folder with one");
}

void PrintIds(const std::vector<int32_t>& ids, const UseFlags& flags) {
  const std::string joined = absl::StrJoin(ids, flags.format == "json" ? ", " : " ");
  std::printf(flags.format == "json" ? "{\"ids\": [%s]}\n" : "%s\n", joined.c_str());
}

using OnIds = std::function<absl::Status(const std::vector<int32_t>&)>;

absl::Status EncodeFile(const Tokenizer& tokenizer, const UseFlags& flags, const std::string& path,
                        const OnIds& on_ids) {
  const data::DocumentOptions options = {.json_field = flags.json_field,
                                         .skip_bad = flags.skip_bad};
  ASSIGN_OR_RETURN(const auto documents, data::Documents::Open(path, options));
  WorkProgress progress({path, "bytes"}, DetectTerminal(STDERR_FILENO), stderr, Now());
  std::string document;
  std::vector<int32_t> ids;
  int64_t num_repeated = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, documents->Next(&document));
    if (!more) break;
    ids.clear();
    // A token file is for training, as a job's text.
    if (flags.out.empty() || flags.plain) {
      tokenizer.Encode(document, {.add_special_tokens = !flags.plain}, &ids);
    } else if (tokenizer.EncodeDocument({.text = document}, &ids)) {
      ++num_repeated;
    }
    RETURN_IF_ERROR(on_ids(ids));
    const data::ByteStream& stream = documents->stream();
    if (!flags.out.empty() && stream.file_bytes() > 0) {
      progress.Show(stream.read_bytes(), stream.file_bytes(), Now());
    }
  }
  if (documents->num_skipped() > 0) {
    std::fprintf(stderr, "%s: skipped %s\n", path.c_str(),
                 base::Counted(documents->num_skipped(), "bad document").c_str());
  }
  if (num_repeated > 0) {
    std::fprintf(
        stderr,
        "warning: %s: %lld documents begin or end with %s already, which is not put there again\n",
        path.c_str(), static_cast<long long>(num_repeated), tokenizer.NamesAround().c_str());
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> EndTokenOf(const Tokenizer& tokenizer, const UseFlags& flags) {
  const auto id =
      flags.end_token.empty() ? tokenizer.EndOfDocument() : tokenizer.IdOf(flags.end_token);
  if (id) return *id;
  if (flags.end_token.empty()) {
    return absl::InvalidArgumentError(
        "--end-token: the tokenizer has no <|endoftext|>, <|end_of_text|> or </s>; name the token "
        "that ends a document");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--end-token: '", base::Printable(flags.end_token, 60), "' is not in the vocabulary"));
}

// Writes a token file in which every document ends with the end token.
absl::Status EncodeToFile(const Tokenizer& tokenizer, const UseFlags& flags,
                          const std::vector<std::string>& files) {
  ASSIGN_OR_RETURN(const int32_t end, EndTokenOf(tokenizer, flags));
  ASSIGN_OR_RETURN(
      const auto writer,
      data::TokenFileWriter::Create({flags.out, tokenizer.vocabulary_size(), tokenizer.sha256()}));
  const auto append = [&](const std::vector<int32_t>& ids) {
    std::vector<int32_t> document = ids;
    if (document.empty() || document.back() != end) document.push_back(end);
    return writer->Append(document);
  };
  for (const std::string& path : files) {
    RETURN_IF_ERROR(EncodeFile(tokenizer, flags, path, append));
  }
  RETURN_IF_ERROR(writer->Finish());
  std::printf("%s: %s tokens in %s document%s\n", flags.out.c_str(),
              WithCommas(writer->num_tokens()).c_str(), WithCommas(writer->num_documents()).c_str(),
              writer->num_documents() == 1 ? "" : "s");
  return absl::OkStatus();
}

absl::Status Encode(const UseFlags& flags) {
  if (flags.text.size() > 1) {
    return absl::InvalidArgumentError("--text: is given twice; expected one text, or files");
  }
  if (flags.text.empty() == flags.files.empty() || (!flags.text.empty() && !flags.out.empty())) {
    return absl::InvalidArgumentError("give either --text or files to encode; --out needs files");
  }
  ASSIGN_OR_RETURN(const auto tokenizer, Load(flags));
  if (!flags.text.empty()) {
    std::vector<int32_t> ids;
    tokenizer->Encode(flags.text[0], {.add_special_tokens = !flags.plain}, &ids);
    PrintIds(ids, flags);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandFolders(flags.files));
  if (!flags.out.empty()) {
    std::vector<std::string> inputs = files;
    ASSIGN_OR_RETURN(inputs.emplace_back(), tokenizer::FindTokenizerFile(flags.tokenizer));
    RETURN_IF_ERROR(CheckKeepsInputs("--out", flags.out, inputs));
    RETURN_IF_ERROR(CheckIsNew("--out", flags.out, flags.force));
    return EncodeToFile(*tokenizer, flags, files);
  }
  const auto print = [&](const std::vector<int32_t>& ids) {
    PrintIds(ids, flags);
    return absl::OkStatus();
  };
  for (const std::string& path : files) {
    RETURN_IF_ERROR(EncodeFile(*tokenizer, flags, path, print));
    if (OutputFailed()) break;
  }
  return absl::OkStatus();
}

// Reads numbers between spaces, commas and brackets.
absl::StatusOr<std::vector<int32_t>> ParseIds(absl::string_view words) {
  std::vector<int32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(words, absl::ByAnyChar(" \t\r\n,[]"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ids: expected numbers, found '", base::Printable(word, 60), "'"));
    }
    ids.push_back(id);
  }
  return ids;
}

void PrintText(const std::string& text, const UseFlags& flags) {
  if (flags.format == "json") {
    JsonObject object;
    object.Add("text", text);
    std::printf("%s\n", object.Finish().c_str());
    return;
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::printf("\n");
}

absl::Status Decode(const UseFlags& flags) {
  if (flags.ids.empty() == flags.files.empty()) {
    return absl::InvalidArgumentError("give either --ids or files with ids");
  }
  ASSIGN_OR_RETURN(const auto tokenizer, Load(flags));
  // Each line with ids, as encode prints them, is a text.
  std::vector<std::string> lines;
  const auto add_lines = [&](const std::string& content) {
    for (const absl::string_view line : absl::StrSplit(content, '\n')) {
      if (!absl::StripAsciiWhitespace(line).empty()) lines.emplace_back(line);
    }
  };
  if (!flags.ids.empty()) lines.push_back(flags.ids);
  for (const std::string& path : flags.files) {
    ASSIGN_OR_RETURN(const std::string content, base::ReadFile(path, kIdsBytesMax));
    add_lines(content);
  }
  if (lines.empty()) lines.emplace_back();
  for (const std::string& line : lines) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(line));
    ASSIGN_OR_RETURN(const std::string text,
                     tokenizer->Decode(ids, {.skip_special_tokens = flags.skip_special}));
    PrintText(text, flags);
    if (OutputFailed()) break;
  }
  return absl::OkStatus();
}

std::string TokensText(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> names;
  for (const int32_t id : ids) names.push_back(base::Printable(tokenizer.TokenOf(id), 60));
  return names.empty() ? "nothing" : absl::StrJoin(names, " ");
}

absl::Status Inspect(const UseFlags& flags) {
  ASSIGN_OR_RETURN(const auto tokenizer, Load(flags));
  const auto num_added = static_cast<int64_t>(tokenizer->added_tokens().size());
  if (flags.format == "json") {
    JsonObject object;
    object.Add("description", tokenizer->description());
    object.Add("vocabulary_size", int64_t{tokenizer->vocabulary_size()});
    object.Add("added_tokens", num_added);
    object.Add("end_of_document", int64_t{tokenizer->EndOfDocument().value_or(-1)});
    object.Add("sha256", tokenizer->sha256());
    std::printf("%s\n", object.Finish().c_str());
    return absl::OkStatus();
  }
  std::printf("%s\nvocabulary of %s tokens, %s of them added; sha256 %s\n",
              tokenizer->description().c_str(), WithCommas(tokenizer->vocabulary_size()).c_str(),
              WithCommas(num_added).c_str(), tokenizer->sha256().c_str());
  std::printf("before a text: %s; after it: %s\n",
              TokensText(*tokenizer, tokenizer->begin_ids()).c_str(),
              TokensText(*tokenizer, tokenizer->end_ids()).c_str());
  std::vector<std::vector<std::string>> rows = {{"ID", "SPECIAL", "ADDED TOKEN"}};
  for (const tokenizer::AddedToken& token : tokenizer->added_tokens()) {
    rows.push_back(
        {absl::StrCat(token.id), token.special ? "yes" : "no", base::Printable(token.content, 60)});
  }
  if (rows.size() > 1) std::printf("\n%s", FormatTable(rows).c_str());
  return absl::OkStatus();
}

void AddTrain(Command* parent) {
  auto flags = std::make_shared<TrainFlags>();
  Command* command = parent->Add("train", "learns a byte-level BPE from text");
  command->Positionals("FILE", &flags->files,
                       "text files, or folders of them; plain, or packed by gzip or zstd");
  command->Path("--out", &flags->out, "the tokenizer.json to write");
  command->Integer("--vocab-size", &flags->vocabulary_size,
                   "number of tokens: the 256 bytes, the special tokens, and what is learnt");
  command->Text("--split", &flags->split, "how text is cut into words: gpt2, llama3 or qwen2");
  command->Repeated("--special-token", &flags->special_tokens,
                    "a special token; repeat it for several (default: <|endoftext|>)");
  command->Integer("--min-frequency", &flags->min_frequency,
                   "pairs that occur fewer times than this are not merged");
  command->Text("--json-field", &flags->json_field,
                "the files are JSON Lines with the text in this field");
  command->Flag("--skip-bad", &flags->skip_bad,
                "leaves out bad lines, or bytes that are not UTF-8, and counts them");
  AddForceOption(command, &flags->force);
  command->Details(
      "The same text and options give the same file. It has the format of Hugging Face, and other "
      "programs that read tokenizer.json give the same tokens with it.");
  command->Examples(
      "megascale tokenizer train --vocab-size 8192 book.txt --out tokenizer.json\n"
      "megascale tokenizer train --vocab-size 32000 --json-field text web.jsonl.zst \\\n"
      "  --out tokenizer.json");
  command->Runs([flags] {
    const absl::Status status = Train(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

void RunsWith(Command* command, const std::shared_ptr<UseFlags>& flags,
              absl::Status (*run)(const UseFlags&)) {
  AddOutputOption(command, &flags->format);
  command->Runs([flags, run] {
    if (!CheckOutputFormat(flags->format)) return static_cast<int>(kExitUsage);
    const absl::Status status = run(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

constexpr char kTokenizerHelp[] =
    "a tokenizer.json, a SentencePiece .model, or a folder with one of them";

void AddEncode(Command* parent) {
  auto flags = std::make_shared<UseFlags>();
  Command* command = parent->Add(
      "encode", "prints the token ids of text, a line for a document, or writes a token file");
  command->Positionals("FILE", &flags->files,
                       "text files, or folders of them; plain, or packed by gzip or zstd");
  command->Path("--tokenizer", &flags->tokenizer, kTokenizerHelp);
  command->Repeated("--text", &flags->text, "text to encode instead of files");
  command->Text("--json-field", &flags->json_field,
                "the files are JSON Lines with the text in this field");
  command->Flag("--skip-bad", &flags->skip_bad, "leaves out bad documents and counts them");
  command->Flag("--plain", &flags->plain,
                "without the tokens that the tokenizer puts around a text");
  command->Path("--out", &flags->out,
                "writes a token file instead; each document ends with the end token");
  AddForceOption(command, &flags->force);
  command->Text("--end-token", &flags->end_token,
                "token that ends a document in a token file (default: the tokenizer's own)");
  command->Examples(
      "megascale tokenizer encode --tokenizer tokenizer.json --text 'Love is'\n"
      "megascale tokenizer encode --tokenizer tokenizer.json --json-field text web.jsonl.gz "
      "-o json\n"
      "megascale tokenizer encode --tokenizer tokenizer.json book.txt --out book.tokens");
  RunsWith(command, flags, Encode);
}

void AddDecode(Command* parent) {
  auto flags = std::make_shared<UseFlags>();
  Command* command = parent->Add("decode", "prints the text of token ids");
  command->Positionals("FILE", &flags->files, "files with ids, as encode prints them");
  command->Path("--tokenizer", &flags->tokenizer, kTokenizerHelp);
  command->Text("--ids", &flags->ids, "ids to decode instead of files");
  command->Flag("--skip-special", &flags->skip_special, "leaves out special tokens");
  command->Examples(
      "megascale tokenizer decode --tokenizer tokenizer.json --ids '271 318 259'\n"
      "megascale tokenizer decode --tokenizer tokenizer.json --skip-special ids.txt");
  RunsWith(command, flags, Decode);
}

void AddInspect(Command* parent) {
  auto flags = std::make_shared<UseFlags>();
  Command* command = parent->Add("inspect", "shows what a tokenizer does");
  command->PathPositional("TOKENIZER", &flags->tokenizer, kTokenizerHelp);
  command->Examples("megascale tokenizer inspect llama");
  RunsWith(command, flags, Inspect);
}

}  // namespace

void AddTokenizerCommand(CommandLine* line) {
  Command* command =
      line->Add("tokenizer", "makes tokenizers, encodes and decodes text; needs no driver");
  AddTrain(command);
  AddEncode(command);
  AddDecode(command);
  AddInspect(command);
}

}  // namespace megascale::cli
