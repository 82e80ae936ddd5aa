// Documents of plain and packed files, and what is said about bad ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/documents.h"
#include "runtime/data/source/plain_text.h"
#include "runtime/data/source/text_check.h"

namespace megascale::data {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Gzip(const std::string& text) {
  std::string packed(text.size() + 1000, '\0');
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

class SourceTest : public ::testing::Test {
 protected:
  SourceTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = absl::StrCat(::testing::TempDir(), "/", info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(base::WriteFileDurably(path, content).ok());
    return path;
  }

  // Returns all documents; the error as the last one.
  static std::vector<std::string> All(const std::string& path, const DocumentOptions& options) {
    std::vector<std::string> found;
    auto documents = Documents::Open(path, options);
    if (!documents.ok()) return {std::string(documents.status().message())};
    std::string document;
    for (;;) {
      const auto more = (*documents)->Next(&document);
      if (!more.ok()) found.emplace_back(more.status().message());
      if (!more.ok() || !*more) return found;
      found.push_back(document);
    }
  }

  std::string folder_;
};

// Returns the pieces of a plain file in one, and how many bytes were skipped; or the error.
std::string PlainTextOf(const std::string& path, const PlainTextOptions& options) {
  const auto text = PlainText::Open(path, options);
  if (!text.ok()) return std::string(text.status().message());
  std::string all;
  std::string piece;
  for (;;) {
    const auto more = (*text)->Next(&piece);
    if (!more.ok()) return std::string(more.status().message());
    if (!*more) return absl::StrCat(all, "|", (*text)->num_skipped());
    EXPECT_TRUE(base::IsUtf8(piece));
    all += piece;
  }
}

TEST_F(SourceTest, APlainFileIsOneDocument) {
  EXPECT_THAT(All(Write("a", "two\nlines\n"), {}), ElementsAre("two\nlines\n"));
  EXPECT_THAT(All(Write("b", ""), {}), ElementsAre(""));
}

TEST_F(SourceTest, PackedFilesAreUnpackedWhateverTheirName) {
  std::string text;
  for (int i = 0; i < 100000; ++i) absl::StrAppend(&text, i, " ");
  EXPECT_THAT(All(Write("a.txt", Gzip(text)), {}), ElementsAre(text));
  EXPECT_THAT(All(Write("b.txt", Zstd(text)), {}), ElementsAre(text));
  EXPECT_THAT(All(Write("two", Gzip("one ") + Gzip("two")), {}), ElementsAre("one two"));
  EXPECT_THAT(All(Write("three", Zstd("one ") + Zstd("two")), {}), ElementsAre("one two"));
}

// pzstd writes a frame to skip in front of each frame, seekable files one at the end.
TEST_F(SourceTest, FramesToSkipAndPaddingAreReadOver) {
  using std::string_literals::operator""s;
  const std::string skip = "\x50\x2A\x4D\x18\x04\0\0\0size"s;
  const std::string other = "\x5E\x2A\x4D\x18\x01\0\0\0!"s;
  EXPECT_THAT(All(Write("a", skip + Zstd("one ") + skip + Zstd("two") + other), {}),
              ElementsAre("one two"));
  EXPECT_THAT(All(Write("b", other + Zstd("{\"text\": \"x\"}")), {.json_field = "text"}),
              ElementsAre("x"));
  for (const size_t zeros : {size_t{1}, size_t{511}, kSourceBlockBytes + 7}) {
    const std::string padding(zeros, '\0');
    EXPECT_THAT(All(Write("c", Gzip("one") + padding), {}), ElementsAre("one"));
    EXPECT_THAT(All(Write("d", Gzip("one ") + padding + Gzip("two") + padding), {}),
                ElementsAre("one two"));
    EXPECT_THAT(All(Write("e", Gzip("one") + padding + "no gzip"), {}).back(),
                HasSubstr("the gzip data is damaged"));
  }
}

TEST_F(SourceTest, ALargerWindowThanIsKeptIsNamedWithItsSize) {
  ZSTD_CCtx* const context = ::ZSTD_createCCtx();
  for (const int log : {27, 28, 31}) {
    ::ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, log);
    std::string packed(1000, '\0');
    const std::string text = "some text";
    ZSTD_inBuffer in = {text.data(), text.size(), 0};
    ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
    ASSERT_EQ(::ZSTD_CCtx_reset(context, ZSTD_reset_session_only), 0u);
    ::ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush);  // its size is not known
    ASSERT_EQ(::ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0u);
    packed.resize(out.pos);
    const std::string path = Write("a", Zstd("first ") + packed);
    const auto found = All(path, {});
    if (log == 27) {
      EXPECT_THAT(found, ElementsAre("first some text"));
    } else {
      EXPECT_THAT(found,
                  ElementsAre(absl::StrCat(
                      path, ": its zstd data wants a window of ", 1 << (log - 20),
                      " MiB; at most 128 MiB are kept: pack it again with `zstd --long=27`")));
    }
  }
  ::ZSTD_freeCCtx(context);
}

// The header of a frame in one segment, whose window is its content of 3 GiB and 5 bytes.
TEST_F(SourceTest, TheWindowOfAFrameInOneSegmentIsItsContent) {
  using std::string_literals::operator""s;
  EXPECT_THAT(All(Write("a", "\x28\xB5\x2F\xFD\xA0\5\0\0\xC0 rest"s), {}).back(),
              HasSubstr("wants a window of 3072 MiB; at most 128 MiB are kept"));
}

TEST_F(SourceTest, ACutOrDamagedPackedFileIsAnError) {
  for (const std::string& packed : {Gzip("some text"), Zstd("some text")}) {
    const std::string cut = Write("cut", packed.substr(0, packed.size() - 3));
    EXPECT_THAT(All(cut, {}).back(), HasSubstr("ends too early"));
    std::string bad = packed;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 0x55);
    bad[5] = static_cast<char>(bad[5] ^ 0x7F);
    EXPECT_THAT(All(Write("bad", bad), {}).back(), HasSubstr(folder_));
  }
}

TEST_F(SourceTest, EachLineOfJsonLinesIsADocument) {
  const std::string path = Write(
      "a", "\xEF\xBB\xBF{\"text\": \"\\u00e9\\n\"}\r\n\n{\"b\": {\"text\": 1}, \"text\": \"x\"}");
  EXPECT_THAT(All(path, {.json_field = "text", .skip_bad = false}), ElementsAre("é\n", "x"));
}

TEST_F(SourceTest, ABadLineIsNamedByFileAndLine) {
  const struct {
    std::string line, message;
  } mistakes[] = {
      {"{\"text\": 7}", ":2: the field 'text' is not a string; expected text"},
      {"{\"other\": \"a\"}", ":2: has no field 'text'; expected one with the text"},
      {"[1]", ":2: is no JSON object; expected one with a field 'text'"},
      {"{\"text\": \"\xFF\"}", ":2: is not JSON: mistake at byte 11, '\\xff\"}'"},
      {"{\"text\": \"a\"",
       ":2: is not JSON: the line ends before its object does; expected one object in each line "
       "(JSON Lines)"},
      {"{\"a\": nan, \"text\": \"a\"}",
       ":2: is not JSON: mistake at byte 8, 'an, \"text\": \"a\"}'"},
      {"{\"text\": NaN}", ":2: the field 'text' is not a string; expected text"},
      {std::string(1000, '['), ":2: is nested more than 100 levels deep; expected fewer"},
  };
  for (const auto& mistake : mistakes) {
    const std::string path =
        Write("a", "{\"text\": \"a\"}\n" + mistake.line + "\n{\"text\": \"b\"}");
    const auto found = All(path, {.json_field = "text", .skip_bad = false});
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[1], path + mistake.message);
    EXPECT_THAT(All(path, {.json_field = "text", .skip_bad = true}), ElementsAre("a", "b"));
  }
}

TEST_F(SourceTest, PlainTextThatIsNotUtf8IsRefusedOrCounted) {
  const std::string path = Write("a", "\xFFtext");
  EXPECT_THAT(All(path, {}).back(), EndsWith("is not UTF-8; convert it, or leave it out with "
                                             "--skip-bad"));
  auto documents = Documents::Open(path, {.json_field = "", .skip_bad = true});
  std::string document;
  EXPECT_FALSE(*(*documents)->Next(&document));
  EXPECT_EQ((*documents)->num_skipped(), 1);
}

TEST_F(SourceTest, ADocumentThatIsTooLongIsRefused) {
  DocumentOptions options;
  options.document_bytes_max = 10;
  EXPECT_THAT(All(Write("a", "01234567890"), options).back(), HasSubstr("more than 10 bytes"));
  options.json_field = "text";
  EXPECT_THAT(All(Write("b", "{\"text\": \"a\"}"), options).back(), HasSubstr(":1: a document"));
}

// As json.dumps of Python writes floats; also numbers that no double holds.
TEST_F(SourceTest, NumbersThatJsonDoesNotHaveAreReadOverWhereTheyAreNotTheText) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "-2.5E+400"}) {
    for (const std::string& line :
         {absl::StrCat("{\"a\": ", number, ", \"text\": \"x NaN, y\"}"),
          absl::StrCat("{\"text\":\"x NaN, y\",\"a\":[1,", number, "]}")}) {
      EXPECT_THAT(All(Write("a", line), {.json_field = "text"}), ElementsAre("x NaN, y")) << line;
    }
  }
  for (const char* wrong : {"NaNs", "+Infinity", "-NaN", "1e", "Inf"}) {
    const std::string line = absl::StrCat("{\"a\": ", wrong, ", \"text\": \"x\"}");
    EXPECT_THAT(All(Write("a", line), {.json_field = "text"}).back(),
                HasSubstr(":1: is not JSON: mistake at byte"))
        << line;
  }
}

TEST_F(SourceTest, JsonInAnotherFormThanLinesIsNamed) {
  const std::string expected = "; expected one JSON object in each line (JSON Lines)";
  const struct {
    std::string content, message;
  } files[] = {
      {"[{\"text\": \"a\"},\n{\"text\": \"b\"}]\n", "begins with [, as a JSON array" + expected},
      {"\n  [\n", "begins with [, as a JSON array" + expected},
      {"{\n  \"text\": \"a\"\n}\n",
       "begins with an object that goes on in the next line" + expected},
      {"\xEF\xBB\xBF{\r\n\"text\": \"a\"}",
       "begins with an object that goes on in the next line" + expected},
      {"<!DOCTYPE html>\n<p>404", "is an HTML page, perhaps one that a server sent"},
      {"<?xml version='1.0'?>", "begins with <, as XML and HTML do" + expected},
  };
  for (const auto& file : files) {
    const std::string path = Write("a", file.content);
    for (const bool skip_bad : {false, true}) {
      EXPECT_THAT(All(path, {.json_field = "text", .skip_bad = skip_bad}),
                  ElementsAre(HasSubstr(path + ": " + file.message)));
    }
    EXPECT_EQ(All(path, {}).size(), 1u) << "plain text may look like anything";
  }
}

TEST_F(SourceTest, FilesOfOtherFormatsAreNamedAndNotOfferedToBeSkipped) {
  using std::string_literals::operator""s;
  const std::string rest(300, '\0');
  const std::string tar = "name" + std::string(253, '\0') + "ustar" + rest;
  const struct {
    std::string content, message;
  } files[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
       "is a Git LFS pointer, which stands for the file; fetch the file with `git lfs pull`"},
      {"PAR1\x15\0\x15"s + rest, "is a Parquet file; write its text as JSON Lines"},
      {"ARROW1\0\0"s + rest, "is an Arrow file; write"},
      {"\x93NUMPY\x01\0v\0{'descr': '<u2', }"s, "is a NumPy array (.npy); write"},
      {"PK\x03\x04\x14\0"s + rest, "is a zip archive (as .npz and .pt files are); unpack it"},
      {"\xFD"
       "7zXZ\0\0\4"s,
       "is packed by xz; unpack it, or pack its text by gzip or zstd"},
      {"BZh91AY&SY\1\2\3\4", "is packed by bzip2; unpack it"},
      {"\x04\x22\x4D\x18\x64\x40", "is packed by lz4; unpack it"},
      {tar, "is a tar archive; unpack it"},
      {Gzip(tar), "is a tar archive; unpack it"},
      {"\x80\x04\x95\x10\0\0\0\0\0\0\0}"s, "is a pickle of Python; write its text"},
      {"\x28\0\0\0\0\0\0\0{\"a\":{}}"s, "is a file of weights (safetensors)"},
      {"GGUF\3\0\0\0"s, "is a file of weights (GGUF)"},
      {"SQLite format 3\0\20"s, "is an SQLite database"},
      {"MMIDIDX\0\0\1"s, "is an index of Megatron-LM (.idx); name its .bin"},
      {"\xFF\xFEh\0i\0"s, "is in UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"},
      {"\xFE\xFF\0h\0i"s, "is in UTF-16; convert"},
      {"h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0"s, "is in UTF-16LE; convert"},
      {"\0h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d"s, "is in UTF-16BE; convert"},
      {"\xFF\xFE\0\0h\0\0\0"s, "is in UTF-32; convert"},
      {"ids \1\0\7\0\xE8\3\x10\0 and ids"s, " bytes are NUL: it is binary; expected text in UTF-8"},
      {"\xEB\0\x8C\0H\0\xFF\0\x89\0\xCB\0\x85\0O\0\xC0\0"s, "9 of its first 18 bytes are NUL"},
      {std::string(30, '\xE0') + " in windows-1251",
       "30 of its first 46 bytes are not UTF-8: it is "},
  };
  for (const auto& file : files) {
    const std::string path = Write("a", file.content);
    for (const char* field : {"", "text"}) {
      for (const bool skip_bad : {false, true}) {
        const auto found = All(path, {.json_field = field, .skip_bad = skip_bad});
        EXPECT_THAT(found, ElementsAre(HasSubstr(file.message)));
        EXPECT_THAT(found.back(), Not(HasSubstr("--skip-bad")));
        EXPECT_THAT(found.back(), HasSubstr(path + ": "));
      }
    }
    EXPECT_THAT(PlainTextOf(path, {.skip_bad = true}), HasSubstr(file.message));
  }
  for (const char* text :
       {"PAR1S", "GGUF is a format of files", "LZIP", "BZh9", "PK", "a\x1B[1mb"}) {
    EXPECT_THAT(All(Write("a", text), {}), ElementsAre(text));
  }
}

TEST_F(SourceTest, AByteOrderMarkIsNoPartOfAText) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string path = Write("a", mark + "é" + mark + "b");
  EXPECT_THAT(All(path, {}), ElementsAre("é" + mark + "b")) << "the one at the begin alone";
  for (size_t block = 1; block <= 8; ++block) {
    EXPECT_EQ(PlainTextOf(path, {.block_bytes = block}), "é" + mark + "b|0");
    EXPECT_THAT(PlainTextOf(Write("bad", mark + "a\n\xFFz"), {.block_bytes = block}),
                HasSubstr("/bad:2: is not UTF-8 at byte 5 of the file"));
  }
  EXPECT_THAT(All(Write("b", Gzip(mark + "packed")), {}), ElementsAre("packed"));
  EXPECT_THAT(All(Write("c", mark), {}), ElementsAre(""));
  EXPECT_THAT(All(Write("d", mark + "{\"text\": \"" + mark + "x\"}"), {.json_field = "text"}),
              ElementsAre(mark + "x"));
}

TEST_F(SourceTest, PlainTextComesInWholeCharactersWhateverTheBlocks) {
  const std::string path = Write("good", "aé日\xF0\x9F\x98\x80z");
  const std::string bad = Write("bad", "aé\xFF日b\xF0\x9F\x98");
  for (size_t block = 1; block <= 16; ++block) {
    EXPECT_EQ(PlainTextOf(path, {.block_bytes = block}), "aé日\xF0\x9F\x98\x80z|0");
    EXPECT_EQ(PlainTextOf(bad, {.skip_bad = true, .block_bytes = block}), "aé日b|4");
    EXPECT_THAT(PlainTextOf(bad, {.block_bytes = block}),
                HasSubstr("/bad:1: is not UTF-8 at byte 3 of the file; convert it"));
  }
  EXPECT_EQ(PlainTextOf(Write("packed", Gzip("aé")), {}), "aé|0");
  EXPECT_EQ(PlainTextOf(Write("none", ""), {}), "|0");
  EXPECT_THAT(PlainTextOf(Write("cut", "a\xC3"), {}), HasSubstr("not UTF-8 at byte 1"));
  const std::string lines = Write("lines", "a\n\né\nb\xFF\n");
  for (size_t block = 1; block <= 8; ++block) {
    EXPECT_THAT(PlainTextOf(lines, {.block_bytes = block}),
                HasSubstr("/lines:4: is not UTF-8 at byte 7 of the file"));
  }
}

// The inputs that cost a reader most for each of their bytes, as files of about `size` bytes.
std::vector<std::string> WorstTexts(size_t size) {
  const auto repeat = [size](const std::string& text) {
    std::string all;
    while (all.size() < size) all += text;
    return all;
  };
  const std::string good = repeat("good text ");
  return {
      repeat("\n"),                                           // nothing but ends of lines
      repeat("x"),                                            // no end of a line
      good + repeat("\xC3"),                                  // every byte is bad
      "{\"text\": \"" + repeat("\\\"") + "\"}",               // a string of escapes
      "{\"a\": [" + repeat("NaN,") + "0], \"text\": \"a\"}",  // a number to leave out at each turn
      "{\"a\": [" + repeat("1e9,") + "1e999, nan], \"text\": \"a\"}",  // the mistake comes last
      "{\"a\": [" + repeat("1") + "e" + repeat("9") + "], \"text\": \"a\"}",
      "{\"a\": " + repeat(",NaN"),
      repeat("{\"text\": NaN}\n"),
      "{" + repeat("\"text\":\"a\",") + "\"b\":0}",
  };
}

TEST_F(SourceTest, TheWorkOfAReaderGrowsAsItsInput) {
  constexpr size_t kSize = 1 << 16;
  const auto small = WorstTexts(kSize), large = WorstTexts(2 * kSize);
  for (size_t i = 0; i < small.size(); ++i) {
    const auto work = [&](const std::string& content, const std::string& field) {
      const std::string path = Write("a", content);
      const int64_t of_lines =
          base::WorkOf([&] { All(path, {.json_field = field, .skip_bad = true}); });
      return of_lines +
             base::WorkOf([&] { PlainTextOf(path, {.skip_bad = true, .block_bytes = 512}); });
    };
    for (const char* field : {"", "text"}) {
      const int64_t before = work(small[i], field);
      EXPECT_GE(before, static_cast<int64_t>(kSize)) << i;
      EXPECT_LE(work(large[i], field), before * 5 / 2) << i << field;
    }
  }
}

}  // namespace
}  // namespace megascale::data
